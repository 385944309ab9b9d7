"""Evidence on a real PostgreSQL: the bus, the writer and the store together."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection as django_connection
from psycopg.conninfo import make_conninfo

from runs.errors import EvidenceFailed
from runs.events.bus import Kind, Repaired, RunEventBus, TerminalTruth
from runs.events.evidence import EvidenceWriter
from runs.ledger.connection import LedgerConnection
from runs.ledger.steps import Steps
from runs.models import Run
from tests.support.waiting import eventually


@pytest.fixture
def dsn(transactional_db: None) -> str:
    return make_conninfo(os.environ["DATABASE_URL"], dbname=django_connection.settings_dict["NAME"])


@pytest.fixture
def runs(transactional_db: None) -> list[UUID]:
    return [
        Run.objects.create(
            pattern_key="p",
            pattern_revision="1",
            pattern_digest="d" * 64,
            manifest={},
            source="test",
            surface="test",
            sigil_name="tester",
            intent={},
            request_digest="r" * 64,
            input={},
            queue_name="runs",
        ).id
        for _ in range(3)
    ]


class Desk:
    def __init__(self, dsn: str, watcher: psycopg.AsyncConnection[Any]) -> None:
        self.own = LedgerConnection(dsn, "evidence", patience=0)
        self.writer = EvidenceWriter(Steps(self.own), first_delay=0.01)
        self.bus = RunEventBus(evidence=self.writer)
        self.watcher = watcher

    async def steps(self, run: UUID) -> list[tuple[Any, ...]]:
        cursor = await self.watcher.execute(
            "select seq, kind, data, tokens_before from runs_step where run_id = %s order by ctid", [run]
        )
        return await cursor.fetchall()

    async def seqs(self, run: UUID) -> list[int]:
        return [row[0] for row in await self.steps(run)]

    async def truth(self, run: UUID, status: str) -> TerminalTruth:
        steps = await self.steps(run)
        stored = next((data["status"] for _, kind, data, _ in steps if kind == "done"), None)
        return TerminalTruth(status, max((seq for seq, *_ in steps), default=-1) + 1, stored=stored)


@pytest.fixture
async def desk(dsn: str) -> AsyncIterator[Desk]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watcher:
        desk = Desk(dsn, watcher)
        yield desk
        async with asyncio.timeout(10):
            await desk.writer.drain()
            await desk.writer.stop()
            await desk.own.close()


@pytest.mark.contract("EVT-6", "EVT-7", "EVT-8")
async def test_many_runs_evidence_is_stored_in_order_without_tokens_when_the_barrier_opens(
    desk: Desk, runs: list[UUID]
) -> None:
    for run in runs:
        desk.bus.open(run, tenant="default", next_seq=5)
    for n in range(50):
        for run in runs:
            desk.bus.emit(run, Kind.TOKEN, data={"text": "x"})
            desk.bus.emit(run, Kind.PROGRESS, node="count", data={"n": n, "é": "\N{GRINNING FACE}"})
    for run in runs:
        desk.bus.finish(run, "done")
        await desk.bus.settle(run)
    for run in runs:
        steps = await desk.steps(run)
        assert [seq for seq, *_ in steps] == [*range(6, 105, 2), 105]
        assert [tokens for *_, tokens in steps] == [1] * 50 + [0]
        assert steps[7][2] == {"n": 7, "é": "\N{GRINNING FACE}"}
        assert steps[-1][1:3] == ("done", {"status": "done"})
    assert desk.writer.stats().batches < 100


@pytest.mark.contract("EVT-9")
async def test_what_the_database_refuses_costs_one_step_and_no_other_run(desk: Desk, runs: list[UUID]) -> None:
    bad, good, gone = runs[0], runs[1], uuid.uuid4()
    for run in (bad, good, gone):
        desk.bus.open(run, tenant="default")
    for n in range(9):
        desk.bus.emit(good, Kind.LOG, data={"n": n})
        event = desk.bus.emit(bad, Kind.LOG, data={"n": n})
        assert event is not None
        if n == 4:
            # Past the net that escapes such text when it is emitted.
            object.__setattr__(event, "data_json", '{"text":"\\u0000"}')
    desk.bus.emit(gone, Kind.LOG)
    await desk.bus.settle(good)
    with pytest.raises(EvidenceFailed) as refused:
        await desk.bus.settle(bad)
    assert refused.value.facts["seq"] == 4
    with pytest.raises(EvidenceFailed, match="gone"):
        await desk.bus.settle(gone)
    assert await desk.seqs(good) == list(range(9))
    assert await desk.seqs(bad) == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.contract("EVT-6", "EVT-9")
async def test_a_connection_that_is_killed_in_mid_batch_loses_and_doubles_nothing(desk: Desk, runs: list[UUID]) -> None:
    for run in runs:
        desk.bus.open(run, tenant="default")
        desk.bus.emit(run, Kind.LOG)
    await asyncio.gather(*(desk.bus.settle(run) for run in runs))
    # A foreign row lock that an insert must wait for holds the statement open until the connection is killed.
    async with desk.watcher.transaction():
        await desk.watcher.execute("select 1 from runs_run where id = %s for update", [runs[1]])
        for run in runs:
            desk.bus.emit(run, Kind.LOG)

        async def killed() -> bool:
            cursor = await desk.watcher.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name = 'lychd ledger evidence'"
                " and wait_event_type = 'Lock'"
            )
            return bool(await cursor.fetchall())

        await eventually(killed)
    async with asyncio.timeout(10):
        await asyncio.gather(*(desk.bus.settle(run) for run in runs))
    for run in runs:
        assert await desk.seqs(run) == [0, 1]


@pytest.mark.contract("EVT-6")
async def test_evidence_does_not_wait_for_an_edge_that_holds_the_run(desk: Desk, runs: list[UUID]) -> None:
    desk.bus.open(runs[0], tenant="default")
    async with desk.watcher.transaction():
        await desk.watcher.execute("select 1 from runs_run where id = %s for no key update", [runs[0]])
        desk.bus.emit(runs[0], Kind.LOG)
        async with asyncio.timeout(5):
            await desk.bus.settle(runs[0])


@pytest.mark.contract("EVT-7", "EVT-12", "EVT-13", "EVT-17")
async def test_a_fresh_process_repairs_the_terminal_step_once_after_what_is_stored(
    desk: Desk, runs: list[UUID]
) -> None:
    run = runs[0]
    desk.bus.open(run, tenant="default")
    desk.bus.emit(run, Kind.LOG)
    await desk.bus.settle(run)
    fresh = RunEventBus(evidence=desk.writer)
    repairs = [fresh.repair_terminal(run, lambda: desk.truth(run, "failed")) for _ in range(3)]
    assert set(await asyncio.gather(*repairs)) == {Repaired.WRITTEN}
    assert await fresh.repair_terminal(run, lambda: desk.truth(run, "failed")) is Repaired.NOTHING
    assert [(seq, kind, data) for seq, kind, data, _ in await desk.steps(run)] == [
        (0, "log", {}),
        (1, "done", {"status": "failed"}),
    ]


@pytest.mark.contract("SET-6", "EVT-17")
async def test_a_second_terminal_step_is_refused_by_the_database_and_the_first_stays(
    desk: Desk, runs: list[UUID]
) -> None:
    run = runs[0]
    desk.bus.open(run, tenant="default")
    desk.bus.finish(run, "done")
    await desk.bus.settle(run)
    desk.bus.open(run, tenant="default", next_seq=1)
    desk.bus.finish(run, "failed")
    with pytest.raises(EvidenceFailed):
        await desk.bus.settle(run)
    assert [(seq, data) for seq, _, data, _ in await desk.steps(run)] == [(0, {"status": "done"})]
