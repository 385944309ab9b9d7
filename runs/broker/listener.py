"""Hears the wake-ups of one lane for as long as the lane is connected. Never takes a job itself.

SAQ stops listening whenever no slot waits and starts anew for the next one; a word spoken in between is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import structlog
from psycopg.sql import SQL, Identifier
from saq.queue.postgres import CHANNEL, ENQUEUE

from runs.backoff import delays
from runs.broker.aborts import ABORT_WORD
from runs.broker.pools import LOST, Pool

log = structlog.get_logger()


class Listener:
    """Calls `on_enqueue` and `on_abort` for the words of a queue's channel, and both after every gap in hearing."""

    def __init__(self, pool: Pool, queue: str, *, on_enqueue: Callable[[], None], on_abort: Callable[[], None]) -> None:
        self._pool, self._queue = pool, queue
        self._on_enqueue, self._on_abort = on_enqueue, on_abort
        self.hearing = asyncio.Event()

    async def run(self) -> None:
        """Listen for ever; a lost connection is replaced with backoff. Cancellation: the connection is closed."""
        pause = delays()
        while True:
            try:
                await self._hear()
            except LOST as error:
                wait = next(pause) if not self.hearing.is_set() else next(pause := delays())
                self.hearing.clear()
                log.warning("lane.deaf", queue=self._queue, error=str(error).strip(), again_in=wait)
                await asyncio.sleep(wait)

    async def _hear(self) -> None:
        conn = await self._pool.getconn()
        try:
            await conn.execute(SQL("LISTEN {}").format(Identifier(CHANNEL.format(self._queue))))
            self.hearing.set()
            # What was said while nobody listened is made up for.
            self._on_enqueue()
            self._on_abort()
            async for note in conn.notifies():
                if note.payload == ENQUEUE:
                    self._on_enqueue()
                elif note.payload == ABORT_WORD:
                    self._on_abort()
            raise psycopg.OperationalError("the connection stopped listening")
        finally:
            try:
                # Given back deaf: whoever gets it next does not want to hear.
                await conn.execute("UNLISTEN *")
            except LOST:
                await conn.close()
            finally:
                await self._pool.putconn(conn)
