"""Hears what surfaces without a broker committed, and publishes it at once (ruling 30).

The admin, commands and REST in a thread issue `pg_notify` in their transaction; this loop listens on a connection of
its own. A lost notification costs nothing but time: the delivery relay is the net below.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from runs.errors import LychdError
from runs.ledger.notify import LISTEN

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Wakeups:
    """Listens for Run ids whose current hop wants to be published.

    Args:
        publish: publishes the current hop of a Run if it is still pending.
    """

    conninfo: str
    publish: Callable[[uuid.UUID], Awaitable[None]]
    interval: float = 1.0
    name: str = "wakeups"
    _connection: psycopg.AsyncConnection[Any] | None = None

    async def tick(self) -> bool:
        """Listen for one interval; the connection is kept from tick to tick.

        Cancellation: closes the connection.
        """
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = await psycopg.AsyncConnection.connect(
                    self.conninfo, autocommit=True, application_name="lychd wakeups"
                )
                await connection.execute(LISTEN)
            async for note in connection.notifies(timeout=self.interval):
                await self._hear(note.payload)
        except BaseException:
            await self._leave()
            raise
        return True

    async def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _hear(self, payload: str) -> None:
        try:
            await self.publish(uuid.UUID(payload))
        except (ValueError, LychdError, psycopg.Error, OSError) as error:
            log.warning("wakeups.not_published", run=payload[:100], error=str(error).splitlines()[0])
