"""What the facade relies on in SAQ, asked of SAQ itself: these tests notice a release that changes it."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from saq.job import Job, Status
from saq.queue.postgres import PostgresQueue
from saq.worker import Worker

from runs.broker.probe import Probe
from runs.broker.publish import Publisher
from runs.broker.queue import LaneQueue
from tests.support.broker import Stage, row, running, status, stock_queue
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.broker_fixtures"]


def test_the_facade_was_read_against_this_saq() -> None:
    assert version("saq").startswith("0.26.")
    worker = Worker(PostgresQueue(url="postgresql://nowhere"), [])
    for name in ("tasks", "event", "job_task_contexts", "functions", "_process", "_stop_lock", "context"):
        assert hasattr(worker, name), name


async def test_stock_enqueue_revives_a_finished_row_and_ours_never_does(broker_dsn: str, publisher: Publisher) -> None:
    async with stock_queue(broker_dsn) as queue:
        job = await queue.enqueue("f", key="run:x:1")
        assert job is not None
        await queue.finish(job, Status.COMPLETE)
        assert await queue.enqueue("f", key="run:x:1") is not None
    run = uuid4()
    async with stock_queue(broker_dsn) as queue:
        await publisher.enqueue(run, 1, "runs", 50)
        job = await queue.job(f"run:{run}:1")
        assert job is not None
        await queue.finish(job, Status.COMPLETE)
        again = await publisher.enqueue(run, 1, "runs", 50)
        assert (again.outcome, again.status) == ("exists", "complete")


async def test_stock_abort_turns_a_complete_row_into_an_aborting_one(broker_dsn: str) -> None:
    async with stock_queue(broker_dsn) as queue:
        job = await queue.enqueue("f", key="done")
        assert job is not None
        await queue.finish(job, Status.COMPLETE)
        await queue.abort(job, "too late")
        assert (await queue.job("done")).status is Status.ABORTING  # type: ignore[union-attr]


@pytest.mark.contract("QUE-2")
async def test_stock_connect_skips_its_tables_behind_a_held_lock_and_ours_makes_them(broker_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(broker_dsn, autocommit=True) as other:
        await other.execute("SELECT pg_advisory_lock(0, 0)")
        async with stock_queue(broker_dsn):
            found = await (await other.execute("SELECT to_regclass('saq_jobs')")).fetchone()
            assert found == (None,)
        lane = LaneQueue(broker_dsn, "runs", slots=1, boot_id="b", worker_id="w")
        await lane.connect()
        try:
            found = await (await other.execute("SELECT to_regclass('saq_jobs') IS NOT NULL")).fetchone()
            assert found == (True,)
        finally:
            await lane.disconnect()


async def test_two_vessels_may_make_the_tables_at_once(broker_dsn: str) -> None:
    lanes = [LaneQueue(broker_dsn, "runs", slots=1, boot_id=str(n), worker_id=str(n)) for n in range(4)]
    try:
        await asyncio.gather(*(lane.connect() for lane in lanes))
    finally:
        await asyncio.gather(*(lane.disconnect() for lane in lanes))


@pytest.mark.contract("ADM-13")
async def test_stock_saq_reads_counts_and_lists_every_state_of_our_rows(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    gone, live, fails, aborted, done = (uuid4() for _ in range(5))
    stage = Stage(passing=False)

    async def perform(run_id: Any, seq: int) -> dict[str, Any]:
        if run_id == live:
            return await stage(run_id, seq)
        if run_id == fails:
            raise ValueError("no\x00good")
        return {"outcome": "done", "note": "ünïcode"}

    async with running(broker_dsn, perform), stock_queue(broker_dsn) as stock:
        for run in (live, fails, done):
            await publisher.enqueue(run, 1, "runs", 70)
        await eventually(lambda: stage.running)
        await eventually(lambda: _is(onlooker, done, "complete"))
        await eventually(lambda: _is(onlooker, fails, "failed"))
        await publisher.enqueue(gone, 1, "rites", 0)
        jobs = await stock.jobs([f"run:{run}:1" for run in (live, fails, done)])
        assert [job.status for job in jobs if job] == [Status.ACTIVE, Status.FAILED, Status.COMPLETE]
        active, failed, complete = (job for job in jobs if job)
        assert active.worker_id == "runs@boot-1"
        assert active.meta == {"boot": "boot-1"}
        assert active.attempts == 1
        assert active.started >= active.queued - 5_000
        assert active.touched == active.started
        assert (active.retries, active.timeout, active.heartbeat, active.ttl, active.priority) == (0, 0, 120, 600, 30)
        assert not active.stuck
        assert "no\\0good" in (failed.error or "")
        assert complete.result == {"outcome": "done", "note": "ünïcode"}
        assert complete.progress == 1.0
        assert complete.completed >= complete.started
        info = await stock.info(jobs=True)
        assert (info["active"], info["queued"]) == (1, 0)
        assert [job["key"] for job in info["jobs"]] == [f"run:{live}:1"]
        assert len([job async for job in stock.iter_jobs()]) == 3
        # A stock heartbeat and a stock abort of our live row.
        await active.update()
        await stock.abort(active, "from outside")
        assert await status(onlooker, f"run:{live}:1") == "aborting"
        assert (await Probe(publisher.pool).statuses([f"run:{live}:1"]))[f"run:{live}:1"].status == "aborting"
        stage.gate.set()
    del aborted


async def _is(conn: psycopg.AsyncConnection, run: Any, wanted: str) -> bool:
    return await status(conn, f"run:{run}:1") == wanted


async def test_a_stock_worker_can_run_what_we_published(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    class Quiet(Worker[Any]):
        SIGNALS = []

    seen: list[dict[str, Any]] = []

    async def perform_run(_: Any, **kwargs: Any) -> str:
        seen.append(kwargs)
        return "ok"

    run = uuid4()
    await publisher.enqueue(run, 4, "rites", 50)
    async with stock_queue(broker_dsn, "rites") as queue:
        worker = Quiet(queue, [("perform_run", perform_run)], concurrency=1)
        launcher = asyncio.create_task(worker.start())
        try:
            await eventually(lambda: _complete(onlooker, f"run:{run}:4"))
        finally:
            launcher.cancel()
            await launcher
    assert seen == [{"run_id": str(run), "seq": 4}]


async def _complete(conn: psycopg.AsyncConnection, key: str) -> bool:
    return await status(conn, key) == "complete"


@pytest.mark.contract("CLM-2")
async def test_a_job_of_stock_saq_with_the_old_resume_argument_is_run(
    broker_dsn: str, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(), uuid4()
    async with stock_queue(broker_dsn) as stock:
        await stock.enqueue("perform_run", key=f"run:{run}:2", run_id=str(run), seq=2, resume=True, retries=0)
    async with running(broker_dsn, stage):
        await eventually(lambda: _complete(onlooker, f"run:{run}:2"))
    assert stage.started == [(run, 2)]


async def test_the_words_on_the_channel_are_saqs(publisher: Publisher, onlooker: psycopg.AsyncConnection) -> None:
    await onlooker.execute('LISTEN "saq:runs"')
    await onlooker.execute('LISTEN "saq:rites"')
    hops = [(uuid4(), queue) for queue in ("runs", "rites") for _ in range(10)]
    await asyncio.gather(*(publisher.enqueue(run, 1, queue, 50) for run, queue in hops))
    notes = [(note.channel, note.payload) async for note in onlooker.notifies(timeout=0.3)]
    # One batch, so one word a queue, however many hops.
    assert sorted(notes) == [("saq:rites", "saq:enqueue"), ("saq:runs", "saq:enqueue")]


def test_the_dsn_of_the_tests_is_a_direct_one(broker_dsn: str) -> None:
    assert conninfo_to_dict(broker_dsn)["dbname"].startswith("lychd_broker_")


async def test_stock_job_keys_are_unique_over_queues(broker_dsn: str, publisher: Publisher) -> None:
    run = uuid4()
    await publisher.enqueue(run, 1, "rites", 50)
    async with stock_queue(broker_dsn, "runs") as queue:
        assert await queue.enqueue(Job("f", key=f"run:{run}:1")) is None
    other = await publisher.enqueue(run, 1, "runs", 50)
    assert (other.outcome, other.queue) == ("exists", "rites")
    view = await Probe(publisher.pool).status(run, 1, "runs")
    assert view is not None
    assert view.queue == "rites"
    assert await row_of(publisher, run) is not None


async def row_of(publisher: Publisher, run: Any) -> Any:
    async with publisher.pool.connection() as conn:
        return await row(conn, f"run:{run}:1")
