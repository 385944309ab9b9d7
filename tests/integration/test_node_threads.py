"""Node code that uses Django's ORM, in threads and on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import psycopg
import pytest
from django.db import OperationalError, connections
from pydantic import BaseModel

from lychd.testing.kit import VesselKit, running
from runs.driver.threads import Threads
from runs.models import Run
from runs.patterns import Context, Finish, Pattern, RetryPolicy

# Connections of Django's pool.
MOST: int = connections.settings["default"]["OPTIONS"]["pool"]["max_size"]


async def test_more_threads_than_djangos_pool_has_connections_can_all_query(transactional_db: None) -> None:
    count = MOST + 4
    threads = Threads(count)
    together = threading.Barrier(count)

    def query() -> int:
        together.wait(20)
        return Run.objects.count()

    try:
        assert await asyncio.gather(*(threads.run(_nothing, query) for _ in range(count))) == [0] * count
    finally:
        threads.close()


async def test_a_query_that_fails_gives_its_connection_back_too(transactional_db: None) -> None:
    threads = Threads(1)
    held: list[bool] = []

    def query() -> None:
        Run.objects.get()

    def look() -> None:
        held.append(connections["default"].connection is not None)

    try:
        with pytest.raises(Run.DoesNotExist):
            await threads.run(_nothing, query)
        await threads.run(_nothing, look)
    finally:
        threads.close()
    assert held == [False]


def _nothing() -> None:
    """Nobody is to be told of a cancellation."""


class Nothing(BaseModel):
    pass


class Found(BaseModel):
    runs: int


counts = Pattern("counts", input=Nothing, state=Nothing, output=Found)


@counts.start
async def count(ctx: Context[Nothing, Nothing]) -> Finish[Found]:
    try:
        return Finish(Found(runs=await Run.objects.acount()))
    except OperationalError as error:
        raise RuntimeError("in the author's own words") from error


steps = Pattern("steps", input=Nothing, state=Nothing, output=Found)


@steps.start
async def step(ctx: Context[Nothing, Nothing]) -> Finish[Found]:
    patient = RetryPolicy(attempts=MOST + 1, first_delay=0)
    return Finish(Found(runs=await ctx.step("count", Run.objects.acount, retry=patient, returns=int)))


@asynccontextmanager
async def after_a_loss() -> AsyncGenerator[VesselKit]:
    """A Vessel whose database closed every connection of Django but that of this test's thread."""
    connection = connections["default"].connection
    ours = connection.info.backend_pid if connection else 0
    async with running([counts, steps]) as kit:
        await kit.run(counts)
        async with await psycopg.AsyncConnection.connect(kit.vessel.conninfo, autocommit=True) as administrator:
            await administrator.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name = 'lychd django' and pid <> %s",
                [ours],
            )
        yield kit


async def test_async_queries_of_nodes_work_again_after_the_database_closed_their_connection(
    transactional_db: None,
) -> None:
    async with after_a_loss() as kit:
        # The pool does not look before it hands out: it may hold other lost ones, each found out by one Run.
        ends = [(await kit.ended(await kit.submit(counts))).status for _ in range(MOST + 1)]
        assert ends[0] == "failed", "the loss was not seen, so nothing is proved"
        assert ends[-1] == "done", ends


async def test_a_step_that_is_tried_again_gets_a_connection_that_works(transactional_db: None) -> None:
    async with after_a_loss() as kit:
        run = await kit.run(steps)
        assert run.done_steps[0].attempts > 1, "the loss was not seen, so nothing is proved"
