"""Node code in threads that uses Django's ORM."""

from __future__ import annotations

import asyncio
import threading

import pytest
from django.db import connections

from runs.driver.threads import Threads
from runs.models import Run


async def test_more_threads_than_djangos_pool_has_connections_can_all_query(transactional_db: None) -> None:
    most = connections.settings["default"]["OPTIONS"]["pool"]["max_size"]
    count = most + 4
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
