from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import structlog

from runs.broker.lanes import Lanes
from runs.broker.publish import Publisher
from runs.broker.queue import LaneQueue
from tests.support.broker import STILL, Stage, backends, row, running, status
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.broker_fixtures"]


def lanes_over(dsn: str, perform: Any = None) -> Lanes:
    return Lanes(dsn, concurrency={"runs": 2, "rites": 1}, perform=perform or Stage(), boot_id="b", pace=STILL)


@pytest.fixture
async def lanes(broker_dsn: str, publisher: Publisher) -> AsyncIterator[Lanes]:
    """Connected lanes whose disconnects a test may break; the real ones are run at the end."""
    lanes = lanes_over(broker_dsn)
    await lanes.connect()
    real = {name: queue.disconnect for name, queue in lanes.queues.items()}
    yield lanes
    for disconnect in real.values():
        await disconnect()


class Disconnects:
    """Replaces the disconnect of each queue and notes the order in which they were attempted."""

    def __init__(self, lanes: Lanes) -> None:
        self.attempted: list[str] = []
        self.ended: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.fails: dict[str, BaseException] = {}
        for name, queue in lanes.queues.items():
            queue.disconnect = lambda name=name: self._disconnect(name)  # type: ignore[method-assign, misc]

    async def _disconnect(self, name: str) -> None:
        self.attempted.append(name)
        await self.hold.wait()
        self.ended.append(name)
        if name in self.fails:
            raise self.fails[name]


@pytest.mark.contract("SHUT-5")
async def test_s194_every_queue_is_disconnected_in_reverse_although_one_fails(lanes: Lanes) -> None:
    disconnects = Disconnects(lanes)
    disconnects.fails["rites"] = OSError("rites is stuck")
    with pytest.raises(ExceptionGroup) as caught:
        await lanes.disconnect()
    assert disconnects.ended == ["rites", "runs"]
    assert [str(error) for error in caught.value.exceptions] == ["rites is stuck"]


@pytest.mark.contract("SHUT-5")
async def test_all_failures_of_a_teardown_are_in_one_group(lanes: Lanes) -> None:
    disconnects = Disconnects(lanes)
    disconnects.fails = {"rites": OSError("one"), "runs": OSError("two")}
    with pytest.raises(ExceptionGroup) as caught:
        await lanes.disconnect()
    assert [str(error) for error in caught.value.exceptions] == ["one", "two"]


@pytest.mark.contract("SHUT-6")
async def test_s195_a_teardown_that_is_cancelled_twice_still_attempts_every_queue(lanes: Lanes) -> None:
    disconnects = Disconnects(lanes)
    disconnects.hold.clear()
    teardown = asyncio.create_task(lanes.disconnect())
    for _ in range(2):
        await eventually(lambda: disconnects.attempted == ["rites"])
        teardown.cancel()
        await asyncio.sleep(0)
    assert not teardown.done()
    disconnects.hold.set()
    with pytest.raises(asyncio.CancelledError):
        await teardown
    assert disconnects.ended == ["rites", "runs"]


@pytest.mark.contract("SHUT-7")
async def test_s241_a_teardown_both_cancelled_and_failed_raises_one_group_with_both(lanes: Lanes) -> None:
    disconnects = Disconnects(lanes)
    disconnects.fails["runs"] = OSError("runs is stuck")
    disconnects.hold.clear()
    teardown = asyncio.create_task(lanes.disconnect())
    await eventually(lambda: disconnects.attempted)
    teardown.cancel()
    await asyncio.sleep(0)
    disconnects.hold.set()
    with pytest.raises(BaseExceptionGroup) as caught:
        await teardown
    assert {type(error) for error in caught.value.exceptions} == {asyncio.CancelledError, OSError}


@pytest.mark.contract("SHUT-7")
async def test_a_disconnect_that_ends_cancelled_does_not_hide_another_ones_failure(lanes: Lanes) -> None:
    disconnects = Disconnects(lanes)
    disconnects.fails = {"rites": asyncio.CancelledError(), "runs": OSError("runs is stuck")}
    with pytest.raises(BaseExceptionGroup) as caught:
        await lanes.disconnect()
    assert disconnects.ended == ["rites", "runs"]
    assert {type(error) for error in caught.value.exceptions} == {asyncio.CancelledError, OSError}


@pytest.mark.contract("QUE-1", "QUE-2")
async def test_s196_a_pool_that_connect_opened_is_closed_when_the_tables_fail(
    broker_dsn: str, onlooker: psycopg.AsyncConnection
) -> None:
    await onlooker.execute("UPDATE saq_versions SET version = 99")
    queue = LaneQueue(broker_dsn, "runs", slots=1, boot_id="b", worker_id="w")
    with pytest.raises(Exception, match="version 99"):
        await queue.connect()
    assert queue.connections.closed
    assert not queue.connected
    await queue.disconnect()
    await eventually(lambda: _no_lane(onlooker))


async def _no_lane(onlooker: psycopg.AsyncConnection) -> bool:
    return not (await backends(onlooker, "lychd lane runs") + await backends(onlooker, "lychd lane rites"))


@pytest.mark.contract("QUE-2")
async def test_a_connect_that_is_cancelled_closes_its_pool_and_leaves_no_task(
    broker_dsn: str, onlooker: psycopg.AsyncConnection
) -> None:
    await onlooker.execute("BEGIN")
    await onlooker.execute("LOCK saq_versions")
    queue = LaneQueue(broker_dsn, "runs", slots=1, boot_id="b", worker_id="w")
    connect = asyncio.create_task(queue.connect())
    await eventually(lambda: not queue.connections.closed)
    await asyncio.sleep(0.05)
    connect.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connect
    await onlooker.execute("COMMIT")
    assert queue.connections.closed
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("lychd.lane")]


@pytest.mark.contract("QUE-3")
async def test_s197_a_second_connect_that_fails_takes_both_queues_down_in_reverse(
    broker_dsn: str, onlooker: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    connect, disconnect = LaneQueue.connect, LaneQueue.disconnect

    async def connects(self: LaneQueue) -> None:
        if self.name == "rites":
            raise OSError("rites is not there")
        await connect(self)

    async def disconnects(self: LaneQueue) -> None:
        order.append(self.name)
        await disconnect(self)
        if self.name == "rites":
            raise OSError("nor can it be closed")

    monkeypatch.setattr(LaneQueue, "connect", connects)
    monkeypatch.setattr(LaneQueue, "disconnect", disconnects)
    lanes = lanes_over(broker_dsn)
    with structlog.testing.capture_logs() as logs, pytest.raises(OSError, match="rites is not there"):
        await lanes.connect()
    assert order == ["rites", "runs"]
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["lanes.rollback_failed"]
    assert lanes.queues == {}
    await eventually(lambda: _no_lane(onlooker))
    with pytest.raises(RuntimeError):
        lanes.start()


@pytest.mark.contract("TOP-3", "SHUT-4")
async def test_stopping_idle_lanes_costs_no_grace_and_leaves_no_task(
    broker_dsn: str, onlooker: psycopg.AsyncConnection
) -> None:
    lanes = lanes_over(broker_dsn)
    await lanes.connect()
    lanes.start()
    await eventually(lambda: all(worker.tasks for worker in lanes.workers.values()))
    # Far beyond the deadline: had the idle slots been given grace, this would fail.
    await lanes.stop(grace=3600, deadline=10)
    await lanes.disconnect()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("lychd.lane", "process"))]
    await eventually(lambda: _no_lane(onlooker))


@pytest.mark.contract("SHUT-3", "SHUT-4")
async def test_lanes_that_were_never_started_stop_too(broker_dsn: str) -> None:
    lanes = lanes_over(broker_dsn)
    await lanes.connect()
    await lanes.stop(deadline=10)
    await lanes.disconnect()
    started = lanes_over(broker_dsn)
    await started.connect()
    started.start()
    # Before the launchers had their first turn of the loop.
    await started.stop(deadline=10)
    await started.disconnect()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("lychd.lane")]


@pytest.mark.contract("SHUT-4")
async def test_s192_a_worker_whose_stop_never_returns_is_a_timeout(broker_dsn: str) -> None:
    lanes = lanes_over(broker_dsn)
    await lanes.connect()
    lanes.start()
    worker = lanes.workers["runs"]
    stop, release = worker.stop, asyncio.Event()

    async def never() -> None:
        await release.wait()

    worker.stop = never  # type: ignore[method-assign]
    with pytest.raises(TimeoutError, match=r"lychd\.lane\.runs\.stop"):
        await lanes.stop(deadline=0.2)
    assert lanes.queues["runs"].connected
    worker.stop = stop  # type: ignore[method-assign]
    release.set()
    await lanes.stop(deadline=10)
    await lanes.disconnect()


@pytest.mark.contract("SHUT-2", "SHUT-4")
async def test_a_worker_whose_stop_fails_is_an_error_and_nothing_is_disconnected(broker_dsn: str) -> None:
    lanes = lanes_over(broker_dsn)
    await lanes.connect()
    worker = lanes.workers["rites"]
    stop = worker.stop

    async def fails() -> None:
        raise OSError("no")

    worker.stop = fails  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as caught:
        await lanes.stop(deadline=5)
    assert [str(error) for error in caught.value.exceptions] == ["no"]
    assert lanes.queues["rites"].connected
    worker.stop = stop  # type: ignore[method-assign]
    await lanes.stop(deadline=10)
    await lanes.disconnect()


class Stubborn:
    """A ghoul that ignores being told to end until it is released."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.told = 0

    async def __call__(self, run_id: UUID, seq: int) -> dict[str, Any]:
        self.started.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.told += 1
        return {}


@pytest.mark.contract("SHUT-3", "SHUT-4")
async def test_s193_a_ghoul_that_ignores_cancellation_is_not_reported_stopped(
    broker_dsn: str, publisher: Publisher
) -> None:
    ghoul = Stubborn()
    lanes = lanes_over(broker_dsn, ghoul)
    await lanes.connect()
    lanes.start()
    await publisher.enqueue(uuid4(), 1, "runs", 50)
    await ghoul.started.wait()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="still running"):
            await lanes.stop(deadline=0.2)
    # Once: a second cancellation would break into the cleanup that the first one asked for.
    assert ghoul.told == 1
    assert lanes.queues["runs"].connected
    ghoul.release.set()
    await lanes.stop(deadline=10)
    await lanes.disconnect()


@pytest.mark.contract("SHUT-3")
async def test_a_stop_that_returns_while_a_captured_task_lives_is_a_failure(
    broker_dsn: str, publisher: Publisher
) -> None:
    ghoul = Stubborn()
    lanes = lanes_over(broker_dsn, ghoul)
    await lanes.connect()
    lanes.start()
    await publisher.enqueue(uuid4(), 1, "runs", 50)
    await ghoul.started.wait()
    worker = lanes.workers["runs"]
    stop = worker.stop

    async def forgets() -> None:
        worker.event.set()
        worker.tasks.clear()
        worker.job_task_contexts.clear()

    worker.stop = forgets  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        await lanes.stop(deadline=0.3)
    worker.stop = stop  # type: ignore[method-assign]
    ghoul.release.set()
    for task in lanes._observed:
        task.cancel()
    await lanes.stop(deadline=10)
    await lanes.disconnect()


async def test_a_running_job_gets_its_grace_and_finishes(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(passing=False), uuid4()
    lanes = lanes_over(broker_dsn, stage)
    await lanes.connect()
    lanes.start()
    await publisher.enqueue(run, 1, "runs", 50)
    await eventually(lambda: stage.running)
    stop = asyncio.create_task(lanes.stop(grace=10, deadline=20))
    await eventually(lanes.workers["runs"].event.is_set)
    stage.gate.set()
    await stop
    assert await status(onlooker, f"run:{run}:1") == "complete"
    await lanes.disconnect()


@pytest.mark.contract("CLM-13")
async def test_a_job_that_the_stop_cancelled_is_ended_and_not_queued_again(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(passing=False), uuid4()
    lanes = lanes_over(broker_dsn, stage)
    await lanes.connect()
    lanes.start()
    await publisher.enqueue(run, 1, "runs", 50)
    await eventually(lambda: stage.running)
    await lanes.stop(deadline=10)
    await lanes.disconnect()
    found = await row(onlooker, f"run:{run}:1")
    assert found is not None
    assert (found[0], found[1]["error"]) == ("aborted", "the lane was stopped")


async def test_a_job_that_was_taken_and_never_started_goes_back_under_its_key(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, run = Stage(), uuid4()
    lanes = lanes_over(broker_dsn, stage)
    await lanes.connect()
    queue = lanes.queues["runs"]
    queue.pump.serve()
    await publisher.enqueue(run, 1, "runs", 50)
    await eventually(lambda: not queue.pump.ready.empty())
    assert await status(onlooker, f"run:{run}:1") == "active"
    await lanes.stop(deadline=10)
    await lanes.disconnect()
    found = await row(onlooker, f"run:{run}:1")
    assert found is not None
    assert found[0] == "queued"
    assert not {"started", "worker_id", "attempts", "meta"} & set(found[1])
    assert stage.started == []
    # And the next life takes it.
    async with running(broker_dsn, stage):
        await eventually(lambda: run in stage.ended)


async def test_a_draining_lane_takes_nothing_new_and_says_when_it_is_empty(
    broker_dsn: str, publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    stage, one, two = Stage(passing=False), uuid4(), uuid4()
    async with running(broker_dsn, stage) as lanes:
        await publisher.enqueue(one, 1, "runs", 50)
        await eventually(lambda: stage.running)
        assert await lanes.drain(0.05) is False
        await publisher.enqueue(two, 1, "runs", 50)
        drain = asyncio.create_task(lanes.drain(10))
        await asyncio.sleep(0)
        stage.gate.set()
        assert await drain is True
        assert [run for run, _ in stage.started] == [one]
        assert await status(onlooker, f"run:{two}:1") == "queued"


async def test_a_stop_without_a_database_still_proves_that_nothing_runs(broker_dsn: str, publisher: Publisher) -> None:
    stage = Stage(passing=False)
    lanes = lanes_over(broker_dsn, stage)
    await lanes.connect()
    lanes.start()
    await publisher.enqueue(uuid4(), 1, "runs", 50)
    await eventually(lambda: stage.running)

    async def away(statement: Any, parameters: Any = None) -> Any:
        raise psycopg.OperationalError("no route")

    for queue in lanes.queues.values():
        queue._line.run = away  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as logs:
        await lanes.stop(deadline=20)
    assert stage.running == 0
    assert "lane.not_handed_over" in [entry["event"] for entry in logs]
    await lanes.disconnect()


async def test_a_cancelled_stop_still_finishes_its_proof(broker_dsn: str, publisher: Publisher) -> None:
    ghoul = Stubborn()
    lanes = lanes_over(broker_dsn, ghoul)
    await lanes.connect()
    lanes.start()
    await publisher.enqueue(uuid4(), 1, "runs", 50)
    await ghoul.started.wait()
    stop = asyncio.create_task(lanes.stop(deadline=10))
    await eventually(lambda: ghoul.told)
    stop.cancel()
    await asyncio.sleep(0)
    assert not stop.done()
    ghoul.release.set()
    with pytest.raises(asyncio.CancelledError):
        await stop
    assert not [
        task
        for task in asyncio.all_tasks()
        if task.get_name().startswith(("lychd.lane.runs.", "process"))
        and task.get_name() not in {"lychd.lane.runs.listener", "lychd.lane.runs.pump"}
    ]
    await lanes.disconnect()
