"""The port between the evidence writer and the database: the row, the answers, the one call.

Structural on purpose: the store lives on a lower floor and imports nothing from here; it answers in the words of
`Appended`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID


class StepRow(Protocol):
    """One Step to write, as the store sees it; `data` and `meta` are decoded anew at each access, the texts are not."""

    @property
    def id(self) -> UUID: ...
    @property
    def run_id(self) -> UUID: ...
    @property
    def tenant(self) -> str: ...
    @property
    def epoch(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def node(self) -> str | None: ...
    @property
    def data(self) -> dict[str, Any]: ...
    @property
    def meta(self) -> dict[str, Any]: ...
    @property
    def data_json(self) -> str: ...
    @property
    def meta_json(self) -> str: ...
    @property
    def at(self) -> datetime: ...
    @property
    def tokens_before(self) -> int: ...


class Appended(StrEnum):
    """What became of one row."""

    WRITTEN = "written"
    ALREADY = "already"  # the stored row has this event's id: an earlier try was committed
    CONFLICT = "conflict"  # another event holds this number, or the Run's one terminal Step
    NO_RUN = "no_run"


class StepStore(Protocol):
    """Where Steps are written; one statement a call."""

    async def append(self, rows: Sequence[StepRow], /) -> Sequence[str]:
        """Insert rows, all or none of them but for conflicts.

        Returns:
            A word of `Appended` for each row, in order.

        Raises:
            Unknown: the connection was lost; each row may be there or not. The same rows come again.
            Exception: the database refuses the batch; nothing of it was written. It comes again in parts.
        """
        ...
