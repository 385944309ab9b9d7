"""The pages of recovery: each looks at so many Runs whatever it finds, and together they miss none."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from runs import ids
from runs.connections import Reads
from runs.ledger.checkpoint import SAVE_CHECKPOINT, SaveCheckpoint
from runs.reads import UNFINISHED
from runs.recovery import rows
from runs.recovery.rows import Unproved
from runs.states import RunStatus
from tests.support.ledger import CASES, Hop, LedgerDesk

S = RunStatus


@pytest.fixture
async def reads(desk: LedgerDesk) -> AsyncIterator[Reads]:
    reads = Reads(desk.dsn, size=1)
    await reads.open()
    yield reads
    await reads.close()


def told(desk: LedgerDesk, hop: Hop, status: str) -> None:
    """Give a Run its terminal Step."""
    desk.execute(
        "insert into runs_step (id, run_id, tenant, epoch, seq, tokens_before, kind, data, meta, at) "
        "values (%s, %s, 'default', 'e', 0, 0, 'done', %s, '{}', now())",
        ids.mint(),
        hop.run_id,
        json.dumps({"status": status}),
    )


async def all_pages[T](
    page: Callable[..., Awaitable[tuple[list[T], uuid.UUID | None]]], reads: Reads, limit: int
) -> list[list[T]]:
    """What each page found, the last and empty one left out."""
    found: list[list[T]] = []
    after: uuid.UUID | None = rows.FIRST
    while True:
        ours, after = await page(reads, after=after, limit=limit)
        if after is None:
            assert ours == []
            return found
        found.append(ours)


@pytest.mark.contract("REC-25")
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_every_end_is_looked_at_and_those_that_no_step_tells_are_named(
    desk: LedgerDesk, reads: Reads, limit: int
) -> None:
    hops = [desk.a_run(status=S.FAILED if place % 3 == 0 else S.DONE) for place in range(7)]
    hops.sort(key=lambda hop: hop.run_id)
    for unfinished in (S.QUEUED, S.RUNNING):
        desk.a_run(status=unfinished)
    statuses: list[Any] = [desk.row(hop).run["status"] for hop in hops]
    for place in (0, 1, 4, 5):
        told(desk, hops[place], statuses[place])
    told(desk, hops[6], "cancelled")
    pages = await all_pages(rows.unproved_ends, reads, limit)
    assert [end for page in pages for end in page] == [
        Unproved(hops[2].run_id, statuses[2], None),
        Unproved(hops[3].run_id, statuses[3], None),
        Unproved(hops[6].run_id, statuses[6], "cancelled"),
    ]
    assert len(pages) == -(-len(hops) // limit)


@pytest.mark.contract("SET-2")
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_what_ended_runs_left_is_found_beside_any_number_of_unfinished_ones(
    desk: LedgerDesk, reads: Reads, limit: int
) -> None:
    kept = {desk.a_run(status=S.DONE).run_id, desk.a_run(status=S.FAILED).run_id}
    for _ in range(3):
        hop = desk.a_run(status=S.RUNNING)
        desk.statement(SAVE_CHECKPOINT, SaveCheckpoint(hop.run_id, hop.seq, hop.claim_id, "[]"))
    journal = desk.a_run(status=S.RUNNING)
    for name in ("journal", "settle_done"):
        desk.statement(CASES[name].edge, CASES[name].request(journal))
    pages = await all_pages(rows.kept_checkpoints, reads, limit)
    assert [found for page in pages for found in page] == [(run_id, 0) for run_id in sorted({*kept, journal.run_id})]
    assert len(pages) == -(-6 // limit)


def test_unfinished_runs_are_asked_for_as_the_index_of_them_is_built(desk: LedgerDesk) -> None:
    built = desk.value(
        "select pg_get_expr(indpred, indrelid) from pg_index where indexrelid = 'runs_run_live'::regclass"
    )
    assert set(re.findall(r"'(\w+)'", built)) == set(re.findall(r"'(\w+)'", UNFINISHED))
