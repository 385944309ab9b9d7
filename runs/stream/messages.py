"""The messages of the streams, as JSON text that is the same for WebSocket and SSE. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runs.events.cursor import Cursor
from runs.events.event import Event
from runs.reads import RunRow, StoredStep
from runs.stream.rows import Changed

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class What(StrEnum):
    """The kinds of messages. `silence` is for the edge alone: nothing happened for a while, the client is told so."""

    EVENT = "event"
    GAP = "gap"
    RESYNC = "resync"
    RUN = "run"
    ROW = "row"
    END = "end"
    SILENCE = "silence"


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `text` is its JSON with a `type`, `cursor` the place of a reader who has it."""

    what: What
    text: str
    cursor: str | None = None


SILENCE = Message(What.SILENCE, "")


def event(one: Event) -> Message:
    """An event as it happens."""
    return Message(What.EVENT, f'{{"type":"event",{one.text[1:]}', one.cursor)


def step(run_id: Any, one: StoredStep) -> Message:
    """A stored event, the same to look at as a live one."""
    told = one.to_json(run_id)
    return Message(What.EVENT, _encode({"type": "event", **told}), told["cursor"])


def gap(first: int, last: int) -> Message:
    """Numbers of events that are stored nowhere (BYD-12)."""
    return Message(What.GAP, _encode({"type": "gap", "from": first, "to": last}))


def resync(cursor: Cursor, row: RunRow, owners: Mapping[str, list[dict[str, Any]]] | None = None) -> Message:
    """The snapshot that replaces everything up to `cursor`; `head` is the number of the last event so far, -1: none.

    `owners` are the `consents` and `jobs` that the Run waits for.
    """
    snapshot: dict[str, Any] = {"run": row.to_json(), "head": cursor.seq, "consents": [], "jobs": [], **(owners or {})}
    text = _encode({"type": "resync", "cursor": str(cursor), "snapshot": snapshot})
    return Message(What.RESYNC, text, str(cursor))


def end(status: str) -> Message:
    """The Run has ended; nothing follows."""
    return Message(What.END, _encode({"type": "end", "status": status}))


def changed(one: Changed) -> Message:
    """A Run's new standing, for readers of all Runs."""
    return Message(What.RUN, _encode({"type": "run", "cursor": one.cursor, **one.to_json()}), one.cursor)


def row(name: str, cursor: str, told: Mapping[str, Any]) -> Message:
    """The new standing of a row of another table, with its `type`."""
    return Message(What.ROW, _encode({"type": name, "cursor": cursor, **told}), cursor)


def snapshot(name: str, cursor: str, rows: Iterable[Mapping[str, Any]]) -> Message:
    """The snapshot of a list of such rows."""
    text = _encode({"type": "resync", "cursor": cursor, "snapshot": {name: list(rows)}})
    return Message(What.RESYNC, text, cursor)


def newest(cursor: str, rows: Iterable[Changed]) -> Message:
    """The snapshot of the list of Runs."""
    snapshot = {"runs": [one.to_json() for one in rows]}
    return Message(What.RESYNC, _encode({"type": "resync", "cursor": cursor, "snapshot": snapshot}), cursor)
