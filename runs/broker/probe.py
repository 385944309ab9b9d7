"""Looks at broker rows and fences them. Never publishes, never touches the ledger.

Reads judge nothing: what a row's state means for a Run is the relay's and the recovery's to say.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, LiteralString, cast
from uuid import UUID

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from runs.broker.aborts import AbortDecision, AbortResult, decide_abort
from runs.broker.jobs import JobStatus, JobView, require_queue
from runs.broker.pools import LOST, Pool
from runs.errors import Degraded, Unknown
from runs.ids import job_key
from runs.routing import QUEUES

_ROWS: LiteralString = "SELECT key, queue, status, priority, job FROM saq_jobs WHERE key = ANY(%s::text[])"
_STATUS: LiteralString = "SELECT status FROM saq_jobs WHERE key = %s"
_TAKEN: LiteralString = """
SELECT key FROM saq_jobs
WHERE status IN ('active', 'aborting') AND queue = ANY(%s::text[]) AND key LIKE 'run:%%' AND key > %s
ORDER BY key LIMIT %s
"""

FIRST_LOOK, LAST_LOOK = 0.01, 0.25


class Probe:
    """Reads and fences broker rows over the publication pool.

    Args:
        pool: the publisher's.
        queues: the lanes that exist.
        within: seconds that one look or one decision may take (RLY-11, CAN-16).
    """

    def __init__(self, pool: Pool, *, queues: Collection[str] = QUEUES, within: float = 5.0) -> None:
        self._pool, self._queues, self._within = pool, queues, within

    async def status(self, run_id: UUID, seq: int, queue: str) -> JobView | None:
        """The row of one hop, or None. Keys are unique over all lanes: compare the view's queue with the expected one.

        Raises:
            MissingQueue: there is no such lane (CAN-17).
            Degraded: the broker could not be read in time.
        """
        require_queue(queue, self._queues)
        key = job_key(run_id, seq)
        return (await self.statuses([key])).get(key)

    async def statuses(self, keys: Iterable[str]) -> dict[str, JobView]:
        """The rows of these keys on any lane, by one query; absent ones are missing from the answer.

        A row whose payload cannot be read is answered from its columns.

        Raises:
            Degraded: the broker could not be read in time.
        """
        wanted = list(keys)
        if not wanted:
            return {}

        async def read(conn: AsyncConnection[TupleRow]) -> list[TupleRow]:
            return await (await conn.execute(_ROWS, (wanted,), binary=True)).fetchall()

        try:
            rows = await self._ask(read)
        except (TimeoutError, *LOST) as error:
            raise Degraded(f"The broker could not be read: {str(error).strip() or 'no answer in time'}.") from error
        return {row[0]: _view(*row) for row in rows}

    async def taken(self, *, after: str, limit: int) -> list[str]:
        """Keys of Runs' rows that a worker has taken and not ended, in their order, from behind `after`.

        Raises:
            Degraded: the broker could not be read in time.
        """

        async def read(conn: AsyncConnection[TupleRow]) -> list[TupleRow]:
            return await (await conn.execute(_TAKEN, (list(self._queues), after, limit))).fetchall()

        try:
            return [row[0] for row in await self._ask(read)]
        except (TimeoutError, *LOST) as error:
            raise Degraded(f"The broker could not be read: {str(error).strip() or 'no answer in time'}.") from error

    async def abort(self, key: str, reason: str, wait: float) -> AbortResult:
        """End the work under `key`: queued rows at once, active ones by their worker, waited for (QUE-4, QUE-5).

        Args:
            wait: seconds that the worker may take to acknowledge.

        Returns:
            Only when the row is missing or terminal.

        Raises:
            TimeoutError: the worker did not acknowledge in time; the row stays marked.
            Unknown: the connection was lost; the row may or may not be marked. Repeating is safe.

        Cancellation: propagates; a mark that was made stays.
        """
        result = await self._decide(key, reason, force=False)
        if result.decision is not AbortDecision.ABORTING:
            return result
        try:
            async with asyncio.timeout(wait):
                return AbortResult(AbortDecision.ABORTING, await self._acknowledged(key))
        except TimeoutError as error:
            raise TimeoutError(f"{key} was told to end and did not within {wait:g} s") from error

    async def fence_orphan(self, key: str, reason: str) -> AbortResult:
        """End the row of work that nobody can acknowledge any more, without waiting (QUE-6).

        Raises:
            Unknown: no answer; repeating is safe.
        """
        return await self._decide(key, reason, force=True)

    async def _acknowledged(self, key: str) -> JobStatus | None:
        async def read(conn: AsyncConnection[TupleRow]) -> TupleRow | None:
            return await (await conn.execute(_STATUS, (key,))).fetchone()

        pause = FIRST_LOOK
        while True:
            try:
                row = await self._ask(read)
            except LOST:
                # The outcome is on the row; look again until the caller's time is over.
                row = (JobStatus.ABORTING.value,)
            status = JobStatus(row[0]) if row else None
            if status is None or status.terminal:
                return status
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_LOOK)

    async def _decide(self, key: str, reason: str, *, force: bool) -> AbortResult:
        async def decide(conn: AsyncConnection[TupleRow]) -> AbortResult:
            return await decide_abort(conn, key, reason, force=force)

        try:
            return await self._ask(decide)
        except (TimeoutError, *LOST) as error:
            raise Unknown(f"Aborting {key} got no answer.", key=key) from error

    async def _ask[T](self, question: Callable[[AsyncConnection[TupleRow]], Awaitable[T]]) -> T:
        # All questions may be asked twice. A pool without pings may hold connections of a server that restarted.
        async with asyncio.timeout(self._within):
            try:
                async with self._pool.connection() as conn:
                    return await question(conn)
            except psycopg.OperationalError:
                await self._pool.check()
                async with self._pool.connection() as conn:
                    return await question(conn)


def _view(key: str, queue: str, status: str, priority: int, stored: bytes) -> JobView:
    try:
        loaded = json.loads(stored)
    except ValueError:
        loaded = None
    job = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    meta = job.get("meta")
    boot = cast("dict[str, Any]", meta).get("boot") if isinstance(meta, dict) else None
    return JobView(
        key=key,
        queue=queue,
        status=JobStatus(status),
        priority=priority,
        queued_ms=_milliseconds(job.get("queued")),
        started_ms=_milliseconds(job.get("started")),
        touched_ms=_milliseconds(job.get("touched")),
        boot=boot if isinstance(boot, str) else None,
        worker=_text(job.get("worker_id")),
        error=_text(job.get("error")),
    )


def _milliseconds(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
