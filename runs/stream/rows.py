"""The SELECTs that only streams need; lean ones, since many readers ask them. Never a payload but by `runs.reads`."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from runs.events.cursor import Cursor
from runs.paging import Cursor as Place
from runs.reads import Reads, rfc3339
from runs.states import TERMINAL


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a Run stands: its status, and the last of its stored Steps."""

    status: str
    epoch: str | None
    last: int

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.status in TERMINAL

    @property
    def next_seq(self) -> int:
        """The number that the next event of a new channel gets (EVT-7)."""
        return self.last + 1

    @property
    def cursor(self) -> Cursor:
        """The place of a reader who has seen all that is stored."""
        return Cursor(self.epoch or "0", self.last)


async def standing(reads: Reads, run_id: uuid.UUID, tenant: str) -> Standing | None:
    """None when there is no such Run in the tenant."""
    found = await reads.fetch_one(
        """
        select r.status, s.epoch, coalesce(s.seq, -1)
        from runs_run r
        left join lateral (
            select epoch, seq from runs_step where run_id = r.id order by seq desc limit 1
        ) s on true
        where r.id = %(run)s::uuid and r.tenant = %(tenant)s::text
        """,
        {"run": str(run_id), "tenant": tenant},
    )
    return Standing(*found) if found else None


async def seen_before(reads: Reads, run_id: uuid.UUID, cursor: Cursor) -> int:
    """The number of the last stored Step that a reader at `cursor` has seen; -1: none.

    Numbers of another generation count only as far as Steps of that generation are stored: what was emitted after
    them used up numbers that a later generation gave out again.
    """
    found = await reads.fetch_one(
        "select max(s.seq) from runs_step s "
        "where s.run_id = %(run)s::uuid and s.epoch = %(epoch)s::text and s.seq <= %(seq)s::bigint",
        {"run": str(run_id), "epoch": cursor.epoch, "seq": cursor.seq},
    )
    return found[0] if found and found[0] is not None else -1


@dataclass(frozen=True, slots=True)
class Changed:
    """A Run as the feed of all Runs shows it."""

    id: uuid.UUID
    pattern_key: str
    pattern_revision: str
    status: str
    source: str
    hop: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None

    # Of one size, about: their number alone bounds a log of them.
    weight = 0

    @property
    def place(self) -> Place:
        """Its key in the order of changes."""
        return Place(self.updated_at, self.id)

    @property
    def cursor(self) -> str:
        """The place of a reader who knows of this change."""
        return self.place.encode()

    def to_json(self) -> dict[str, Any]:
        """In the words of the interface."""
        return {
            "id": str(self.id),
            "pattern": {"key": self.pattern_key, "revision": self.pattern_revision},
            "status": self.status,
            "source": self.source,
            "hop": self.hop,
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
            "finished_at": rfc3339(self.finished_at),
        }


_CHANGED = """
    select r.id, r.pattern_key, r.pattern_revision, r.status, r.source, r.enqueue_seq,
           r.created_at, r.updated_at, r.finished_at
    from runs_run r
    where r.tenant = %(tenant)s::text
"""
CHANGES_AFTER = _CHANGED + (
    "and (r.updated_at, r.id) > (%(at)s::timestamptz, %(id)s::uuid) order by r.updated_at, r.id limit %(limit)s::int"
)
NEWEST = _CHANGED + "order by r.updated_at desc, r.id desc limit %(limit)s::int"


async def changes_after(reads: Reads, tenant: str, after: Place, limit: int) -> list[Changed]:
    """Runs of a tenant that changed after a place, in the order of their last change."""
    params = {"tenant": tenant, "at": after.at, "id": str(after.id), "limit": limit}
    return [Changed(*found) for found in await reads.fetch_all(CHANGES_AFTER, params)]


async def newest(reads: Reads, tenant: str, limit: int) -> list[Changed]:
    """The Runs of a tenant that changed last, the latest first."""
    return [Changed(*found) for found in await reads.fetch_all(NEWEST, {"tenant": tenant, "limit": limit})]


async def clock(reads: Reads) -> datetime:
    """The time of the database, whose word `updated_at` is."""
    found = await reads.fetch_one("select now()")
    return found[0] if found else datetime.now(UTC)
