from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from saq.job import Job

from runs.broker.aborts import AbortDecision
from runs.broker.jobs import MissingQueue
from runs.broker.probe import Probe
from runs.broker.publish import Publisher
from runs.broker.worker import Pace
from runs.errors import Degraded, Unknown
from tests.support.broker import STILL, Stage, backends, row, running, status
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.broker_fixtures"]


@pytest.fixture
def probe(publisher: Publisher) -> Probe:
    return Probe(publisher.pool)


@pytest.mark.contract("QUE-4")
async def test_aborting_queued_work_ends_it_at_once(
    publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection
) -> None:
    key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
    result = await probe.abort(key, "not wanted", wait=0)
    assert (result.decision, result.status) == ("aborted", "aborted")
    found = await row(onlooker, key)
    assert found is not None
    assert found[0] == "aborted"
    assert found[1]["error"] == "not wanted"
    assert found[1]["completed"] > 0
    expires = await (await onlooker.execute("SELECT expire_at FROM saq_jobs WHERE key = %s", (key,))).fetchone()
    assert expires is not None
    assert expires[0] is not None


@pytest.mark.contract("QUE-4")
async def test_aborting_missing_work_changes_nothing(probe: Probe, onlooker: psycopg.AsyncConnection) -> None:
    result = await probe.abort("run:nobody:1", "not wanted", wait=0)
    assert (result.decision, result.status) == (AbortDecision.MISSING, None)
    assert await status(onlooker, "run:nobody:1") is None


@pytest.mark.contract("QUE-4")
@pytest.mark.parametrize("state", ["aborted", "failed", "complete"])
async def test_aborting_finished_work_changes_nothing(
    publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection, state: str
) -> None:
    key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
    await onlooker.execute("UPDATE saq_jobs SET status = %s WHERE key = %s", (state, key))
    before = await row(onlooker, key)
    assert (await probe.abort(key, "too late", wait=0)).decision is AbortDecision.TERMINAL
    assert (await probe.fence_orphan(key, "too late")).decision is AbortDecision.TERMINAL
    assert await row(onlooker, key) == before


@pytest.mark.contract("QUE-4")
async def test_an_abort_that_meets_a_finish_waits_for_the_row_and_judges_what_it_became(
    publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection, broker_dsn: str
) -> None:
    key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
    await onlooker.execute("UPDATE saq_jobs SET status = 'active' WHERE key = %s", (key,))
    async with await psycopg.AsyncConnection.connect(broker_dsn) as worker:
        await worker.execute("UPDATE saq_jobs SET status = 'complete' WHERE key = %s", (key,))
        abort = asyncio.create_task(probe.abort(key, "racing", wait=1))
        await eventually(lambda: _somebody_waits(onlooker))
        await worker.commit()
        assert (await abort).decision is AbortDecision.TERMINAL
    assert await status(onlooker, key) == "complete"


async def _somebody_waits(onlooker: psycopg.AsyncConnection) -> bool:
    rows = await onlooker.execute(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return bool(await rows.fetchall())


@pytest.mark.contract("QUE-4")
async def test_the_facades_abort_replaces_saqs_and_returns_its_decision(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    async with running(broker_dsn, Stage()) as lanes:
        run = uuid4()
        key = (await publisher.enqueue(run, 1, "runs", 50)).key
        await eventually(lambda: _has(onlooker, key, "complete"))
        queue = lanes.queues["runs"]
        assert (await queue.abort(Job("perform_run", key=key, queue=queue), "late")).decision is AbortDecision.TERMINAL
        assert await status(onlooker, key) == "complete"


async def _has(onlooker: psycopg.AsyncConnection, key: str, wanted: str) -> bool:
    return await status(onlooker, key) == wanted


@pytest.mark.contract("QUE-5")
async def test_aborting_active_work_returns_after_the_ghoul_has_ended_and_by_a_wake_up(
    broker_dsn: str, publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(passing=False), uuid4()
    # STILL: no lane polls, so only the word of the abort can have reached the worker.
    async with running(broker_dsn, stage, pace=STILL):
        key = (await publisher.enqueue(run, 1, "runs", 50)).key
        await eventually(lambda: stage.running)
        result = await probe.abort(key, "cancelled by ann", wait=5)
        assert (result.decision, result.status) == ("aborting", "aborted")
        assert stage.running == 0
        found = await row(onlooker, key)
        assert found is not None
        assert found[1]["error"] == "cancelled by ann"
        # The slot lives on.
        stage.gate.set()
        other = uuid4()
        await publisher.enqueue(other, 1, "runs", 50)
        await eventually(lambda: other in stage.ended)


@pytest.mark.contract("QUE-5")
async def test_a_worker_that_missed_the_word_finds_the_abort_by_looking(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(passing=False), uuid4()
    async with running(broker_dsn, stage, pace=Pace(abort=0.05)):
        key = (await publisher.enqueue(run, 1, "runs", 50)).key
        await eventually(lambda: stage.running)
        await onlooker.execute("UPDATE saq_jobs SET status = 'aborting' WHERE key = %s", (key,))
        await eventually(lambda: _has(onlooker, key, "aborted"))


@pytest.mark.contract("QUE-5")
async def test_s199_active_work_that_never_acknowledges_is_a_timeout_not_a_success(
    broker_dsn: str, publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection
) -> None:
    release = asyncio.Event()
    started = asyncio.Event()

    async def stubborn(run_id: UUID, seq: int) -> dict[str, Any]:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return {"outcome": "done"}

    async with running(broker_dsn, stubborn):
        key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
        await started.wait()
        with pytest.raises(TimeoutError, match=key):
            await probe.abort(key, "stop", wait=0.3)
        assert await status(onlooker, key) == "aborting"
        release.set()
        # It returned as if nothing had been asked; the row still acknowledges the abort.
        await eventually(lambda: _has(onlooker, key, "aborted"))


@pytest.mark.contract("QUE-6")
async def test_fencing_an_orphan_ends_its_row_without_waiting(
    publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection
) -> None:
    key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
    await onlooker.execute("UPDATE saq_jobs SET status = 'active' WHERE key = %s", (key,))
    result = await probe.fence_orphan(key, "boot-0 is gone")
    assert (result.decision, result.status) == ("aborted", "aborted")
    assert await status(onlooker, key) == "aborted"


async def test_a_live_job_whose_row_was_fenced_is_ended_and_does_not_overwrite_the_fence(
    broker_dsn: str, publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection
) -> None:
    stage = Stage(passing=False)
    async with running(broker_dsn, stage) as lanes:
        key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
        await eventually(lambda: stage.running)
        await probe.fence_orphan(key, "fenced")
        await eventually(lambda: stage.running == 0)
        await lanes.queues["runs"].pump.settled()
        found = await row(onlooker, key)
        assert found is not None
        assert (found[0], found[1]["error"]) == ("aborted", "fenced")


@pytest.mark.contract("CAN-17")
async def test_probing_a_lane_that_does_not_exist_is_an_error_not_an_absence(probe: Probe) -> None:
    with pytest.raises(MissingQueue):
        await probe.status(uuid4(), 1, "heavy")


async def test_one_query_answers_for_rows_of_both_lanes_and_unreadable_ones(
    publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection
) -> None:
    one = (await publisher.enqueue(uuid4(), 1, "runs", 70)).key
    two = (await publisher.enqueue(uuid4(), 1, "rites", 20)).key
    odd = (await publisher.enqueue(uuid4(), 1, "rites", 20)).key
    await onlooker.execute("UPDATE saq_jobs SET job = '\\xff00'::bytea WHERE key = %s", (odd,))
    views = await probe.statuses([one, two, odd, "run:absent:1"])
    assert set(views) == {one, two, odd}
    assert (views[one].queue, views[one].priority, views[one].status) == ("runs", 30, "queued")
    assert views[one].started_ms is None
    assert views[one].boot is None
    assert (views[two].queue, views[two].priority) == ("rites", 80)
    assert (views[odd].status, views[odd].queued_ms) == ("queued", None)
    assert await probe.statuses([]) == {}


@pytest.mark.contract("CLM-14")
async def test_a_view_of_live_work_names_the_boot_that_took_it(
    broker_dsn: str, publisher: Publisher, probe: Probe
) -> None:
    stage, run = Stage(passing=False), uuid4()
    async with running(broker_dsn, stage, boot_id="boot-77"):
        await publisher.enqueue(run, 1, "runs", 50)
        await eventually(lambda: stage.running)
        view = await probe.status(run, 1, "runs")
        assert view is not None
        assert (view.status, view.boot, view.worker) == ("active", "boot-77", "runs@boot-77")
        assert view.started_ms is not None
        assert view.started_ms == view.touched_ms
        stage.gate.set()


async def test_probes_go_on_after_the_server_dropped_every_connection(
    publisher: Publisher, probe: Probe, onlooker: psycopg.AsyncConnection
) -> None:
    run = uuid4()
    key = (await publisher.enqueue(run, 1, "runs", 50)).key
    for pid in await backends(onlooker, "lychd publication"):
        await onlooker.execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert await probe.status(run, 1, "runs") is not None
    assert (await probe.abort(key, "x", wait=0)).decision is AbortDecision.ABORTED


@pytest.mark.contract("CAN-16")
async def test_an_abort_that_cannot_get_the_row_in_time_is_unknown(
    publisher: Publisher, onlooker: psycopg.AsyncConnection, broker_dsn: str
) -> None:
    impatient = Probe(publisher.pool, within=0.2)
    key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
    async with await psycopg.AsyncConnection.connect(broker_dsn) as holder:
        await holder.execute("SELECT 1 FROM saq_jobs WHERE key = %s FOR UPDATE", (key,))
        with pytest.raises(Unknown):
            await impatient.abort(key, "x", wait=5)
        await holder.rollback()
    assert await status(onlooker, key) == "queued"


async def test_a_broker_that_cannot_be_read_is_degraded_not_absent(publisher: Publisher, probe: Probe) -> None:
    await publisher.close()
    with pytest.raises(Degraded):
        await probe.status(uuid4(), 1, "runs")
