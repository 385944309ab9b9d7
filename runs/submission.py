"""What a caller asks for, before anything is decided: the request, its digest, and what the two have in common."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs import payloads
from runs.authority import Caller, Surface
from runs.errors import Forbidden, Invalid
from runs.routing import check_priority

# The source that a surface stands for when the caller names none.
DEFAULT_SOURCE = {
    Surface.REST: "api",
    Surface.CLI: "cli",
    Surface.DASHBOARD: "dashboard",
    Surface.ADMIN: "dashboard",
    Surface.CODE: "api",
}


@dataclass(frozen=True, slots=True)
class Submission:
    """One request for a Run, as raw as it came: nothing is filled in, so that a replay compares what was asked."""

    pattern: str
    input: Any
    priority: int | None = None
    session: uuid.UUID | None = None
    fence_session: bool = False
    source: str | None = None
    key: str | None = None

    def proved(self, limit: int) -> str:
        """Prove the parts that need no Pattern; returns the input as checked JSON text.

        Raises:
            Invalid: a part is out of bounds; `errors` says which.
            TooLarge: the input is larger than `limit` bytes as JSON.
        """
        if self.priority is not None:
            check_priority(self.priority)
        if self.key is not None and not 1 <= len(self.key) <= 200:
            raise _invalid("/key", "must have 1 to 200 characters", "length")
        if self.fence_session and self.session is None:
            raise _invalid("/fence_session", "needs a session", "missing")
        for name, text in (("pattern", self.pattern), ("source", self.source), ("key", self.key)):
            if text is not None and not text.isprintable():
                raise _invalid(f"/{name}", "holds characters that cannot be printed", "characters")
        return payloads.check(self.input, "input", limit)

    def intent(self, caller: Caller) -> dict[str, Any]:
        """The request with its authority, as it is stored and as replays are compared (ADM-21)."""
        return {
            "pattern": self.pattern,
            "input": self.input,
            "session": str(self.session) if self.session else None,
            "fence_session": self.fence_session,
            "source": self.source,
            "priority": self.priority,
            "sigil": caller.name,
            "scopes": sorted(caller.scopes),
        }

    def source_for(self, caller: Caller) -> str:
        """The source that counts: the caller's, if its Sigil allows it, else the surface's.

        Raises:
            Forbidden: the Sigil does not allow that source (ruling 20).
        """
        default = DEFAULT_SOURCE[caller.surface]
        if self.source is None or self.source == default:
            return default
        if self.source not in caller.sources:
            shown = self.source if len(self.source) <= 100 else self.source[:100] + "…"
            raise Forbidden(f"{caller.name} may not submit with the source {shown!r}.", source=shown)
        return self.source


def _invalid(pointer: str, detail: str, code: str) -> Invalid:
    return Invalid(f"{pointer[1:]} {detail}.", errors=[{"pointer": pointer, "detail": detail, "code": code}])
