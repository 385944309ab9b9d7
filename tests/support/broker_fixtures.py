"""A database of its own for each test of the broker; loaded with `pytest_plugins`."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runs.broker.publish import Publisher
from tests.support.scratch import drop


@pytest.fixture
def broker_dsn() -> Iterator[str]:
    """An empty database, dropped afterwards."""
    server, name = os.environ["DATABASE_URL"], f"lychd_broker_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    try:
        yield make_conninfo(server, dbname=name)
    finally:
        drop(server, name)


@pytest.fixture
async def publisher(broker_dsn: str) -> AsyncIterator[Publisher]:
    """A connected publisher; its pool also serves probes."""
    publisher = Publisher(broker_dsn)
    await publisher.connect()
    yield publisher
    await publisher.close()


@pytest.fixture
async def onlooker(publisher: Publisher, broker_dsn: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """A connection of nobody's; the broker's tables exist."""
    async with await psycopg.AsyncConnection.connect(broker_dsn, autocommit=True) as conn:
        yield conn
