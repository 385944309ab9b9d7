"""Who decides: a person of Django's, with the rights they have at this moment.

Asked of Django's authentication, so that rights from groups and from other backends count alike for all surfaces.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import close_old_connections

from consents.decisions import Voter
from runs.authority import Caller
from runs.errors import Forbidden


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


async def voter_behind(caller: Caller) -> Voter:
    """The person behind a caller: who is logged in, or the owner of the Sigil. A vote belongs to a person (ruling 29).

    Raises:
        Forbidden: there is no such person any more.

    Cancellation: at once; nothing is written.
    """
    if caller.user_id is None:
        raise Forbidden("A decision needs a person, and nobody stands behind this caller.")
    return await sync_to_async(_voter, thread_sensitive=False)(caller.user_id, caller.tenant)


def _voter(user_id: uuid.UUID, tenant: str) -> Voter:
    close_old_connections()
    try:
        user: Any = get_user_model().objects.filter(pk=user_id).first()
        if user is None:
            raise Forbidden("The person behind this caller is gone.")
        return voter_of(user, [tenant])
    finally:
        close_old_connections()
