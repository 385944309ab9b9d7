"""Where stock SAQ bites whoever believes its names: each is a reason for something in `runs.broker`.

Asked of SAQ itself on a real database, so that a release which behaves otherwise is noticed here and the reason looked
at again. What else the facade relies on stands in `test_broker_saq_facts`.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from saq.job import Job, Status
from saq.queue.base import Queue
from saq.queue.postgres import PostgresQueue
from saq.worker import Worker

from runs.broker.worker import LaneWorker
from tests.support.broker import stock_queue
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.broker_fixtures"]

# pyright: reportPrivateUsage=false
# Nothing happens by a timer unless a test says so; but wake-ups are lost now and then, and a tick finds their jobs.
STILL: Any = {"schedule": 0.05, "worker_info": 3600, "sweep": 3600, "abort": 3600}


OFTEN: Any = {**STILL, "abort": 0.01}


class Quiet(Worker[Any]):
    SIGNALS = []


@pytest.fixture
async def queue(broker_dsn: str) -> AsyncIterator[PostgresQueue]:
    async with stock_queue(broker_dsn) as queue:
        yield queue


@pytest.fixture
async def onlooker(queue: PostgresQueue, broker_dsn: str) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(broker_dsn, autocommit=True) as conn:
        yield conn


@asynccontextmanager
async def working(queue: PostgresQueue, function: Callable[..., Any]) -> AsyncGenerator[Quiet]:
    """A stock worker that knows one function, `f`; stopped at the end."""
    worker = Quiet(queue, [("f", function)], concurrency=1, timers=STILL)
    launcher = asyncio.create_task(worker.start())
    try:
        yield worker
    finally:
        launcher.cancel()
        await launcher


async def put(queue: PostgresQueue, key: str = "k", **how: Any) -> Job:
    job = await queue.enqueue("f", key=key, **how)
    assert job is not None
    return job


async def status_of(queue: PostgresQueue, key: str = "k") -> Status | None:
    job = await queue.job(key)
    return job.status if job is not None else None


async def becomes(queue: PostgresQueue, status: Status, key: str = "k") -> None:
    async def is_so() -> bool:
        return await status_of(queue, key) is status

    await eventually(is_so, within=15)


class Held:
    """A function that runs until it is let go; `stubborn` swallows that many cancellations."""

    def __init__(self, stubborn: int = 0) -> None:
        self.stubborn, self.cancelled = stubborn, 0
        self.began, self.gate = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: Any, **__: Any) -> dict[str, str]:
        self.began.set()
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                if self.cancelled > self.stubborn:
                    raise
        return {"outcome": "done"}


def held(stubborn: int = 0) -> tuple[Held, Callable[..., Any]]:
    held = Held(stubborn)

    async def f(context: Any, **given: Any) -> dict[str, str]:
        return await held(context, **given)

    return held, f


# Enqueue


async def test_a_row_of_another_queue_is_invisible_to_probes_and_breaks_a_look_at_many(
    queue: PostgresQueue, broker_dsn: str
) -> None:
    await put(queue)
    async with stock_queue(broker_dsn, "rites") as rites:
        assert await rites.enqueue("f", key="k") is None
        assert await rites.job("k") is None
        assert await rites.get_job_status("k") is Status.QUEUED
        with pytest.raises(ValueError, match="wrong queue"):
            await rites.jobs(["k"])


async def test_a_revived_row_begins_its_attempts_anew_within_the_same_second(queue: PostgresQueue) -> None:
    job = await put(queue, retries=3)
    job.attempts = 2
    await queue.finish(job, Status.FAILED, error="broke")
    again = await put(queue)
    stored = await queue.job("k")
    assert stored is not None
    assert (again.status, stored.status, stored.attempts, stored.retries) == (Status.QUEUED, Status.QUEUED, 0, 1)


async def test_enqueueing_over_an_aborting_row_answers_none_like_any_other_row(queue: PostgresQueue) -> None:
    job = await put(queue)
    await job.update(status=Status.ACTIVE)
    await queue.abort(job, "stop")
    assert await queue.enqueue("f", key="k") is None
    assert await status_of(queue) is Status.ABORTING


async def test_a_misspelled_option_becomes_an_argument_of_the_task(queue: PostgresQueue) -> None:
    job = await put(queue, retrys=0, seq=1)
    assert job.kwargs == {"retrys": 0, "seq": 1}
    assert job.retries == 1


async def test_many_are_enqueued_one_by_one(queue: PostgresQueue) -> None:
    # What our Publisher's one statement is for.
    assert not [name for name, _ in inspect.getmembers(Queue) if "enqueue" in name and "many" in name]
    assert "self.enqueue(job_or_func, **kw)" in inspect.getsource(Queue.map)


# Priority and dequeue


async def test_the_lowest_priority_comes_first_and_a_negative_one_never(queue: PostgresQueue) -> None:
    for key, priority in (("late", 9), ("never", -1), ("soon", 3), ("max", 32767)):
        await put(queue, key, priority=priority)
    got = [await queue.dequeue(timeout=0.2) for _ in range(4)]
    assert [job.key if job else None for job in got] == ["soon", "late", "max", None]
    assert await status_of(queue, "never") is Status.QUEUED


async def test_priorities_are_small_integers(queue: PostgresQueue) -> None:
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        await put(queue, priority=32768)


async def test_a_row_is_active_before_anybody_works_on_it_and_counts_no_attempt(queue: PostgresQueue) -> None:
    await put(queue)
    before = int(time.time() * 1000)
    assert await queue.dequeue(timeout=1)
    job = await queue.job("k")
    assert job is not None
    assert (job.status, job.attempts, job.worker_id) == (Status.ACTIVE, 0, None)
    # Milliseconds; scheduled is in seconds.
    assert before - 60_000 < job.started == job.touched < before + 60_000


async def test_scheduled_is_in_seconds(queue: PostgresQueue, onlooker: psycopg.AsyncConnection) -> None:
    await put(queue)
    found = await (await onlooker.execute("select scheduled from saq_jobs")).fetchone()
    assert found is not None
    assert abs(found[0] - time.time()) < 60


async def test_a_slot_that_is_cancelled_leaves_a_taken_job_active_in_memory_and_swallows_the_cancellation(
    queue: PostgresQueue,
) -> None:
    slot = asyncio.create_task(queue.dequeue())
    await eventually(lambda: queue._waiting)
    other = asyncio.create_task(queue.dequeue())
    await eventually(lambda: queue._waiting == 2)
    for key in ("a", "b"):
        await put(queue, key)
    taken = {(await slot).key, (await other).key}  # type: ignore[union-attr]
    assert taken == {"a", "b"}
    waiting = asyncio.create_task(queue.dequeue())
    await eventually(lambda: queue._waiting)
    waiting.cancel()
    assert await waiting is None
    # Taken for a slot that is gone by now: nobody will ever run it, and the row says active.
    queue._waiting = 1
    await put(queue, "c")
    await queue._dequeue()
    queue._waiting = 0
    assert queue._job_queue.qsize() == 1
    assert await status_of(queue, "c") is Status.ACTIVE


async def test_one_active_row_with_a_group_stops_all_rows_without_one(queue: PostgresQueue) -> None:
    await put(queue, "grouped", group_key="g")
    assert await queue.dequeue(timeout=1)
    await put(queue, "plain")
    assert await queue.dequeue(timeout=0.2) is None
    assert await status_of(queue, "plain") is Status.QUEUED


# Heartbeat and sweep


def test_what_counts_as_stuck() -> None:
    old = int(time.time() * 1000) - 100_000
    for status in Status:
        live = status in {Status.ACTIVE, Status.ABORTING}
        for timeout, heartbeat, stuck in ((0, 0, False), (50, 0, live), (0, 50, live), (200, 200, False)):
            job = Job("f", timeout=timeout, heartbeat=heartbeat, status=status, started=old, touched=old)
            assert bool(job.stuck) is stuck, (status, timeout, heartbeat)


async def test_a_heartbeat_keeps_an_abort_and_loses_its_reason(queue: PostgresQueue) -> None:
    mine = await put(queue)
    await mine.update(status=Status.ACTIVE)
    other = await queue.job("k")
    assert other is not None
    await queue.abort(other, "a person said so")
    await mine.update()
    job = await queue.job("k")
    assert job is not None
    assert (job.status, job.error) == (Status.ABORTING, None)
    assert job.touched >= mine.queued


@pytest.mark.parametrize(("retries", "becomes"), [(0, Status.ABORTED), (1, Status.QUEUED)])
async def test_the_sweep_queues_what_never_ran_again_under_its_key_unless_retries_are_zero(
    queue: PostgresQueue, retries: int, becomes: Status
) -> None:
    job = await put(queue, heartbeat=1, retries=retries)
    assert await queue.dequeue(timeout=1)
    await job.update(status=Status.ACTIVE)
    await _age(queue, "k")
    assert await queue.sweep(abort=0.1) == ["k"]
    stored = await queue.job("k")
    assert stored is not None
    assert (stored.status, stored.error, stored.attempts) == (becomes, "swept", 0)


async def _age(queue: PostgresQueue, key: str) -> None:
    async with queue.pool.connection() as conn:
        await conn.execute(
            "update saq_jobs set job = convert_to((convert_from(job, 'UTF8')::jsonb || "
            """'{"touched": 1, "started": 1}')::text, 'UTF8') where key = %s""",
            (key,),
        )


async def test_the_sweeps_lock_stays_on_a_pooled_connection(
    queue: PostgresQueue, broker_dsn: str, onlooker: psycopg.AsyncConnection
) -> None:
    await queue.sweep()
    # Of this database alone: others on the server have sweeps of their own.
    here = "locktype = 'advisory' and objid::bigint <> 0"
    here += " and database = (select oid from pg_database where datname = current_database())"
    locks = f"select count(*) from pg_locks where classid = 0 and {here}"
    assert await (await onlooker.execute(locks)).fetchone() == (1,)
    await queue.sweep()
    assert await (await onlooker.execute(locks)).fetchone() == (1,)
    assert queue._has_sweep_lock
    # The flag outlives the connection that had the lock.
    await onlooker.execute(f"select pg_terminate_backend(pid) from pg_locks where {here}")

    async def is_gone() -> bool:
        return await (await onlooker.execute(locks)).fetchone() == (0,)

    await eventually(is_gone)
    async with stock_queue(broker_dsn) as another:
        await another.sweep()
        assert another._has_sweep_lock
        assert queue._has_sweep_lock


@pytest.mark.parametrize(("ttl", "expires"), [(600, True), (0, False), (-1, None)])
async def test_a_terminal_row_expires_after_its_ttl_never_or_at_once(
    queue: PostgresQueue, onlooker: psycopg.AsyncConnection, ttl: int, expires: bool | None
) -> None:
    assert Job("f").ttl == 600
    job = await put(queue, ttl=ttl)
    await queue.finish(job, Status.COMPLETE)
    found = await (await onlooker.execute("select expire_at is not null from saq_jobs")).fetchone()
    assert found == (None if expires is None else (expires,))


async def test_only_the_sweep_deletes_what_has_expired(queue: PostgresQueue, onlooker: psycopg.AsyncConnection) -> None:
    job = await put(queue)
    await queue.finish(job, Status.COMPLETE)
    await onlooker.execute("update saq_jobs set expire_at = 1")
    assert await queue.dequeue(timeout=0.1) is None
    await queue.info()
    assert await status_of(queue) is Status.COMPLETE
    await queue.sweep()
    assert await status_of(queue) is None


# Abort


async def test_an_abort_returns_at_once_and_waiting_for_it_is_another_call(queue: PostgresQueue) -> None:
    job = await put(queue)
    await job.update(status=Status.ACTIVE)
    await queue.abort(job, "stop", ttl=0.001)
    assert await status_of(queue) is Status.ABORTING
    with pytest.raises(asyncio.TimeoutError):
        await job.refresh(until_complete=0.1)
    with pytest.raises(RuntimeError, match="doesn't exist"):
        await Job("f", key="nothing", queue=queue).refresh()


async def test_aborting_a_queued_row_ends_it_and_a_missing_one_stays_missing(queue: PostgresQueue) -> None:
    job = await put(queue)
    await queue.abort(job, "stop")
    assert await status_of(queue) is Status.ABORTED
    await queue.abort(Job("f", key="nothing", queue=queue), "stop")
    assert await status_of(queue, "nothing") is None


async def test_an_abort_does_not_keep_its_row_locked_between_look_and_write(queue: PostgresQueue) -> None:
    job = await put(queue)
    async with queue.pool.connection() as one, queue.pool.connection() as other:
        assert one.autocommit
        await queue.get_job_status(job.key, for_update=True, connection=one)
        # Somebody else has it at once: the lock went with the statement.
        await other.execute("set lock_timeout = '1s'")
        await queue.get_job_status(job.key, for_update=True, connection=other)
        await other.execute("set lock_timeout = 0")


async def test_the_worker_finds_an_abort_by_polling_spares_young_jobs_and_waits_without_limit(
    queue: PostgresQueue,
) -> None:
    hold, function = held(stubborn=2)
    async with working(queue, function) as worker:
        assert Quiet(queue, [("f", function)]).timers["abort"] == 1
        job = await put(queue, timeout=0)
        await hold.began.wait()
        await queue.abort(job, "a person said so")
        await worker.abort(3600)
        assert hold.cancelled == 0
        look = asyncio.create_task(worker.abort(0))
        await eventually(lambda: hold.cancelled == 1)
        done, _ = await asyncio.wait([look], timeout=0.3)
        assert not done, "it no longer waits for the task"
        hold.gate.set()
        await look
    job = await queue.job("k")
    assert job is not None
    assert (job.status, job.error, bool(job.completed)) == (Status.ABORTED, "a person said so", True)


async def test_an_orphan_stays_aborting_whatever_workers_there_are(queue: PostgresQueue) -> None:
    job = await put(queue, timeout=0)
    assert await queue.dequeue(timeout=1)
    await queue.abort(job, "stop")
    _, function = held()
    async with working(queue, function) as worker:
        await worker.abort(0)
        await queue.sweep(abort=0.1)
        assert await status_of(queue) is Status.ABORTING


# Life of a worker


async def test_a_worker_never_connects_its_queue_and_spins_on_one_that_is_not(broker_dsn: str) -> None:
    queue = PostgresQueue.from_url(broker_dsn, min_size=1, max_size=1)
    calls = 0

    async def dequeue(*_: Any, **__: Any) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)

    connected: list[None] = []
    queue.dequeue = dequeue  # type: ignore[method-assign]
    queue.connect = lambda: connected.append(None)  # type: ignore[method-assign,assignment,return-value]
    _, function = held()
    async with working(queue, function):
        await eventually(lambda: calls > 500)
    assert connected == []


async def test_a_start_takes_the_signals_of_the_loop_and_its_end_removes_them(queue: PostgresQueue) -> None:
    assert Worker.SIGNALS == [signal.SIGINT, signal.SIGTERM]
    assert LaneWorker.SIGNALS == []
    loop = asyncio.get_running_loop()
    ours = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, ours.set_result, None)
    worker = Worker(queue, [], concurrency=1, timers=STILL)
    launcher = asyncio.create_task(worker.start())
    try:
        await eventually(lambda: worker.tasks)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(launcher, 10)
        assert not ours.done()
        assert not loop.remove_signal_handler(signal.SIGTERM)
        assert not loop.remove_signal_handler(signal.SIGINT)
    finally:
        launcher.cancel()
        await launcher


def test_off_the_main_thread_a_worker_with_signals_cannot_start(broker_dsn: str) -> None:
    raised: list[BaseException] = []

    async def start() -> None:
        await Worker(PostgresQueue.from_url(broker_dsn), [], timers=STILL).start()

    def run() -> None:
        try:
            asyncio.run(start())
        except (ValueError, RuntimeError) as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert raised


async def test_a_start_replaces_the_event_and_swallows_its_cancellation(queue: PostgresQueue) -> None:
    _, function = held()
    worker = Quiet(queue, [("f", function)], timers=STILL)
    before = worker.event
    launcher = asyncio.create_task(worker.start())
    await eventually(lambda: worker.tasks)
    assert worker.event is not before
    launcher.cancel()
    await launcher
    assert not launcher.cancelled()


async def test_a_job_runs_in_a_task_that_is_not_among_the_workers_tasks(queue: PostgresQueue) -> None:
    hold, function = held()
    async with working(queue, function) as worker:
        await put(queue)
        await hold.began.wait()
        (context,) = worker.job_task_contexts.values()
        assert context["task"] not in worker.tasks
        hold.gate.set()
        await becomes(queue, Status.COMPLETE)


async def test_a_stop_forgets_its_tasks_first_and_a_job_that_ignores_it_holds_it_past_its_deadline(
    queue: PostgresQueue,
) -> None:
    hold, function = held(stubborn=99)
    worker = Quiet(queue, [("f", function)], concurrency=1, timers=STILL, cancellation_hard_deadline_s=0.1)
    launcher = asyncio.create_task(worker.start())
    await put(queue, timeout=0)
    await hold.began.wait()
    stopping = asyncio.create_task(worker.stop())
    # More than once: the job is not left alone while it cleans up.
    await eventually(lambda: hold.cancelled > 1)
    assert worker.tasks == set()
    done, _ = await asyncio.wait([stopping], timeout=1)
    assert not done, "it ends by its deadline now"
    hold.gate.set()
    await stopping
    await launcher


async def test_a_second_stop_is_content_although_the_first_one_failed(queue: PostgresQueue) -> None:
    async def shutdown(_: Any) -> None:
        raise ValueError("not closed")

    worker = Quiet(queue, [], concurrency=1, timers=STILL, shutdown=shutdown)
    with pytest.raises(ValueError, match="not closed"):
        await worker.stop()
    await worker.stop()


async def test_a_grace_period_is_waited_for_in_full_by_an_idle_worker(queue: PostgresQueue) -> None:
    _, function = held()
    worker = Quiet(queue, [("f", function)], timers=STILL, shutdown_grace_period_s=1)
    launcher = asyncio.create_task(worker.start())
    await eventually(lambda: worker.tasks)
    stopping = asyncio.create_task(worker.stop())
    done, _ = await asyncio.wait([stopping], timeout=0.5)
    assert not done
    await stopping
    await launcher


@pytest.mark.contract("CLM-13")
async def test_stopping_a_worker_queues_its_job_again_under_its_key_although_retries_are_zero(
    queue: PostgresQueue,
) -> None:
    hold, function = held()
    async with working(queue, function):
        await put(queue, retries=0)
        await hold.began.wait()
    job = await queue.job("k")
    assert job is not None
    assert (job.status, job.attempts, job.retries, job.error) == (Status.QUEUED, 1, 0, "cancelled")


async def test_an_unknown_function_fails_the_row(queue: PostgresQueue) -> None:
    _, function = held()
    async with working(queue, function):
        assert await queue.enqueue("unknown", key="k", retries=0)
        await becomes(queue, Status.FAILED)
    job = await queue.job("k")
    assert "KeyError" in (job.error if job and job.error else "")


async def test_an_error_fails_the_row_with_its_traceback_and_any_return_completes_it(queue: PostgresQueue) -> None:
    async def function(_: Any, *, fail: bool) -> dict[str, str]:
        if fail:
            raise ValueError("no good")
        return {"outcome": "skipped"}

    async with working(queue, function):
        await put(queue, "fails", fail=True, retries=0)
        await put(queue, "skips", fail=False, retries=0)
        await becomes(queue, Status.FAILED, "fails")
        await becomes(queue, Status.COMPLETE, "skips")
    job = await queue.job("fails")
    assert 'raise ValueError("no good")' in (job.error if job and job.error else "")


async def test_upkeep_survives_a_cancellation_while_the_worker_runs(queue: PostgresQueue) -> None:
    looks = 0

    class Looking(Quiet):
        async def abort(self, abort_threshold: float) -> None:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0 if looks > 1 else 3600)

    worker = Looking(queue, [], concurrency=0, timers=OFTEN)
    launcher = asyncio.create_task(worker.start())
    await eventually(lambda: looks)
    for task in worker.tasks:
        if "abort" in repr(task.get_coro().cr_frame.f_locals["func"]):  # type: ignore[union-attr]
            task.cancel()
    await eventually(lambda: looks > 1)
    launcher.cancel()
    await launcher


# Connections


async def test_a_waiting_slot_holds_a_connection_and_listening_ends_with_the_last_one(
    queue: PostgresQueue, onlooker: psycopg.AsyncConnection
) -> None:
    async def listening() -> bool:
        found = await onlooker.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and query like 'LISTEN%'"
        )
        return (await found.fetchone()) == (1,)

    slot = asyncio.create_task(queue.dequeue())
    await eventually(listening)
    assert queue._listener._daemon_task is not None
    slot.cancel()
    await slot
    assert queue._listener._daemon_task is None


async def test_a_connect_that_fails_leaves_an_open_pool_that_disconnect_does_not_close(broker_dsn: str) -> None:
    queue = PostgresQueue.from_url(broker_dsn, min_size=1, max_size=1)

    async def init_db() -> None:
        raise ValueError("no tables")

    queue.init_db = init_db  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no tables"):
        await queue.connect()
    await queue.disconnect()
    assert not queue.pool.closed
    await queue.pool.close()


async def test_a_pool_that_is_handed_in_must_not_refuse_autocommit_and_is_not_managed(broker_dsn: str) -> None:
    unmanaged: AsyncConnectionPool[Any] = AsyncConnectionPool(broker_dsn, open=False, kwargs={}, min_size=1)
    async with unmanaged as pool:
        queue = PostgresQueue(pool=pool)
        assert pool.kwargs == {"autocommit": True}
        await queue.connect()
        await queue.disconnect()
        assert not pool.closed
    with pytest.raises(ValueError, match="autocommit"):
        PostgresQueue(pool=AsyncConnectionPool(broker_dsn, open=False, kwargs={"autocommit": False}))


def test_each_queue_has_a_pool_of_four_to_twenty_connections_and_asks_each_before_use(broker_dsn: str) -> None:
    queue = PostgresQueue.from_url(broker_dsn)
    assert (queue.min_size, queue.max_size) == (4, 20)
    assert queue.pool._check is not None
