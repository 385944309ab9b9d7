"""The broker's own connections: a pool a lane, a pool for publication, and held lines for the hot statements.

Lanes and publication never share a pool: callers that publish would starve the lane. Nothing here pings a connection
before it is used; one that turns out broken is given back, and the pool opens a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

Pool = AsyncConnectionPool[AsyncConnection[TupleRow]]

# The server could not be reached or went away; nothing is known about a statement that was on its way.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, PoolClosed, TooManyRequests)

LANE_CONNECTIONS = 4
PUBLICATION_CONNECTIONS = 4

# A plan of the table's empty days would stay until the next analyze, however long the queue has grown since: a scan of
# the whole table, or of all that is queued with a sort behind it. These sessions only ever look up keys or read the
# dequeue index in its order.
#
# Commits do not wait for the disk: the broker is a courier whose rows may be lost. Whatever the ledger commits after
# it acted on a broker row is later in the write-ahead log and takes that row to the disk with it; a broker row that a
# crash loses before that is one that the ledger has not heard of, and the relay or the claim puts it right.
_SETTINGS: LiteralString = """
SELECT set_config(name, value, false)
FROM (VALUES ('enable_seqscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
             ('enable_bitmapscan', 'off'), ('enable_sort', 'off'), ('jit', 'off'),
             ('plan_cache_mode', 'force_generic_plan'), ('synchronous_commit', 'off'),
             ('statement_timeout', '10s'), ('lock_timeout', '5s'),
             ('idle_in_transaction_session_timeout', '30s')) AS settings (name, value)
"""

# A peer that vanished without a word is noticed in about 25 seconds, not in two hours.
_KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


async def _configure(conn: AsyncConnection[TupleRow]) -> None:
    await conn.execute(_SETTINGS)


def _pool(dsn: str, name: str, least: int, most: int) -> Pool:
    return AsyncConnectionPool(
        dsn,
        kwargs={"autocommit": True, "application_name": f"lychd {name}", "connect_timeout": 5, **_KEEPALIVES},
        min_size=least,
        max_size=most,
        open=False,
        configure=_configure,
        timeout=5.0,
        num_workers=1,
        name=f"lychd-{name}",
    )


def lane_pool(dsn: str, queue: str) -> Pool:
    """The closed pool of one lane: its two lines and what SAQ itself asks for."""
    return _pool(dsn, f"lane {queue}", 3, LANE_CONNECTIONS)


def publication_pool(dsn: str) -> Pool:
    """The closed pool of publication, probes and aborts, for all lanes together."""
    return _pool(dsn, "publication", 2, PUBLICATION_CONNECTIONS)


class Line:
    """One connection of a pool, held as long as it lives, for statements that follow each other.

    A statement runs at a time; statements that lock several rows share a line, so they cannot deadlock each other.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._conn: AsyncConnection[TupleRow] | None = None
        self._cursor: AsyncCursor[TupleRow] | None = None
        self._lock = asyncio.Lock()
        # Whether the last statement went down with its connection.
        self.lost = False

    async def run(self, statement: LiteralString, parameters: Mapping[str, Any] | None = None) -> list[TupleRow]:
        """Run one statement in its own transaction and return its rows.

        Raises:
            psycopg.Error, PoolTimeout: `LOST` says which of them leave the outcome unknown; after those the next
                call opens another connection.

        Cancellation: the statement is cancelled on the server; the connection is given up.
        """
        async with self._lock:
            cursor = self._cursor or await self._open()
            self.lost = False
            try:
                await cursor.execute(statement, parameters, prepare=True)
                return await cursor.fetchall() if cursor.description else []
            except psycopg.Error:
                if self._conn is None or self._conn.broken:
                    self.lost = True
                    await self._drop()
                raise
            except asyncio.CancelledError:
                await self._drop()
                raise

    async def ready(self) -> None:
        """Have a connection, so that what fails from here on may have been sent."""
        async with self._lock:
            if self._cursor is None or self._conn is None or self._conn.broken:
                await self._drop()
                await self._open()

    async def close(self) -> None:
        """Give the connection back; the next statement would take another."""
        async with self._lock:
            await self._drop()

    async def _open(self) -> AsyncCursor[TupleRow]:
        self._conn = await self._pool.getconn()
        self._cursor = self._conn.cursor(binary=True)
        return self._cursor

    async def _drop(self) -> None:
        conn, self._conn, self._cursor = self._conn, None, None
        if conn is not None:
            await self._pool.putconn(conn)
