from __future__ import annotations

import asyncio
from typing import Self
from uuid import UUID, uuid4

import psycopg
import pytest

from runs import seams
from runs.broker.jobs import Hop, MissingQueue
from runs.broker.publish import Enqueued, Publisher
from runs.errors import Degraded, Invalid, Unknown
from tests.support.broker import backends, status
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.broker_fixtures"]


class Door:
    """Stops every statement of publishers in this process until it is opened."""

    def __init__(self) -> None:
        self.knocks = 0
        self.open = asyncio.Event()
        self._remove = seams.install("broker.publish", self._knock)

    async def _knock(self, _: str) -> None:
        self.knocks += 1
        await self.open.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()


@pytest.mark.contract("ADM-13")
async def test_a_hop_is_published_under_its_key_and_only_once(
    publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    run = uuid4()
    first = await publisher.enqueue(run, 7, "runs", 50)
    second = await publisher.enqueue(run, 7, "runs", 50)
    assert (first.key, first.outcome, first.status) == (f"run:{run}:7", "enqueued", "queued")
    assert (second.outcome, second.status, second.queue) == ("exists", "queued", "runs")
    assert await status(onlooker, first.key) == "queued"


@pytest.mark.parametrize("state", ["active", "aborting", "aborted", "failed", "complete"])
async def test_a_row_in_any_state_is_left_alone_and_its_state_reported(
    publisher: Publisher, onlooker: psycopg.AsyncConnection, state: str
) -> None:
    run = uuid4()
    key = (await publisher.enqueue(run, 1, "runs", 50)).key
    # As SAQ leaves processed rows: scheduled 0, so that its own conflict rule would revive the terminal ones.
    await onlooker.execute("UPDATE saq_jobs SET status = %s, scheduled = 0 WHERE key = %s", (state, key))
    again = await publisher.enqueue(run, 1, "runs", 50)
    assert (again.outcome, again.status) == ("exists", state)
    assert await status(onlooker, key) == state


async def test_of_simultaneous_publications_of_one_hop_exactly_one_puts_it_there(
    publisher: Publisher, broker_dsn: str
) -> None:
    other = Publisher(broker_dsn)
    await other.connect()
    try:
        run = uuid4()
        calls = [(publisher, other)[n % 2].enqueue(run, 1, "runs", 50) for n in range(8)]
        outcomes = [answer.outcome for answer in await asyncio.gather(*calls)]
        assert sorted(outcomes) == ["enqueued"] + ["exists"] * 7
    finally:
        await other.close()


async def test_calls_that_gather_while_a_statement_is_in_flight_go_together_into_the_next(publisher: Publisher) -> None:
    with Door() as door:
        first = asyncio.create_task(publisher.enqueue(uuid4(), 1, "runs", 50))
        await eventually(lambda: door.knocks == 1)
        rest = [asyncio.create_task(publisher.enqueue(uuid4(), 1, "rites", 50)) for _ in range(40)]
        await asyncio.sleep(0)
        door.open.set()
        answers = await asyncio.gather(first, *rest)
    assert door.knocks == 2
    assert {answer.outcome for answer in answers} == {"enqueued"}


async def test_many_hops_at_once_each_get_their_own_answer(publisher: Publisher) -> None:
    hops = [Hop(uuid4(), 1, "runs", 50) for _ in range(300)]
    await publisher.enqueue(hops[5].run_id, 1, "runs", 50)
    answers = await publisher.publish([*hops, Hop(uuid4(), 1, "heavy", 50)])
    assert [answer.outcome for answer in answers[:300] if isinstance(answer, Enqueued)].count("exists") == 1
    assert isinstance(answers[5], Enqueued)
    assert answers[5].outcome == "exists"
    assert isinstance(answers[300], MissingQueue)


@pytest.mark.contract("ADM-40", "ADM-41")
async def test_a_bad_priority_is_refused_and_spoils_nobody_elses_hop(publisher: Publisher) -> None:
    good, bad = await asyncio.gather(
        publisher.enqueue(uuid4(), 1, "runs", 100), publisher.enqueue(uuid4(), 1, "runs", 101), return_exceptions=True
    )
    assert isinstance(good, Enqueued)
    assert isinstance(bad, Invalid)


@pytest.mark.contract("ADM-17")
async def test_a_publication_without_an_answer_in_time_is_unknown_and_one_never_sent_is_not(
    broker_dsn: str, onlooker: psycopg.AsyncConnection
) -> None:
    publisher = Publisher(broker_dsn, within=0.2)
    await publisher.connect()
    try:
        with Door() as door:
            sent = asyncio.create_task(publisher.enqueue(uuid4(), 1, "runs", 50))
            await eventually(lambda: door.knocks == 1)
            unsent_run = uuid4()
            with pytest.raises(TimeoutError):
                await publisher._line._lock.acquire()
                await publisher.enqueue(unsent_run, 1, "runs", 50)
            publisher._line._lock.release()
            with pytest.raises(Unknown):
                await sent
        assert await status(onlooker, f"run:{unsent_run}:1") is None
        assert (await publisher.enqueue(unsent_run, 1, "runs", 50)).outcome == "enqueued"
    finally:
        await publisher.close()


async def _blocked(onlooker: psycopg.AsyncConnection, dsn: str, key: str) -> psycopg.AsyncConnection:
    """A transaction that inserted `key` and has not committed: a publication of it waits."""
    blocker = await psycopg.AsyncConnection.connect(dsn)
    await blocker.execute(
        "INSERT INTO saq_jobs (key, job, queue, status) VALUES (%s, '{}'::bytea, 'runs', 'queued')", (key,)
    )
    return blocker


async def _waits_for_a_lock(onlooker: psycopg.AsyncConnection) -> list[int]:
    rows = await onlooker.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return [pid for (pid,) in await rows.fetchall()]


@pytest.mark.contract("ADM-14")
async def test_a_connection_lost_in_mid_statement_leaves_the_outcome_unknown_and_the_next_call_works(
    publisher: Publisher, onlooker: psycopg.AsyncConnection, broker_dsn: str
) -> None:
    run, other = uuid4(), uuid4()
    blocker = await _blocked(onlooker, broker_dsn, f"run:{run}:1")
    try:
        call = asyncio.create_task(publisher.enqueue(run, 1, "runs", 50))
        (pid,) = await eventually(lambda: _waits_for_a_lock(onlooker))
        await onlooker.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(Unknown):
            await call
    finally:
        await blocker.rollback()
        await blocker.close()
    assert (await publisher.enqueue(other, 1, "runs", 50)).outcome == "enqueued"


async def test_a_publication_waits_for_a_concurrent_one_and_then_says_what_it_found(
    publisher: Publisher, onlooker: psycopg.AsyncConnection, broker_dsn: str
) -> None:
    run = uuid4()
    blocker = await _blocked(onlooker, broker_dsn, f"run:{run}:1")
    call = asyncio.create_task(publisher.enqueue(run, 1, "runs", 50))
    await eventually(lambda: _waits_for_a_lock(onlooker))
    await blocker.commit()
    await blocker.close()
    answer = await call
    assert (answer.outcome, answer.status) == ("exists", "queued")


async def test_a_cancelled_caller_leaves_the_other_callers_of_its_statement_alone(publisher: Publisher) -> None:
    with Door() as door:
        calls = [asyncio.create_task(publisher.enqueue(uuid4(), 1, "runs", 50)) for _ in range(3)]
        await eventually(lambda: door.knocks == 1)
        calls[1].cancel()
        door.open.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, Enqueued) for answer in answers] == [True, False, True]
    assert isinstance(answers[1], asyncio.CancelledError)


async def test_a_cancelled_call_that_was_not_sent_yet_is_never_sent(
    publisher: Publisher, onlooker: psycopg.AsyncConnection
) -> None:
    run = uuid4()
    with Door() as door:
        first = asyncio.create_task(publisher.enqueue(uuid4(), 1, "runs", 50))
        await eventually(lambda: door.knocks == 1)
        second = asyncio.create_task(publisher.enqueue(run, 1, "runs", 50))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        door.open.set()
        await first
    await publisher.enqueue(uuid4(), 1, "runs", 50)
    assert await status(onlooker, f"run:{run}:1") is None


@pytest.mark.contract("QUE-7", "CAN-17")
async def test_a_lane_that_does_not_exist_is_refused_by_name(publisher: Publisher) -> None:
    with pytest.raises(MissingQueue, match="'heavy'"):
        await publisher.enqueue(uuid4(), 1, "heavy", 50)


async def test_closing_sends_what_waits_and_leaves_no_connection(
    broker_dsn: str, onlooker: psycopg.AsyncConnection, publisher: Publisher
) -> None:
    mine = Publisher(broker_dsn)
    await mine.connect()
    runs: list[UUID] = [uuid4() for _ in range(3)]
    calls = [asyncio.create_task(mine.enqueue(run, 1, "runs", 50)) for run in runs]
    await asyncio.sleep(0)
    await mine.close()
    assert {answer.outcome for answer in await asyncio.gather(*calls)} == {"enqueued"}
    await publisher.close()
    await eventually(lambda: _none(onlooker))


async def _none(onlooker: psycopg.AsyncConnection) -> bool:
    return not await backends(onlooker, "lychd publication")


async def test_a_failed_connect_closes_the_pool(broker_dsn: str, onlooker: psycopg.AsyncConnection) -> None:
    await onlooker.execute("UPDATE saq_versions SET version = 99")
    publisher = Publisher(broker_dsn)
    with pytest.raises(Degraded, match="version 99"):
        await publisher.connect()
    assert publisher.pool.closed
