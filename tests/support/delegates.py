"""A second kind of wait for tests, over a table of its own: what delegation will be, reduced to what the port asks."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from runs.ledger.ledger import Ledger
from runs.ledger.script import Script, Statement
from runs.patterns import Verdict, Wait
from runs.reads import Reads
from runs.states import RunStatus
from runs.waits import Ask, Pending, Place
from tests.support.vessel_parts import Parts

TABLE = """
create table if not exists test_job (
    id uuid primary key, run_id uuid not null, visit int not null, status text not null default 'running')
"""


@dataclass(frozen=True, kw_only=True)
class AwaitJob[L: str](Wait[L]):
    """Wait for a delegated job."""

    kind: ClassVar[str] = "delegate"

    def request(self) -> dict[str, Any]:
        return {}


async def nothing(_run_id: uuid.UUID) -> None:
    """An authority that has nothing to stop."""


@dataclass
class Delegates:
    """The kind `delegate`; `on_halt` is what its runtime does when it is told to stop."""

    on_halt: Callable[[uuid.UUID], Awaitable[None]] = nothing
    halted: list[uuid.UUID] = field(default_factory=list[uuid.UUID])

    name: ClassVar[str] = "delegate"
    status: ClassVar[RunStatus] = RunStatus.AWAITING_DELEGATE
    park_proof: ClassVar[str] = (
        "select 1 from test_job o where o.id = %(owner)s::uuid and o.run_id = %(run)s::uuid"
        " and o.status <> 'cancelled' for share of o"
    )
    resume_proof: ClassVar[str] = (
        "select 1 from test_job o where o.id = %(owner)s::uuid and o.run_id = %(run)s::uuid"
        " and o.status = 'succeeded' for share of o"
    )

    def prove(self, request: Mapping[str, Any]) -> None:
        del request

    def open(self, ask: Ask) -> Script[bool]:
        yield Statement(
            "insert into test_job (id, run_id, visit) values (%(id)s::uuid, %(run)s::uuid, %(visit)s::int)"
            " on conflict do nothing returning id",
            {"id": str(ask.owner_id), "run": str(ask.run_id), "visit": ask.visit},
        )
        return False

    async def answer(self, reads: Reads, owner_id: uuid.UUID) -> Verdict | None:
        found = await reads.fetch_one("select status from test_job where id = %(id)s::uuid", {"id": str(owner_id)})
        if found is None or found[0] != "succeeded":
            return None
        return Verdict(
            owner=owner_id,
            granted=True,
            status="succeeded",
            by="job",
            at=datetime.now(UTC),
            comment="",
            surface="",
            digest="",
            shown={},
        )

    async def describe(self, reads: Reads, owner_id: uuid.UUID) -> dict[str, Any] | None:
        del reads
        return {"id": str(owner_id)}

    async def tick(self, ledger: Ledger, reads: Reads, limit: int, after: Place | None = None) -> Iterable[Pending]:
        del ledger
        since, last = after or (None, None)
        rows = await reads.fetch_all(
            "select r.id, j.id, (r.wait_since, j.id) from runs_run r join test_job j on j.id = r.wait_owner"
            " where r.status = 'awaiting_delegate' and j.status = 'succeeded' and (%(since)s::timestamptz is null"
            " or (r.wait_since, j.id) > (%(since)s::timestamptz, %(last)s::uuid))"
            " order by r.wait_since, j.id limit %(limit)s::int",
            {"limit": limit, "since": since, "last": last},
        )
        return [Pending(*row) for row in rows]

    async def is_latest(self, reads: Reads, run_id: uuid.UUID, owner_id: uuid.UUID) -> bool:
        found = await reads.fetch_one(
            "select id, status from test_job where run_id = %(run)s::uuid order by visit desc limit 1",
            {"run": str(run_id)},
        )
        return found is not None and found[0] == owner_id and found[1] != "cancelled"

    async def strays(self, reads: Reads, limit: int) -> list[uuid.UUID]:
        rows = await reads.fetch_all(
            "select r.id from runs_run r left join test_job j on j.id = r.wait_owner"
            " where r.status = 'awaiting_delegate' and j.id is null limit %(limit)s::int",
            {"limit": limit},
        )
        return [row[0] for row in rows]

    def contain(self, run_id: uuid.UUID, principal: str) -> Script[int]:
        del principal
        rows = yield Statement(
            "update test_job set status = 'cancelled' where run_id = %(run)s::uuid and status = 'running' returning id",
            {"run": str(run_id)},
        )
        return len(rows)

    async def halt(self, run_id: uuid.UUID, principal: str) -> None:
        del principal
        self.halted.append(run_id)
        await self.on_halt(run_id)


async def job_table(parts: Parts) -> None:
    """Make the table of the kind."""
    await parts.rows(TABLE)


async def job_of(parts: Parts, run_id: uuid.UUID) -> Any:
    """The newest job of a Run."""
    found = await parts.rows("select * from test_job where run_id = %s order by visit desc limit 1", run_id)
    return found[0] if found else None


class Faulty:
    """Something that fails the first `times`, with `error`; then does nothing."""

    def __init__(self, times: int, error: Callable[[], BaseException]) -> None:
        self.left, self._error = times, error

    async def __call__(self, *_: Any) -> None:
        await asyncio.sleep(0)
        if self.left:
            self.left -= 1
            raise self._error()
