"""Who decides: a person, with the rights they have at this moment in Django's own tables.

For the admin from a user of the ORM, for the Vessel in one statement without it; both see the same rights.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import cache
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType

from consents.decisions import Voter
from runs.authority import Caller
from runs.errors import Forbidden
from runs.reads import Reads


def voter_of(user: Any, tenants: Iterable[str]) -> Voter:
    """The voter that a user is; inactive people have no rights.

    Args:
        user: of the installed user model, fresh from the database.
        tenants: those in which the person may act.
    """
    active = bool(user.is_active)
    return Voter(
        user_id=user.pk,
        name=user.get_username(),
        tenants=frozenset(tenants),
        permissions=frozenset(user.get_all_permissions()) if active else frozenset(),
        groups=frozenset(user.groups.values_list("name", flat=True)) if active else frozenset(),
        superuser=active and bool(user.is_superuser),
    )


async def voter_behind(reads: Reads, caller: Caller) -> Voter:
    """The person behind a caller: who is logged in, or the owner of the Sigil. A vote belongs to a person (ruling 29).

    Raises:
        Forbidden: there is no such person any more.
        Degraded: the database cannot be asked.
    """
    if caller.user_id is None:
        raise Forbidden("A decision needs a person, and nobody stands behind this caller.")
    found = await reads.fetch_one(_person(), {"user": str(caller.user_id)})
    if found is None:
        raise Forbidden("The person behind this caller is gone, or not active any more.")
    name, superuser, permissions, groups = found
    return Voter(
        user_id=uuid.UUID(str(caller.user_id)),
        name=name,
        tenants=frozenset({caller.tenant}),
        permissions=frozenset(permissions),
        groups=frozenset(groups),
        superuser=superuser,
    )


@cache
def _person() -> str:
    """The statement for the installed user model; its own tables and columns."""
    user: Any = get_user_model()
    own, joined = user.user_permissions.through._meta.db_table, user.groups.through._meta.db_table
    permission, kind, group = Permission._meta.db_table, ContentType._meta.db_table, Group._meta.db_table
    granted: str = Group.permissions.through._meta.db_table
    return f"""
        select u.{user.USERNAME_FIELD}, u.is_superuser,
               array(select k.app_label || '.' || p.codename
                     from {permission} p join {kind} k on k.id = p.content_type_id
                     where p.id in (select o.permission_id from {own} o where o.user_id = u.id
                                    union
                                    select g.permission_id from {granted} g
                                    join {joined} j on j.group_id = g.group_id where j.user_id = u.id)),
               array(select g.name from {group} g join {joined} j on j.group_id = g.id where j.user_id = u.id)
        from {user._meta.db_table} u
        where u.id = %(user)s::uuid and u.is_active
    """
