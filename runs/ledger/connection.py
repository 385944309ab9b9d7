"""A psycopg connection that an async edge owns, and what to do when it is lost.

A lost connection in mid-statement means *unknown*. Edges are idempotent by identity (run, seq, claim id, event id), so
the road back to knowledge is to run the same statement again on a new connection and read what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, LiteralString, cast

import psycopg
import structlog

from runs.backoff import delays
from runs.errors import Unknown

log = structlog.get_logger(__name__)

STATEMENT_TIMEOUT = 30
DEADLOCKS = ("40001", "40P01")
LOCKED = "55P03"


class LedgerConnection:
    """One autocommit connection, opened at first use, opened anew when lost.

    Not for concurrent use: its owner runs one statement or one transaction at a time.

    Args:
        lock_timeout_ms: how long a statement waits for a lock.
        patience: seconds for which a lost connection is opened anew.
        answer_within: seconds after which a statement or transaction without an answer counts as a lost connection;
            more than the server's own limit, which a living server keeps.
        tell_locked: raise LockNotAvailable at once, for an owner with better things to do than wait again.
    """

    def __init__(
        self,
        conninfo: str,
        name: str,
        *,
        lock_timeout_ms: int = 2000,
        patience: float = 15.0,
        answer_within: float = STATEMENT_TIMEOUT + 10.0,
        tell_locked: bool = False,
    ) -> None:
        self._conninfo = conninfo
        self._name = name
        self._options = (
            f"-c statement_timeout={STATEMENT_TIMEOUT * 1000} -c lock_timeout={lock_timeout_ms}"
            " -c jit=off -c timezone=UTC"
        )
        self._patience = patience
        self._answer_within = answer_within
        self._retried = DEADLOCKS if tell_locked else (*DEADLOCKS, LOCKED)
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        connection = self._connection
        if connection is None or connection.closed:
            connection = await psycopg.AsyncConnection.connect(
                self._conninfo,
                autocommit=True,
                prepare_threshold=1,
                options=self._options,
                application_name=f"lychd ledger {self._name}",
            )
            self._connection = connection
        return connection

    async def fetch(self, sql: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run one statement in its own transaction and return its rows.

        Raises:
            Unknown: the connection was lost and stayed lost for the whole patience.
            LockNotAvailable: with `tell_locked`, a lock was not to be had.
            psycopg.Error: what the database says of the statement itself.
        """

        async def once(connection: psycopg.AsyncConnection[Any]) -> list[tuple[Any, ...]]:
            cursor = await connection.execute(cast("LiteralString", sql), params, prepare=True)
            return await cursor.fetchall() if cursor.description else []

        return await self._again_when_lost(once)

    async def transaction[T](self, work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Run `work` in one transaction; it is run again from the start when the connection is lost or it deadlocks."""

        async def once(connection: psycopg.AsyncConnection[Any]) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self._again_when_lost(once)

    async def _again_when_lost[T](self, once: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        deadline = asyncio.get_running_loop().time() + self._patience
        for delay in delays(first=0.02, cap=1.0):
            try:
                connection = await self._open()
                # Keepalive finds a dead machine, not a proxy that lives and forwards nothing.
                timer = asyncio.get_running_loop().call_later(self._answer_within, _hang_up, connection)
                try:
                    return await once(connection)
                finally:
                    timer.cancel()
            except psycopg.OperationalError as error:
                # The server's own verdict on the statement arrives with a SQLSTATE and a living connection.
                alive = self._connection is not None and not self._connection.closed
                if alive and error.sqlstate not in self._retried:
                    raise
                if asyncio.get_running_loop().time() + delay > deadline:
                    raise Unknown(f"The database did not answer for {self._patience:.0f} s.") from error
                log.warning("ledger.retrying", connection=self._name, error=str(error).splitlines()[0])
                await asyncio.sleep(delay)
        raise Unknown

    async def close(self) -> None:
        """Close the connection if it is open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """End the connection under a statement that waits on it, which is then told that it was lost.

    Cancelling the waiting task is not enough: psycopg then waits for the answer to the cancelled statement.
    """
    log.warning("ledger.no_answer", connection=connection.info.parameter_status("application_name"))
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
