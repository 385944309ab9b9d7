"""The one-Vessel guard: a session advisory lock on a connection of its own (BYD-1).

Losing the connection shuts the gates at once; for a bounded time the lock is retaken on a new connection, and the
Vessel goes on only if the slot still names its boot (ruling 13). Writes no Run and knows no gate: it tells its owner.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, LiteralString, cast

import psycopg
import structlog

from runs.errors import Degraded
from runs.ledger.boots import HOLDER, BootRecord, Holder
from runs.ledger.boots import take as take_slot

log = structlog.get_logger(__name__)

# Any fixed number that nobody else takes as an advisory lock in this database.
LOCK_KEY = 0x1C4D_0001
RETRY_SECONDS = 0.1


class VesselRunning(Degraded):
    """Another Vessel holds this database."""

    code, title = "vessel_running", "Another Vessel is running"


class PoolerInBetween(Degraded):
    """A connection pooler stands between the Vessel and PostgreSQL; the guard needs a direct connection."""

    code, title = "pooler", "Not a direct connection"


@dataclass(frozen=True, slots=True)
class GuardEvents:
    """What the owner does when the guard is lost, held again, or gone for good."""

    lost: Callable[[], None]
    regained: Callable[[], None]
    gone: Callable[[str], None]


class Guard:
    """Holds the lock for one boot."""

    def __init__(self, conninfo: str, boot: BootRecord, *, patience: float = 15.0) -> None:
        self._conninfo = conninfo
        self._boot = boot
        self._patience = patience
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """Take the lock, write the boot record and the slot.

        Raises:
            VesselRunning: names the Vessel that holds the lock: host, pid, boot id, since when.
            PoolerInBetween: the connection is not direct.
            psycopg.OperationalError: PostgreSQL cannot be reached.
        """
        connection = await self._connect()
        try:
            if not await self._try_lock(connection):
                raise VesselRunning(await _who(connection))
            async with connection.transaction():
                script = take_slot(self._boot)
                try:
                    statement = next(script)
                    while True:
                        cursor = await connection.execute(cast("LiteralString", statement.sql), statement.params)
                        statement = script.send(await cursor.fetchall())
                except StopIteration:
                    pass
        except BaseException:
            await connection.close()
            raise
        self._connection = connection

    def watch(self, events: GuardEvents) -> asyncio.Task[None]:
        """Start watching the connection; the task ends when the guard is gone for good or `release` is called."""
        self._watcher = asyncio.get_running_loop().create_task(self._watch(events), name="vessel guard")
        return self._watcher

    async def release(self) -> None:
        """Stop watching and let the lock go."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    @property
    def held(self) -> bool:
        """Whether the lock's connection is alive as far as this process knows."""
        return self._connection is not None and not self._connection.closed

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(
            self._conninfo, autocommit=True, connect_timeout=10, application_name="lychd guard"
        )
        cursor = await connection.execute("select pg_backend_pid()")
        found = await cursor.fetchone()
        if found is None or found[0] != connection.info.backend_pid:
            await connection.close()
            raise PoolerInBetween
        return connection

    async def _try_lock(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        cursor = await connection.execute("select pg_try_advisory_lock(%s::bigint)", (LOCK_KEY,))
        found = await cursor.fetchone()
        return bool(found and found[0])

    async def _watch(self, events: GuardEvents) -> None:
        while True:
            connection = self._connection
            assert connection is not None
            try:
                # Nothing is ever sent on this connection: the wait ends only when it breaks.
                async for _ in connection.notifies():
                    continue
                reason = "the server ended the connection"
            except psycopg.Error as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
            log.warning("guard.lost", reason=reason)
            events.lost()
            try:
                verdict = await self._retake()
            except Exception as error:
                # Whatever it is, a Vessel whose guard nobody watches must not go on.
                log.exception("guard.not_retaken")
                verdict = f"{type(error).__name__}: {error}"
            await connection.close()
            if verdict is not None:
                events.gone(verdict)
                return
            log.info("guard.regained")
            events.regained()

    async def _retake(self) -> str | None:
        """Try to hold the lock again. Returns None when it is held and the slot still names this boot, else why not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        reason = "the database did not come back in time"
        while loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    verdict = await self._try_to_hold()
            except TimeoutError:
                break
            except (psycopg.OperationalError, PoolerInBetween) as error:
                reason = str(error).splitlines()[0]
            else:
                if verdict is not _Try.AGAIN:
                    return None if verdict is _Try.HELD else "another Vessel took the database meanwhile"
                reason = "the lock is held by another session"
            await asyncio.sleep(RETRY_SECONDS)
        return reason

    async def _try_to_hold(self) -> _Try:
        connection = await self._connect()
        verdict = _Try.AGAIN
        try:
            locked = await self._try_lock(connection)
            holder = await _holder(connection)
            if holder is None or holder.boot_id != self._boot.id:
                verdict = _Try.TAKEN
            elif locked:
                # Not locked: the server may not have noticed yet that our old session is dead.
                verdict = _Try.HELD
                self._connection = connection
        finally:
            if verdict is not _Try.HELD:
                await connection.close()
        return verdict


class _Try(StrEnum):
    HELD = "held"
    TAKEN = "taken"
    AGAIN = "again"


async def _holder(connection: psycopg.AsyncConnection[Any]) -> Holder | None:
    cursor = await connection.execute(HOLDER)
    found = await cursor.fetchone()
    return Holder(uuid.UUID(str(found[0])), found[1], found[2], found[3]) if found else None


async def _who(connection: psycopg.AsyncConnection[Any]) -> str:
    holder = await _holder(connection)
    if holder is None:
        return "Another Vessel is starting on this database."
    return (
        f"Another Vessel holds this database: host {holder.host}, pid {holder.pid}, boot {holder.boot_id}, "
        f"since {holder.since:%Y-%m-%d %H:%M:%S} UTC."
    )
