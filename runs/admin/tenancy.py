"""Whose rows a staff member sees: those of their tenants, or all of them for superusers. Decides nothing else.

Which tenants are theirs is asked of the user model by name: `user.memberships`, rows with a `tenant`. A user model
without it sees nothing, so a project with other people than ours stays shut until it says who belongs where.
"""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.http import HttpRequest

MOST = 100
DEFAULT = "default"
_MARK = "_lychd_tenants"

# A walk from value to value along an index that begins with the column; DISTINCT would read every row.
_TENANTS = """
with recursive found(value) as (
    (select tenant from runs_run order by tenant limit 1)
    union all
    select (select r.tenant from runs_run r where r.tenant > f.value order by r.tenant limit 1)
      from found f
     where f.value is not null
)
select value from found where value is not null limit %(most)s
"""
_PATTERNS = """
with recursive found(value) as (
    (select pattern_key from runs_run where tenant = %(tenant)s order by pattern_key limit 1)
    union all
    select (select r.pattern_key from runs_run r
             where r.tenant = %(tenant)s and r.pattern_key > f.value order by r.pattern_key limit 1)
      from found f
     where f.value is not null
)
select value from found where value is not null limit %(most)s
"""


def visible(request: HttpRequest) -> frozenset[str] | None:
    """The tenants whose rows this person may see; None means all. Asked once a request."""
    if not hasattr(request, _MARK):
        setattr(request, _MARK, _of(request.user))
    return getattr(request, _MARK)


def _of(user: Any) -> frozenset[str] | None:
    if user.is_superuser:
        return None
    memberships = getattr(user, "memberships", None)
    return frozenset() if memberships is None else frozenset(memberships.values_list("tenant", flat=True))


def choices(request: HttpRequest) -> list[str]:
    """The tenants to choose from, in order; for superusers the first hundred that have Runs."""
    own = visible(request)
    if own is not None:
        return sorted(own)
    mark = f"{_MARK}_all"
    if not hasattr(request, mark):
        setattr(request, mark, _column(_TENANTS))
    return getattr(request, mark)


def chosen(request: HttpRequest) -> str | None:
    """The tenant of a list that shows one at a time: the asked one, else `default`, else the first.

    Returns:
        None when the person may see no tenant, or not the asked one.
    """
    asked = request.GET.get("tenant")
    own = visible(request)
    if asked:
        return asked if own is None or asked in own else None
    offered = choices(request)
    if DEFAULT in offered or not offered:
        return DEFAULT if own is None or DEFAULT in own else None
    return offered[0]


def patterns(tenant: str | None) -> list[str]:
    """The first hundred keys of Patterns of which the tenant has Runs, in order."""
    return [] if tenant is None or "\0" in tenant else _column(_PATTERNS, tenant=tenant)


def _column(sql: str, **params: Any) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(sql, {"most": MOST, **params})
        return [value for (value,) in cursor.fetchall()]
