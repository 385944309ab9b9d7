"""Who asks, and what they may do: a value that edges build and the engine checks. Knows no tokens and no tables."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import StrEnum

from runs.errors import Forbidden


class Scope(StrEnum):
    """The scopes of the interface; nothing else is a scope."""

    RUNS_SUBMIT = "runs:submit"
    RUNS_READ = "runs:read"
    RUNS_CANCEL = "runs:cancel"
    CONSENTS_READ = "consents:read"
    CONSENTS_DECIDE = "consents:decide"
    JOBS_READ = "jobs:read"


class Surface(StrEnum):
    """Through which door a request came: the server's word, never the caller's (ruling 20)."""

    REST = "rest"
    ADMIN = "admin"
    DASHBOARD = "dashboard"
    CLI = "cli"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller: a Sigil, or a person with a session.

    `scopes` are effective: already cut with what the owner may do (ruling 29).
    `sources` limits what `source` a submission may name; empty means only the surface's default.
    """

    tenant: str
    name: str
    scopes: frozenset[str]
    surface: Surface
    sigil_id: uuid.UUID | None = None
    user_id: uuid.UUID | None = None
    sources: frozenset[str] = field(default_factory=frozenset)

    def require(self, scope: Scope) -> None:
        """Raise `Forbidden` naming the missing scope, else return."""
        if scope not in self.scopes:
            raise Forbidden(f"This needs the scope {scope.value}, which {self.name} does not have.", scope=scope.value)
