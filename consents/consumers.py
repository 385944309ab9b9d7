"""`/ws/consents/?cursor=C`: pending and settled Consents of the caller's tenant, as they change, without an end.

The first message is a resync whose snapshot holds the pending ones and what changed last. A question of more than
16 KiB comes with `shortened` and without body, facts and effect: `GET /consents/{id}` has them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from consents import rows
from consents.rows import ConsentRow
from runs.authority import Scope
from runs.consumers import AllRows
from runs.paging import Cursor as Place
from runs.reads import Reads
from runs.stream import Message, Table, messages

LARGEST = 16 * 1024
PENDING = 200
LOG_SIZE = 4 * 1024 * 1024
PAGE = 100


@dataclass(frozen=True, slots=True)
class Told:
    """A Consent as the feed tells it."""

    row: ConsentRow

    @property
    def id(self) -> uuid.UUID:
        return self.row.id

    @property
    def updated_at(self) -> datetime:
        return self.row.updated_at

    @property
    def place(self) -> Place:
        return Place(self.row.updated_at, self.row.id)

    @property
    def cursor(self) -> str:
        return self.place.encode()

    @property
    def weight(self) -> int:
        return min(self.row.size, LARGEST)

    def to_json(self) -> dict[str, Any]:
        """In the words of the interface."""
        shortened = self.row.size > LARGEST
        told = self.row.to_json()
        if shortened:
            told |= {"body": None, "facts": None, "effect": None}
        return {**told, "shortened": shortened}


async def _changes(reads: Reads, tenant: str, after: Place, limit: int) -> list[Told]:
    return [Told(row) for row in await rows.changes(reads, tenant, after=(after.at, after.id), limit=limit)]


async def _newest(reads: Reads, tenant: str, limit: int) -> list[Told]:
    waiting = await rows.page(reads, tenant, rows.ConsentFilter("pending"), before=None, limit=PENDING)
    latest = await rows.latest(reads, tenant, limit)
    known = {row.id for row in waiting}
    return [Told(row) for row in (*waiting, *(row for row in latest if row.id not in known))]


def _changed(one: Told) -> Message:
    return messages.row("consent", one.cursor, one.to_json())


def _snapshot(cursor: str, found: Sequence[Told]) -> Message:
    return messages.snapshot("consents", cursor, [one.to_json() for one in found])


CONSENTS: Table[Told] = Table("consents", _changes, _newest, _changed, _snapshot, size=LOG_SIZE, page=PAGE)


def all_consents() -> AllRows[Told]:
    """The ASGI application of the address."""
    return AllRows(CONSENTS, Scope.CONSENTS_READ)
