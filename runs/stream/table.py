"""What a feed is of: how to read the changes of a table, and how to tell them. `RUNS` is the feed of all Runs."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from runs.paging import Cursor as Place
from runs.reads import Reads
from runs.stream import messages
from runs.stream.messages import Message
from runs.stream.rows import Changed, changes_after, newest

REPLAY = 1024
PAGE = 500


class Row(Protocol):
    """A row of a feed, small or bounded by its `weight` (characters)."""

    @property
    def id(self) -> uuid.UUID: ...

    @property
    def updated_at(self) -> datetime: ...

    @property
    def place(self) -> Place: ...

    @property
    def cursor(self) -> str: ...

    @property
    def weight(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Table[T: Row]:
    """What a feed is of.

    Attributes:
        name: for logs.
        changes_after: rows of a tenant after a place, in the order of their last change, at most so many.
        newest: the rows of a tenant that the first message holds, the latest first.
        changed: a row as a message.
        snapshot: the first message, from its cursor and rows.
        size: most characters that the log of changes holds.
    """

    name: str
    changes_after: Callable[[Reads, str, Place, int], Awaitable[list[T]]]
    newest: Callable[[Reads, str, int], Awaitable[list[T]]]
    changed: Callable[[T], Message]
    snapshot: Callable[[str, Sequence[T]], Message]
    size: int = REPLAY
    page: int = PAGE


RUNS: Table[Changed] = Table("runs", changes_after, newest, messages.changed, messages.newest)
