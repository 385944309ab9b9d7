"""Connections for reading: a few, held open, one statement each at a time. Never writes.

No pool check-out and no ping stands before a statement; a connection that turns out broken is replaced and the
statement, which only reads, is asked once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any, LiteralString, cast

import psycopg
import structlog

from runs.backoff import delays
from runs.errors import Degraded, Unknown

log = structlog.get_logger(__name__)

POOL_SIZE = 4
# Seconds to wait for a free connection, and for a new one.
PATIENCE = 10.0
STATEMENT_TIMEOUT = 15

type Connection = psycopg.AsyncConnection[Any]


async def patiently[T](ask: Callable[[], Awaitable[T]], patience: float = PATIENCE) -> T:
    """Ask again and again while the database cannot be asked, for work that has nobody to send away meanwhile.

    Args:
        ask: only reads.
        patience: seconds.

    Raises:
        Unknown: it could not be asked for so long; that says nothing about what was asked for.
    """
    deadline = asyncio.get_running_loop().time() + patience
    for delay in delays(first=0.05, cap=1.0):
        try:
            return await ask()
        except Degraded as error:
            if asyncio.get_running_loop().time() + delay > deadline:
                raise Unknown(f"The database did not answer for {patience:g} s.") from error
            log.warning("database.asked_again", error=error.detail)
            await asyncio.sleep(delay)
    raise Unknown


@contextlib.contextmanager
def answering(connection: Connection, within: float) -> Generator[None]:
    """Take a connection that gives no answer within so many seconds for lost: what waits on it then raises.

    Keepalive finds a dead machine, not a proxy that lives and forwards nothing. And a time limit around the await
    would cancel, which psycopg first tells the server over another connection, as silent as this one.
    """
    timer = asyncio.get_running_loop().call_later(within, _hang_up, connection)
    try:
        yield
    finally:
        timer.cancel()


def _hang_up(connection: Connection) -> None:
    name = connection.info.parameter_status("application_name")
    log.warning("database.no_answer", connection=name)
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


class Reads:
    """Reads for the Vessel's edges and relays.

    Args:
        conninfo: where to read.
        size: most connections.
        answer_within: seconds after which a connection without an answer counts as lost; more than the server's own
            limit, which a living server keeps.
    """

    def __init__(self, conninfo: str, size: int = POOL_SIZE, *, answer_within: float = STATEMENT_TIMEOUT + 5.0) -> None:
        self._conninfo = conninfo
        self._size = size
        self._answer_within = answer_within
        self._idle: asyncio.LifoQueue[Connection | None] = asyncio.LifoQueue()
        self._closed = True

    async def open(self) -> None:
        """Connect once, to know that it can be done; the other connections are opened when they are needed.

        Raises:
            psycopg.OperationalError: the database cannot be reached.
        """
        first = await self._connect()
        for _ in range(self._size - 1):
            self._idle.put_nowait(None)
        self._idle.put_nowait(first)
        self._closed = False

    async def close(self) -> None:
        """Close every connection; statements on their way end first, later ones are refused."""
        if self._closed:
            return
        self._closed = True
        for _ in range(self._size):
            connection = await self._idle.get()
            if connection is not None:
                await connection.close()

    async def fetch_all(self, sql: str, params: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query.

        Raises:
            Degraded: the database could not be asked; nothing is known of the answer.

        Cancellation: the statement is given up and its connection replaced.
        """
        if self._closed:
            raise Degraded("The database cannot be asked: the connections are closed.")
        try:
            async with asyncio.timeout(PATIENCE):
                connection = await self._idle.get()
        except TimeoutError as error:
            raise Degraded(f"The database cannot be asked: no connection was free for {PATIENCE:g} s.") from error
        try:
            for again in (True, False):
                try:
                    if connection is None or connection.closed:
                        connection = await self._connect()
                    with answering(connection, self._answer_within):
                        cursor = await connection.execute(cast("LiteralString", sql), params or {})
                        return await cursor.fetchall()
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    lost = connection is None or connection.closed
                    if not (lost and again):
                        raise Degraded(f"The database cannot be asked: {str(error).splitlines()[0]}.") from error
        except asyncio.CancelledError:
            if connection is not None:
                await connection.close()
            raise
        finally:
            self._idle.put_nowait(connection)
        raise Degraded

    async def fetch_one(self, sql: str, params: dict[str, Any] | None = None) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""
        rows = await self.fetch_all(sql, params)
        return rows[0] if rows else None

    async def _connect(self) -> Connection:
        return await psycopg.AsyncConnection.connect(
            self._conninfo,
            autocommit=True,
            prepare_threshold=1,
            connect_timeout=int(PATIENCE),
            application_name="lychd reads",
            options=f"-c statement_timeout={STATEMENT_TIMEOUT * 1000} -c jit=off -c timezone=UTC",
        )
