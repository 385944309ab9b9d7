"""What a follower of a Run is told: events, gaps, resyncs, lost connections, the end. Reads JSON; opens nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from runs.errors import LychdError

type Json = dict[str, Any]

# Kinds that are never stored as Steps.
LIVE_ONLY = frozenset({"token"})


class NotLychd(LychdError):
    """What answers is not a Vessel of this version."""

    code, title, status = "not_lychd", "Unexpected answer", 502


@dataclass(frozen=True, slots=True)
class Event:
    """One event, live or stored: both have the same number. `raw` is all of it as it came."""

    run: str
    seq: int
    cursor: str
    kind: str
    node: str | None
    data: Json
    at: datetime
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, value: Any) -> Self:
        """From the JSON of the interface.

        Raises:
            NotLychd: it is no event.
        """
        try:
            data = value["data"]
            return cls(
                run=str(value["run"]),
                seq=int(value["seq"]),
                cursor=str(value["cursor"]),
                kind=str(value["kind"]),
                node=None if value["node"] is None else str(value["node"]),
                data=data if isinstance(data, dict) else {"value": data},
                at=datetime.fromisoformat(value["at"]),
                raw={"type": "event", **value},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise NotLychd(
                f"The server sent an event that cannot be read ({type(error).__name__}: {error})."
            ) from error

    @property
    def live_only(self) -> bool:
        """Whether it is never stored, so that nobody can fetch it later."""
        return self.kind in LIVE_ONLY


@dataclass(frozen=True, slots=True)
class Gap:
    """Events with these numbers are missing; nobody can say what they were."""

    first: int
    last: int

    @property
    def raw(self) -> Json:
        """As JSON for programs."""
        return {"type": "gap", "from": self.first, "to": self.last}


@dataclass(frozen=True, slots=True)
class Resync:
    """The live stream went on without this reader: the snapshot replaces everything up to `cursor`.

    What was stored in between follows as events.
    """

    cursor: str
    snapshot: Json
    raw: Json = field(repr=False)


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection was lost; the next try comes after `pause` seconds."""

    reason: str
    pause: float

    @property
    def raw(self) -> Json:
        """As JSON for programs."""
        return {"type": "lost", "reason": self.reason, "pause": self.pause}


@dataclass(frozen=True, slots=True)
class End:
    """The Run has ended with `status`, and nothing more will come."""

    status: str
    raw: Json = field(repr=False)


type Message = Event | Gap | Resync | Lost | End
