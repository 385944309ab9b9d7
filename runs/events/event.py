"""What travels on the bus: events of a Run, the two marks of its stream, and changes for the list of all Runs.

An event keeps its payload as JSON text. Whoever reads `data` or `meta` gets a copy of his own, so no reader can change
what another reader, the replay or the stored Step shows (EVT-11). Nothing here knows who listens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from runs.events.cursor import Cursor
from runs.payloads import escaped

type Json = dict[str, Any]

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Kind(StrEnum):
    """The kinds of events; `token` alone is never stored, `done` comes once and last."""

    STATUS = "status"
    NODE = "node"
    LOG = "log"
    PROGRESS = "progress"
    TOKEN = "token"  # noqa: S105 - a piece of a model's text, no secret
    FRAGMENT = "fragment"
    CONSENT = "consent"
    DELEGATE = "delegate"
    SERVICE = "service"
    TRANSITION = "transition"
    DONE = "done"


@dataclass(frozen=True, slots=True, init=False)
class Event:
    """One event, live and as a Step: the number and the id are the same in both (EVT-7).

    Attributes:
        id: the event's identity; a Step that is written twice is recognised by it.
        tenant: whose Run it is.
        epoch, seq: the channel's generation and the event's number in the Run.
        data_json, meta_json: the payload as JSON text that PostgreSQL can hold.
        at: when it was emitted, UTC.
        tokens_before: how many unstored tokens used up numbers since the last stored event.
    """

    id: UUID
    run_id: UUID
    tenant: str
    epoch: str
    seq: int
    kind: Kind
    node: str | None
    data_json: str = field(repr=False)
    meta_json: str = field(repr=False)
    at: datetime
    tokens_before: int
    _text: str | None = field(repr=False, compare=False)

    def __init__(
        self,
        id: UUID,  # noqa: A002 - the word of the interface
        run_id: UUID,
        tenant: str,
        epoch: str,
        seq: int,
        kind: Kind,
        node: str | None,
        data: Mapping[str, Any] | None,
        meta: Mapping[str, Any] | None,
        at: datetime,
        tokens_before: int = 0,
    ) -> None:
        put = object.__setattr__
        put(self, "id", id)
        put(self, "run_id", run_id)
        put(self, "tenant", tenant)
        put(self, "epoch", epoch)
        put(self, "seq", seq)
        put(self, "kind", kind)
        put(self, "node", node)
        put(self, "data_json", detached(data) if data else "{}")
        put(self, "meta_json", detached(meta) if meta else "{}")
        put(self, "at", at)
        put(self, "tokens_before", tokens_before)
        put(self, "_text", None)

    @property
    def data(self) -> Json:
        """A fresh copy of the payload at each access."""
        return json.loads(self.data_json)

    @property
    def meta(self) -> Json:
        """A fresh copy of the metadata at each access."""
        return json.loads(self.meta_json)

    @property
    def cursor(self) -> str:
        """The cursor of a reader who has seen this event."""
        return f"{self.epoch}-{self.seq}"

    @property
    def weight(self) -> int:
        """About how many characters the payload takes."""
        return len(self.data_json) + len(self.meta_json)

    @property
    def text(self) -> str:
        """`to_json` as JSON text, made once for all readers; always valid UTF-8, never with a line break."""
        text = self._text
        if text is None:
            node = "null" if self.node is None else _encode(self.node)
            text = (
                f'{{"run":"{self.run_id}","seq":{self.seq},"cursor":"{self.cursor}","kind":"{self.kind}","node":{node},'
                f'"data":{self.data_json},"meta":{self.meta_json},"at":"{rfc3339(self.at)}"}}'
            )
            object.__setattr__(self, "_text", text)
        return text

    def to_json(self) -> Json:
        """The event in the words of the interface; the caller owns the result."""
        return {
            "run": str(self.run_id),
            "seq": self.seq,
            "cursor": self.cursor,
            "kind": self.kind.value,
            "node": self.node,
            "data": self.data,
            "meta": self.meta,
            "at": rfc3339(self.at),
        }


@dataclass(frozen=True, slots=True)
class Resync:
    """Everything up to `cursor` is replaced by a snapshot, which the edge reads and adds (EVT-3, EVT-4)."""

    cursor: Cursor


@dataclass(frozen=True, slots=True)
class End:
    """The Run has ended with `status` and the reader has seen everything."""

    status: str


@dataclass(frozen=True, slots=True)
class RunChange:
    """A Run's new standing, for readers of all Runs.

    Attributes:
        facts: further members of the JSON object; JSON only, and not changed after the announcement.
    """

    run_id: UUID
    tenant: str
    status: str
    pattern: str | None = None
    updated_at: datetime | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def weight(self) -> int:
        """Changes are small and of about one size; their number alone bounds them."""
        return 0

    def to_json(self) -> Json:
        """The change in the words of the interface; the caller owns the result."""
        return {
            **json.loads(detached(self.facts)),
            "id": str(self.run_id),
            "tenant": self.tenant,
            "status": self.status,
            "pattern": self.pattern,
            "updated_at": None if self.updated_at is None else rfc3339(self.updated_at),
        }


def detached(value: Mapping[str, Any]) -> str:
    """The JSON text of an object; what JSON or PostgreSQL cannot hold is made readable instead, never raised.

    The driver's context refuses or escapes bad payloads before they come here. This is the net below it: an event is
    never lost for its payload, and a bad payload never reaches a batch.
    """
    try:
        text = _encode(value)
        if "\\u0000" not in text:
            if not text.isascii():
                text.encode()
            return text
    except (TypeError, ValueError, RecursionError):
        pass
    clean = escaped(value)
    return _encode(clean if isinstance(clean, dict) else {"value": clean})


def rfc3339(at: datetime) -> str:
    """A time in UTC with the letter Z."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
