from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import structlog
from saq.job import Status

from runs.broker import statements
from runs.broker.lanes import Lanes
from runs.broker.pools import lane_pool
from runs.broker.publish import Publisher
from runs.broker.queue import LaneQueue
from runs.broker.worker import Pace
from tests.support.broker import STILL, Stage, backends, row, running, status, stock_queue
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.broker_fixtures"]


async def _is(onlooker: psycopg.AsyncConnection, key: str, wanted: str) -> bool:
    return await status(onlooker, key) == wanted


@pytest.mark.contract("TOP-1", "TOP-5", "REC-1")
async def test_s237_there_are_two_workers_and_each_knows_one_function(broker_dsn: str) -> None:
    async with running(broker_dsn, Stage()) as lanes:
        assert list(lanes.workers) == ["runs", "rites"]
        for worker in lanes.workers.values():
            assert list(worker.functions) == ["perform_run"]
            assert worker.SIGNALS == []
            assert worker.cron_jobs == []


@pytest.mark.contract("TOP-5", "ADM-13", "CLM-1")
async def test_both_lanes_run_the_same_task_with_run_and_sequence(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, one, two = Stage(), uuid4(), uuid4()
    async with running(broker_dsn, stage) as lanes:
        await publisher.enqueue(one, 1, "runs", 50)
        await publisher.enqueue(two, 9, "rites", 20)
        await eventually(lambda: _is(onlooker, f"run:{one}:1", "complete"))
        await eventually(lambda: _is(onlooker, f"run:{two}:9", "complete"))
        stats = await lanes.stats()
        assert [(lane.complete, lane.active, lane.queued, lane.running) for lane in stats.values()] == [
            (1, 0, 0, True),
            (1, 0, 0, True),
        ]
    assert sorted(stage.started) == sorted([(one, 1), (two, 9)])


@pytest.mark.contract("TOP-3")
async def test_work_that_was_there_before_the_lanes_is_done(broker_dsn: str, publisher: Publisher) -> None:
    stage, run = Stage(), uuid4()
    await publisher.enqueue(run, 1, "runs", 50)
    async with running(broker_dsn, stage):
        await eventually(lambda: run in stage.ended)


@pytest.mark.contract("TOP-4")
async def test_a_lane_never_runs_more_jobs_than_it_may(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage = Stage(passing=False)
    async with running(broker_dsn, stage, runs=3) as lanes:
        runs = [uuid4() for _ in range(20)]
        await asyncio.gather(*(publisher.enqueue(run, 1, "runs", 50) for run in runs))
        await eventually(lambda: stage.running == 3)
        stats = (await lanes.stats())["runs"]
        assert (stats.active, stats.free, stats.queued, stats.concurrency) == (3, 0, 17, 3)
        # What waits is not taken in advance: it stays queued, and priority still decides.
        active = await (await onlooker.execute("SELECT count(*) FROM saq_jobs WHERE status = 'active'")).fetchone()
        assert active == (3,)
        stage.gate.set()
        await eventually(lambda: len(stage.ended) == 20)
    assert stage.most == 3


@pytest.mark.contract("ADM-42")
async def test_s235_a_high_priority_waits_for_a_running_ghoul_and_then_goes_first(
    broker_dsn: str, publisher: Publisher
) -> None:
    stage = Stage(passing=False)
    low, middle, high = uuid4(), uuid4(), uuid4()
    async with running(broker_dsn, stage, runs=1):
        await publisher.enqueue(low, 1, "runs", 20)
        await eventually(lambda: stage.has_started(low))
        await publisher.enqueue(middle, 1, "runs", 50)
        await publisher.enqueue(high, 1, "runs", 100)
        assert not stage.has_started(high)
        stage.gate.set()
        await eventually(lambda: len(stage.ended) == 3)
    assert [run for run, _ in stage.started] == [low, high, middle]


@pytest.mark.contract("TOP-4")
async def test_jobs_of_one_priority_are_started_in_their_order(broker_dsn: str, publisher: Publisher) -> None:
    stage, runs = Stage(), [uuid4() for _ in range(10)]
    for run in runs:
        await publisher.enqueue(run, 1, "runs", 50)
    async with running(broker_dsn, stage, runs=1):
        await eventually(lambda: len(stage.ended) == 10)
    assert stage.ended == runs


async def test_a_job_that_raises_fails_its_row_and_the_slot_lives_on(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    bad, good, stage = uuid4(), uuid4(), Stage()

    async def perform(run_id: UUID, seq: int) -> dict[str, Any]:
        if run_id == bad:
            raise LookupError("no such thing")
        return await stage(run_id, seq)

    async with running(broker_dsn, perform, runs=1):
        await publisher.enqueue(bad, 1, "runs", 50)
        await publisher.enqueue(good, 1, "runs", 50)
        await eventually(lambda: good in stage.ended)
        found = await row(onlooker, f"run:{bad}:1")
    assert found is not None
    assert found[0] == "failed"
    assert "LookupError: no such thing" in found[1]["error"]


@pytest.mark.parametrize("result", [{"x": "\x00"}, {"x": "\ud800"}, {"x": float("nan")}, {"x": object()}])
async def test_a_result_that_the_database_cannot_hold_is_left_out(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection, result: dict[str, Any]
) -> None:
    async def perform(run_id: UUID, seq: int) -> dict[str, Any]:
        return result

    async with running(broker_dsn, perform):
        key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
        await eventually(lambda: _is(onlooker, key, "complete"))
        found = await row(onlooker, key)
        assert found is not None
        assert found[1].get("result") is None


@pytest.mark.parametrize(
    ("function", "kwargs"),
    [("other", {}), ("perform_run", {}), ("perform_run", {"run_id": "no uuid", "seq": 1})],
)
async def test_a_foreign_job_fails_and_the_lane_lives_on(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection, function: str, kwargs: dict[str, Any]
) -> None:
    stage, run = Stage(), uuid4()
    async with stock_queue(broker_dsn) as stock:
        await stock.enqueue(function, key="run:foreign:1", retries=0, **kwargs)
    async with running(broker_dsn, stage, runs=1):
        await eventually(lambda: _is(onlooker, "run:foreign:1", "failed"))
        await publisher.enqueue(run, 1, "runs", 50)
        await eventually(lambda: run in stage.ended)


async def test_a_row_that_is_no_json_is_set_aside_and_the_lane_lives_on(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, runs = Stage(), [uuid4() for _ in range(3)]
    for number, stored in enumerate((b"{", b"\xff", json.dumps({"queue": "rites", "function": "f"}).encode())):
        await onlooker.execute(
            "INSERT INTO saq_jobs (key, job, queue, status, priority) VALUES (%s, %s, 'runs', 'queued', 0)",
            (f"run:poison:{number}", stored),
        )
    for run in runs:
        await publisher.enqueue(run, 1, "runs", 50)
    async with running(broker_dsn, stage, runs=1, pace=Pace(look=0.1)):
        await eventually(lambda: len(stage.ended) == 3)
        for number in range(3):
            assert await status(onlooker, f"run:poison:{number}") == "failed"


@pytest.mark.contract("CLM-14")
async def test_live_jobs_are_touched_again_and_again_and_no_longer_once_they_returned(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage = Stage(passing=False)
    async with running(broker_dsn, stage, runs=3, pace=Pace(beat=0.02)) as lanes:
        keys = [(await publisher.enqueue(uuid4(), 1, "runs", 50)).key for _ in range(2)]
        await eventually(lambda: stage.running == 2)
        first = [await _touched(onlooker, key) for key in keys]
        await eventually(lambda: _all_later(onlooker, keys, first))
        stage.gate.set()
        await eventually(lambda: _is(onlooker, keys[0], "complete"))
        await eventually(lambda: _is(onlooker, keys[1], "complete"))
        last = [await _touched(onlooker, key) for key in keys]
        for _ in range(3):
            await lanes.queues["runs"].pump.beat()
        assert [await _touched(onlooker, key) for key in keys] == last
        # One duty a lane, none a job.
        assert len([task for task in asyncio.all_tasks() if task.get_name().endswith(".beat")]) == 2
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("lychd.lane")]


async def _touched(onlooker: psycopg.AsyncConnection, key: str) -> int:
    found = await row(onlooker, key)
    assert found is not None
    return found[1]["touched"]


async def _all_later(onlooker: psycopg.AsyncConnection, keys: list[str], first: list[int]) -> bool:
    return all([await _touched(onlooker, key) > before for key, before in zip(keys, first, strict=True)])


@pytest.mark.contract("CLM-14")
async def test_a_heartbeat_keeps_the_aborting_status_and_the_reason(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage = Stage(passing=False)
    async with running(broker_dsn, stage) as lanes:
        key = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
        await eventually(lambda: stage.running)
        await onlooker.execute(
            "UPDATE saq_jobs SET status = 'aborting',"
            " job = convert_to((convert_from(job, 'UTF8')::jsonb || '{\"error\": \"why\"}')::text, 'UTF8')"
            " WHERE key = %s",
            (key,),
        )
        assert await lanes.queues["runs"].pump.beat() == 1
        found = await row(onlooker, key)
        assert found is not None
        assert (found[0], found[1]["error"]) == ("aborting", "why")
        stage.gate.set()


@pytest.mark.contract("CLM-14")
async def test_a_failed_refresh_is_logged_and_nothing_else(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(passing=False), uuid4()
    with structlog.testing.capture_logs() as logs:
        async with running(broker_dsn, stage) as lanes:

            async def fails() -> int:
                raise psycopg.OperationalError("no route")

            beat = asyncio.create_task(lanes.workers["runs"]._every("beat", 0.01, fails))
            await publisher.enqueue(run, 1, "runs", 50)
            await eventually(lambda: any(entry.get("duty") == "beat" for entry in logs))
            await eventually(lambda: stage.running == 1)
            stage.gate.set()
            await eventually(lambda: _is(onlooker, f"run:{run}:1", "complete"))
            beat.cancel()
    failures = [entry for entry in logs if entry.get("duty") == "beat"]
    assert [entry["event"] for entry in failures] == ["lane.duty_failed"]


class Interposed:
    """Stops the lane's statement right after the server answered it, before the lane looks at the answer."""

    def __init__(self, queue: LaneQueue) -> None:
        self.answered = asyncio.Event()
        self.go_on = asyncio.Event()
        self._run = queue._line.run
        queue._line.run = self._stopped  # type: ignore[method-assign]
        self._queue = queue

    async def _stopped(self, statement: Any, parameters: Any = None) -> Any:
        rows = await self._run(statement, parameters)
        self._queue._line.run = self._run  # type: ignore[method-assign]
        self.answered.set()
        await self.go_on.wait()
        return rows


async def test_a_wake_up_that_arrives_while_the_lane_is_taking_jobs_is_not_lost(
    broker_dsn: str, publisher: Publisher
) -> None:
    stage, run = Stage(), uuid4()
    async with running(broker_dsn, stage, pace=STILL) as lanes:
        queue = lanes.queues["runs"]
        await queue.pump.settled()
        heard: list[None] = []
        on_enqueue = queue.listener._on_enqueue
        queue.listener._on_enqueue = lambda: (on_enqueue(), heard.append(None))  # type: ignore[assignment, func-returns-value]
        between = Interposed(queue)
        queue.pump.hint()
        await between.answered.wait()
        # The lane has its empty answer in hand and does not know of this one.
        await publisher.enqueue(run, 1, "runs", 50)
        await eventually(lambda: heard)
        between.go_on.set()
        await eventually(lambda: run in stage.ended)


async def test_stock_saq_loses_that_wake_up(broker_dsn: str, publisher: Publisher) -> None:
    async with stock_queue(broker_dsn) as stock:
        stock._waiting = 1
        async with stock._dequeue_lock:
            # Somebody is taking jobs; a word that arrives now changes nothing and is not remembered.
            await publisher.enqueue(uuid4(), 1, "runs", 50)
            await stock._dequeue()
        assert stock._job_queue.empty()
        stock._waiting = 0


async def test_a_busy_lane_goes_on_listening_and_takes_the_next_job_when_its_slot_is_free(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, one, two = Stage(passing=False), uuid4(), uuid4()
    async with running(broker_dsn, stage, runs=1, pace=STILL) as lanes:
        await publisher.enqueue(one, 1, "runs", 50)
        await eventually(lambda: stage.running)
        assert lanes.queues["runs"].listener.hearing.is_set()
        await publisher.enqueue(two, 1, "runs", 50)
        stage.gate.set()
        await eventually(lambda: two in stage.ended)


async def test_no_job_of_many_close_ones_waits_for_a_tick(broker_dsn: str, publisher: Publisher) -> None:
    stage = Stage()
    async with running(broker_dsn, stage, pace=STILL):
        for _ in range(150):
            run = uuid4()
            await publisher.enqueue(run, 1, "runs", 50)
            await eventually(lambda: run in stage.ended, every=0)  # noqa: B023


async def test_what_was_published_while_the_lane_was_deaf_is_found_when_it_hears_again(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(), uuid4()
    async with running(broker_dsn, stage, pace=STILL) as lanes:
        await lanes.queues["runs"].pump.settled()
        for pid in await backends(onlooker, "lychd lane runs"):
            await onlooker.execute("SELECT pg_terminate_backend(%s)", (pid,))
        await publisher.enqueue(run, 1, "runs", 50)
        await eventually(lambda: run in stage.ended)
        again = uuid4()
        await publisher.enqueue(again, 1, "runs", 50)
        await eventually(lambda: again in stage.ended)


async def test_rows_taken_by_a_turn_whose_answer_was_lost_go_back_and_are_run(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(), uuid4()
    async with running(broker_dsn, stage, pace=STILL) as lanes:
        queue = lanes.queues["runs"]
        await queue.pump.settled()
        run_statement = queue._line.run

        async def loses_the_answer(statement: Any, parameters: Any = None) -> Any:
            rows = await run_statement(statement, parameters)
            if rows:
                queue._line.run = run_statement  # type: ignore[method-assign]
                raise psycopg.OperationalError("the connection was lost after the commit")
            return rows

        queue._line.run = loses_the_answer  # type: ignore[method-assign]
        await publisher.enqueue(run, 1, "runs", 50)
        await eventually(lambda: _is(onlooker, f"run:{run}:1", "complete"))
    assert stage.started == [(run, 1)]


async def test_a_finish_whose_answer_was_lost_is_acknowledged_again(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run, live = Stage(passing=False), uuid4(), uuid4()
    async with running(broker_dsn, stage, pace=STILL) as lanes:
        queue = lanes.queues["runs"]
        await publisher.enqueue(run, 1, "runs", 50)
        await publisher.enqueue(live, 1, "runs", 50)
        await eventually(lambda: stage.running == 2)
        run_statement = queue._line.run

        async def fails(statement: Any, parameters: Any = None) -> Any:
            queue._line.run = run_statement  # type: ignore[method-assign]
            raise psycopg.OperationalError("no route")

        queue._line.run = fails  # type: ignore[method-assign]
        stage.gate.set()
        await eventually(lambda: _is(onlooker, f"run:{run}:1", "complete"))
        await eventually(lambda: _is(onlooker, f"run:{live}:1", "complete"))
    # The rows of jobs that live here were not taken for lost ones.
    assert len(stage.started) == 2


async def test_the_sweep_ends_what_nobody_touches_and_deletes_what_expired(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage = Stage(passing=False)
    async with running(broker_dsn, stage) as lanes:
        mine = (await publisher.enqueue(uuid4(), 1, "runs", 50)).key
        await eventually(lambda: stage.running)
        lost = (await publisher.enqueue(uuid4(), 1, "rites", 50)).key
        await eventually(lambda: stage.running == 2)
        rites = lanes.queues["rites"]
        fresh = (await publisher.enqueue(uuid4(), 1, "rites", 50)).key
        old = (await publisher.enqueue(uuid4(), 1, "rites", 50)).key
        dead = (await publisher.enqueue(uuid4(), 1, "rites", 50)).key
        await onlooker.execute(
            "UPDATE saq_jobs SET status = 'active', job = convert_to((convert_from(job, 'UTF8')::jsonb"
            " || jsonb_build_object('touched', (extract(epoch FROM now()) * 1000)::bigint - 119000))::text, 'UTF8')"
            " WHERE key = %s",
            (fresh,),
        )
        await onlooker.execute("UPDATE saq_jobs SET status = 'active' WHERE key = %s", (dead,))
        await onlooker.execute("UPDATE saq_jobs SET status = 'complete', expire_at = 1 WHERE key = %s", (old,))
        assert await rites.sweep() == [dead]
        assert await status(onlooker, dead) == "aborted"
        assert await status(onlooker, old) is None
        assert await status(onlooker, fresh) == "active"
        assert await status(onlooker, lost) == "active"
        assert await status(onlooker, mine) == "active"
        async with stock_queue(broker_dsn, "rites") as stock:
            job = await stock.job(dead)
            assert job is not None
            assert (job.status, job.error) == (Status.ABORTED, "swept")
        stage.gate.set()


async def test_the_workers_report_themselves_with_their_boot(
    broker_dsn: str, onlooker: psycopg.AsyncConnection
) -> None:
    async with running(broker_dsn, Stage(), pace=Pace(report=0.02), boot_id="boot-5"):

        async def reported() -> bool:
            rows = await onlooker.execute("SELECT worker_id, queue_key, metadata FROM saq_stats ORDER BY worker_id")
            return await rows.fetchall() == [
                ("rites@boot-5", "rites", {"boot": "boot-5"}),
                ("runs@boot-5", "runs", {"boot": "boot-5"}),
            ]

        await eventually(reported)


async def test_jobs_are_never_published_through_a_lane(broker_dsn: str) -> None:
    lanes = Lanes(broker_dsn, concurrency={"runs": 1, "rites": 1}, perform=Stage(), boot_id="b")
    await lanes.connect()
    try:
        with pytest.raises(RuntimeError, match="Publisher"):
            await lanes.queues["runs"].enqueue("perform_run", key="run:x:1")
    finally:
        await lanes.disconnect()


@pytest.mark.parametrize("analyzed_with", [0, 3000])
async def test_taking_jobs_reads_the_index_in_its_order_however_many_are_queued(
    broker_dsn: str, publisher: Publisher, analyzed_with: int
) -> None:
    pool = lane_pool(broker_dsn, "runs")
    await pool.open(wait=True)
    try:
        async with pool.connection() as conn:
            await conn.execute(
                "INSERT INTO saq_jobs (key, job, queue, status, priority)"
                " SELECT 'run:' || n, '{}', 'runs', 'queued', n %% 100 FROM generate_series(1, %s) AS n",
                (analyzed_with,),
            )
            await conn.execute("ANALYZE saq_jobs")
            statement = statements.TURN
            names = ("keys", "statuses", "patches", "queue", "ttl", "free", "worker", "boot")
            for number, name in enumerate(names, 1):
                statement = statement.replace(f"%({name})s", f"${number}")
            await conn.execute(f"PREPARE turn AS {statement.replace('%%', '%')}")  # type: ignore[arg-type]
            explained = await conn.execute("EXPLAIN EXECUTE turn ('{a}', '{b}', '{c}', 'runs', 600, 4, 'w', 'b')")
            plan = "\n".join(line for (line,) in await explained.fetchall())
    finally:
        await pool.close()
    assert "Index Scan using saq_jobs_status_queue_priority_scheduled_idx" in plan
    assert plan.count("saq_jobs_pkey") == 2
    assert "Sort" not in plan
    assert "Seq Scan" not in plan
    assert "group_key" not in plan
