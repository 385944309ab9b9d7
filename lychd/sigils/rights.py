"""What a person may do, in the words of the interface: which Django permissions stand behind each scope.

A scope is held when the person is a superuser or holds every permission behind it, directly or through a group.
A permission that no installed app declares yet can be given to nobody, so only superusers hold its scope: the rule
stays shut until the app that owns the permission opens it. `is_staff` opens the admin and nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from runs.authority import Scope

PERMISSIONS: Mapping[Scope, tuple[str, ...]] = MappingProxyType(
    {
        Scope.RUNS_SUBMIT: ("runs.submit_run",),
        Scope.RUNS_READ: ("runs.view_run",),
        Scope.RUNS_CANCEL: ("runs.cancel_run",),
        Scope.CONSENTS_READ: ("consents.view_consent",),
        Scope.CONSENTS_DECIDE: ("consents.decide_consent",),
        Scope.JOBS_READ: ("delegation.view_agentjob", "servicejobs.view_servicejobattempt"),
    }
)
EVERY_PERMISSION = tuple(sorted({name for names in PERMISSIONS.values() for name in names}))


def held(*, superuser: bool, permissions: Collection[str]) -> frozenset[str]:
    """The scopes that a person's own rights cover.

    Args:
        superuser: whether every permission is theirs without being listed.
        permissions: names as `app_label.codename`.
    """
    if superuser:
        return frozenset(scope.value for scope in Scope)
    return frozenset(
        scope.value for scope, needed in PERMISSIONS.items() if all(name in permissions for name in needed)
    )


def effective(scopes: Iterable[str], *, superuser: bool, permissions: Collection[str]) -> frozenset[str]:
    """The scopes of a Sigil cut with what its owner may do (ruling 29)."""
    return frozenset(scopes) & held(superuser=superuser, permissions=permissions)
