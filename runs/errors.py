"""The error tree: what callers may be told, each with a word that never changes.

`code` reaches problem details, the CLI and the logs unchanged; `status` is the HTTP status of the edge.
The docstring of a class is its default message. Nothing here imports anything of ours.
"""

from __future__ import annotations

from typing import Any


def first_line(text: object) -> str:
    """The first line of a text or of an error's message; the error's name where it has no message."""
    lines = str(text).strip().splitlines()
    return lines[0] if lines else type(text).__name__


def said(error: BaseException) -> str:
    """The type and the message of an error that may not be ours: asking it for its text may itself fail."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - an error without words is told by its name
        return name


class LychdError(Exception):
    """Something went wrong in LychD."""

    code: str = "internal"
    title: str = "Internal error"
    status: int = 500

    def __init__(self, detail: str | None = None, **facts: Any) -> None:
        self.detail = detail or first_line(type(self).__doc__ or type(self).__name__)
        self.facts = facts
        super().__init__(self.detail)


class Refused(LychdError):
    """The request was refused and nothing was changed."""

    code, title, status = "refused", "Refused", 400


class Invalid(Refused):
    """The input is not valid."""

    code, title, status = "invalid", "Invalid input", 422

    def __init__(self, detail: str | None = None, *, errors: list[dict[str, Any]] | None = None, **facts: Any) -> None:
        super().__init__(detail, **facts)
        self.errors = errors or []


class TooLarge(Invalid):
    """The value is larger than the limit."""

    code, title = "too_large", "Value too large"


class Unauthenticated(Refused):
    """A valid token or session is needed."""

    code, title, status = "unauthenticated", "Not authenticated", 401


class Forbidden(Refused):
    """The caller's authority does not cover this."""

    code, title, status = "forbidden", "Not allowed", 403


class NotFound(Refused):
    """There is no such thing."""

    code, title, status = "not_found", "Not found", 404


class PatternNotFound(NotFound):
    """There is no such Pattern."""

    code, title = "pattern_not_found", "Unknown Pattern"


class Conflict(Refused):
    """The request contradicts what is already recorded."""

    code, title, status = "conflict", "Conflict", 409


class KeyReused(Conflict):
    """This idempotency key was used for other work."""

    code, title = "idempotency_key_reused", "Idempotency key reused"


class SessionFenced(Conflict):
    """The session already has a Run that is not finished."""

    code, title = "session_fenced", "Session fenced"


class Pruned(Refused):
    """This Run was admitted once and has been pruned since."""

    code, title, status = "pruned", "Gone", 410


class TooMany(Refused):
    """Too much work is waiting already; try again later."""

    code, title, status = "too_many", "Too many", 429

    def __init__(self, detail: str | None = None, *, retry_after: int = 5, **facts: Any) -> None:
        super().__init__(detail, **facts)
        self.retry_after = retry_after


class NotAdmitting(Refused):
    """The Vessel does not admit work at the moment."""

    code, title, status = "not_admitting", "Not admitting", 503


class Unknown(LychdError):
    """The outcome is not known; look at the Run before you act again."""

    code, title, status = "unknown_outcome", "Outcome unknown", 503


class Corrupt(LychdError):
    """The recorded truth contradicts itself."""

    code, title, status = "corrupt", "Corrupt record", 500


class StrandedAdmission(Corrupt):
    """An admission is held and nobody can release it."""

    code, title = "stranded_admission", "Admission stranded"


class Degraded(LychdError):
    """A required part is not available."""

    code, title, status = "degraded", "Degraded", 503


class PatternError(LychdError):
    """A Pattern is not written correctly."""

    code, title = "pattern_error", "Pattern error"


class NodeFailed(LychdError):
    """A node of the Run failed; `code` of the instance says why."""

    code, title = "node_failed", "Node failed"

    def __init__(self, detail: str | None = None, *, code: str | None = None, **facts: Any) -> None:
        super().__init__(detail, **facts)
        if code is not None:
            self.code = code


class EvidenceFailed(LychdError):
    """A Step could not be written; the Run's status is not touched by this."""

    code, title = "evidence_failed", "Evidence failed"


class EvidenceMismatch(Corrupt):
    """The stored terminal Step contradicts the Run's status."""

    code, title = "evidence_mismatch", "Evidence contradicts the Run"
