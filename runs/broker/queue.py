"""SAQ's PostgreSQL queue as the lanes use it: a facade that is put in place before it connects (QUE-1).

Taking, acknowledging and waking are the pump's and the listener's; publication is the publisher's. What SAQ's own tools
ask for (counts, info, single jobs) still works, and every row stays one that a stock SAQ queue can read.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, LiteralString, NoReturn

import structlog
from saq.job import Job
from saq.queue.postgres import PostgresQueue

from runs.broker.aborts import AbortResult, clean, decide_abort
from runs.broker.jobs import JobStatus
from runs.broker.listener import Listener
from runs.broker.pools import Line, Pool, lane_pool
from runs.broker.pump import Finished, Pump
from runs.broker.tables import ensure_tables

log = structlog.get_logger()

_EXPIRE: LiteralString = """
DELETE FROM saq_jobs
WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM saq_jobs
  WHERE queue = %(queue)s AND status IN ('aborted', 'complete', 'failed')
    AND expire_at <= extract(epoch FROM now())
  LIMIT 2000
))
"""
_EXPIRE_STATS: LiteralString = "DELETE FROM saq_stats WHERE expire_at <= extract(epoch FROM now())"


class LaneQueue(PostgresQueue):
    """One lane's queue over its own managed pool.

    Args:
        dsn: a direct connection to PostgreSQL, not through a transaction pooler: LISTEN and prepared statements.
        name: the queue.
        slots: jobs that may be out at a time.
        boot_id: goes into each taken job (ruling 14).
        worker_id: goes into each taken job as SAQ's worker id.
    """

    def __init__(self, dsn: str, name: str, *, slots: int, boot_id: str, worker_id: str) -> None:
        self.connections: Pool = lane_pool(dsn, name)
        super().__init__(
            pool=self.connections,
            name=name,
            min_size=self.connections.min_size,
            max_size=self.connections.max_size,
            manage_pool_lifecycle=True,
        )
        self.aborts = asyncio.Event()
        self._line = Line(self.connections)
        self.pump = Pump(self._line, name, slots, boot_id, worker_id, self._decode)
        self.listener = Listener(self.connections, name, on_enqueue=self.pump.hint, on_abort=self.aborts.set)
        self._helpers: list[asyncio.Task[None]] = []

    @property
    def connected(self) -> bool:
        """Whether `connect` succeeded and `disconnect` was not called since."""
        return self._connected

    async def connect(self) -> None:
        """Open the pool, prove the tables, start listening.

        Whatever fails, the pool that was opened here is closed again, although `disconnect` would do nothing (QUE-2).
        Cancellation: like a failure.
        """
        if self._connected:
            return
        try:
            await super().connect()
            self._spawn("listener", self.listener.run)
            async with asyncio.timeout(10):
                await self.listener.hearing.wait()
            self._spawn("pump", self.pump.run)
        except BaseException:
            self._connected = False
            await self._close()
            raise

    async def init_db(self) -> None:
        """Create or migrate SAQ's tables and look whether they are there; SAQ skips this silently behind a lock."""
        async with self.connections.connection() as conn:
            await ensure_tables(conn)

    async def disconnect(self) -> None:
        """End the listener and the pump, close the pool. Harmless when repeated or when nothing was connected."""
        self._connected = False
        await self._close()

    async def dequeue(self, timeout: float = 0.0, poll_interval: float = 0.0) -> Job | None:  # noqa: ARG002
        """The next job of this lane; waits as long as it takes unless `timeout` seconds are given.

        Cancellation: propagates; a job that was about to be handed over stays for another slot.
        """
        self.pump.serve()
        try:
            async with asyncio.timeout(timeout or None):
                return await self.pump.ready.get()
        except TimeoutError:
            return None

    def settle(self, job: Job, status: JobStatus, *, result: Any = None, error: str | None = None) -> None:
        """Record the end of a job that `dequeue` returned; it is acknowledged with the pump's next turn.

        Args:
            status: a terminal one. A row that something else ended meanwhile stays as it is.
            result: JSON; one that PostgreSQL cannot hold is left out, with a log event.
        """
        patch: dict[str, Any] = {"status": status.value}
        if status is JobStatus.COMPLETE:
            patch |= {"result": result, "progress": 1.0}
        if error is not None:
            patch["error"] = clean(error)
        self.pump.finish(Finished(job.key, status, _text(patch, job.key)))
        if status is JobStatus.COMPLETE:
            self.complete += 1
        elif status is JobStatus.FAILED:
            self.failed += 1
        else:
            self.aborted += 1

    async def abort(self, job: Job, error: str, ttl: float = 5) -> AbortResult:  # type: ignore[override]  # noqa: ARG002  # pyright: ignore[reportIncompatibleMethodOverride]
        """Decide under the row lock in one transaction: SAQ's own would mark finished rows as aborting (QUE-4)."""
        async with self.connections.connection() as conn:
            return await decide_abort(conn, job.key, error)

    async def schedule(self, lock: int = 1) -> list[str]:  # noqa: ARG002
        """Look for work once, wake-up or not: the net below the listener."""
        self.pump.hint()
        return []

    async def sweep(self, lock: int = 60, abort: float = 5.0) -> list[str]:  # noqa: ARG002
        """Delete what has expired, a bounded chunk at a time, and end rows that nobody touches any more.

        Needs no lock between workers: there is one Vessel a database, and each statement stands alone.
        """
        async with self.connections.connection() as conn:
            while (await conn.execute(_EXPIRE, {"queue": self.name})).rowcount > 0:
                pass
            await conn.execute(_EXPIRE_STATS)
        swept = await self.pump.sweep()
        if swept:
            log.warning("lane.swept", queue=self.name, keys=swept)
        return swept

    async def _enqueue(self, job: Job) -> NoReturn:
        # SAQ's conflict rule revives finished rows under the same key.
        raise RuntimeError(f"{job.key}: jobs are published by the Publisher, never through a lane")

    async def _dequeue(self) -> None:
        self.pump.hint()

    def _decode(self, stored: bytes) -> Job:
        job = self.deserialize(stored, JobStatus.ACTIVE.value)
        if job is None:
            raise ValueError("an empty job")
        return job

    def _spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._helpers.append(asyncio.create_task(work(), name=f"lychd.lane.{self.name}.{name}"))

    async def _close(self) -> None:
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.cancel()
        try:
            if helpers:
                await asyncio.wait(helpers)
            for helper in helpers:
                if not helper.cancelled() and (error := helper.exception()) is not None:
                    log.error(
                        "lane.helper_failed", task=helper.get_name(), error="".join(traceback.format_exception(error))
                    )
            await self._line.close()
        finally:
            await self.connections.close()


def _text(patch: dict[str, Any], key: str) -> str:
    try:
        text = json.dumps(patch, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
        if "\\u0000" in text:
            raise ValueError("a NUL character")
    except (TypeError, ValueError) as error:
        log.warning("lane.result_dropped", key=key, error=str(error))
        return json.dumps({name: value for name, value in patch.items() if name != "result"})
    return text
