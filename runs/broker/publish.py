"""Puts hops on the lanes: calls that gather while a statement is in flight go together into the next one.

A key that already exists is left alone, whatever its state, and that state is reported: SAQ's own enqueue would bring a
finished row back to life. Never decides what to do about it; the ledger and the relay do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import LiteralString
from uuid import UUID

import structlog
from psycopg.rows import TupleRow
from saq.queue.postgres import ENQUEUE

from runs.broker.jobs import Hop, JobStatus, payload, require_queue
from runs.broker.pools import LOST, Line, publication_pool
from runs.broker.tables import ensure_tables
from runs.errors import Degraded, Unknown
from runs.routing import QUEUES
from runs.seams import seam

log = structlog.get_logger()

BATCH = 256

# Stricter than SAQ's conflict rule, which overwrites terminal rows. The notifications of one transaction that are
# equal are delivered once.
INSERT: LiteralString = """
WITH inserted AS (
  INSERT INTO saq_jobs (key, job, queue, status, priority, scheduled)
  SELECT key, job, queue, 'queued', priority, extract(epoch FROM now())::bigint
  FROM unnest(%(keys)s::text[], %(jobs)s::bytea[], %(queues)s::text[], %(priorities)s::smallint[])
       WITH ORDINALITY AS hop (key, job, queue, priority, place)
  ORDER BY place
  ON CONFLICT (key) DO NOTHING
  RETURNING key, queue
)
SELECT key, pg_notify('saq:' || queue, %(word)s)::text FROM inserted
"""

_EXISTING: LiteralString = "SELECT key, status, queue FROM saq_jobs WHERE key = ANY(%(keys)s::text[])"


class Outcome(StrEnum):
    """ENQUEUED: this call put the row there. EXISTS: a row with that key was there before."""

    ENQUEUED = "enqueued"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of one hop; `status` and `queue` are those of the row as it stands."""

    key: str
    outcome: Outcome
    status: JobStatus
    queue: str


@dataclass(slots=True, eq=False)
class _Call:
    hop: Hop
    priority: int
    job: bytes
    future: asyncio.Future[Enqueued]
    sent: bool = False


class Publisher:
    """Publishes hops of all lanes over a pool of its own, which the probes share.

    Args:
        dsn: a direct connection to PostgreSQL.
        queues: the lanes that exist.
        within: seconds that one publication may take (ADM-17).
    """

    def __init__(self, dsn: str, *, queues: Sequence[str] = QUEUES, within: float = 10.0) -> None:
        self.queues = tuple(queues)
        self.pool = publication_pool(dsn)
        self._within = within
        self._line = Line(self.pool)
        self._waiting: list[_Call] = []
        self._sender: asyncio.Task[None] | None = None
        self._closed = False

    async def connect(self) -> None:
        """Open the pool and make sure that the tables are there; on failure or cancellation the pool is closed."""
        try:
            await self.pool.open(wait=True, timeout=10)
            async with self.pool.connection() as conn:
                await ensure_tables(conn)
        except BaseException:
            await self.pool.close()
            raise

    async def close(self) -> None:
        """Send what waits (bounded by `within`), then close the pool. Cancellation: the pool is closed nevertheless."""
        self._closed = True
        sender = self._sender
        try:
            if sender is not None:
                await asyncio.wait([sender], timeout=self._within)
                sender.cancel()
                await asyncio.wait([sender])
            await self._line.close()
        finally:
            await self.pool.close()

    async def enqueue(self, run_id: UUID, enqueue_seq: int, queue_name: str, priority: int) -> Enqueued:
        """Publish one hop.

        Args:
            priority: 0 to 100, higher first; converted for the wire here and nowhere else (ADM-41).

        Raises:
            MissingQueue: there is no such lane.
            Invalid: the priority is out of range.
            TimeoutError: it was not sent in time (ADM-17); nothing was published.
            Unknown: it was sent and no answer came; probe the key before acting.
            psycopg.Error, PoolTimeout: refused or not reachable; nothing was published.

        Cancellation: propagates; a hop that was not sent yet is not sent, one on its way may be published.
        """
        hop = Hop(run_id, enqueue_seq, queue_name, priority)
        require_queue(queue_name, self.queues)
        if self._closed:
            raise RuntimeError("the publisher is closed")
        call = _Call(hop, *payload(hop), asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all(), name="lychd.publisher")
        try:
            async with asyncio.timeout(self._within):
                return await call.future
        except TimeoutError as error:
            if call.sent:
                raise Unknown(f"Publishing {hop.key} got no answer within {self._within:g} s.", key=hop.key) from error
            raise
        finally:
            if not call.sent and call in self._waiting:
                self._waiting.remove(call)

    async def publish(self, hops: Sequence[Hop]) -> list[Enqueued | Exception]:
        """Publish many hops at once; each gets its own outcome or its own error, in the order given."""
        calls = (self.enqueue(hop.run_id, hop.seq, hop.queue, hop.priority) for hop in hops)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
        return [
            outcome for outcome in outcomes if not isinstance(outcome, BaseException) or isinstance(outcome, Exception)
        ]

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                # Calls of the same tick of the loop go together.
                await asyncio.sleep(0)
                batch = self._next_batch()
                if batch:
                    await self._send(batch)
        finally:
            self._sender = None
            if self._closed:
                self._fail(self._waiting, Degraded("The publisher was closed before this hop was sent."))

    def _next_batch(self) -> list[_Call]:
        # Two calls for one key must not both hear that they enqueued it: the second waits for the next statement.
        batch: dict[str, _Call] = {}
        later: list[_Call] = []
        for call in self._waiting:
            if len(batch) < BATCH and call.hop.key not in batch:
                batch[call.hop.key] = call
            else:
                later.append(call)
        self._waiting = later
        return list(batch.values())

    async def _send(self, batch: list[_Call]) -> None:
        try:
            async with asyncio.timeout(self._within):
                await self._line.ready()
                batch[:] = [call for call in batch if not call.future.done()]
                for call in batch:
                    call.sent = True
                if not batch:
                    return
                await seam("broker.publish")
                rows = await self._line.run(
                    INSERT,
                    {
                        "keys": [call.hop.key for call in batch],
                        "jobs": [call.job for call in batch],
                        "queues": [call.hop.queue for call in batch],
                        "priorities": [call.priority for call in batch],
                        "word": ENQUEUE,
                    },
                )
                await self._answer(batch, rows)
        except LOST as error:
            self._fail(batch, error, unknown=self._line.lost and any(call.sent for call in batch))
        except TimeoutError as error:
            self._fail(batch, error, unknown=any(call.sent for call in batch))
        except asyncio.CancelledError:
            self._fail(batch, Unknown("The publisher was closed while the publication was on its way."))
            raise
        except Exception as error:  # noqa: BLE001 - handed to every caller of the batch
            self._fail(batch, error)

    async def _answer(self, batch: list[_Call], rows: list[TupleRow]) -> None:
        inserted = {row[0] for row in rows}
        others: list[_Call] = []
        for call in batch:
            if call.hop.key in inserted:
                _resolve(call, Enqueued(call.hop.key, Outcome.ENQUEUED, JobStatus.QUEUED, call.hop.queue))
            else:
                others.append(call)
        if not others:
            return
        # A fresh snapshot: the statement's own cannot say what a concurrent publication left behind.
        found = await self._line.run(_EXISTING, {"keys": [call.hop.key for call in others]})
        existing: dict[str, TupleRow] = {row[0]: row for row in found}
        for call in others:
            row = existing.get(call.hop.key)
            if row is not None:
                _resolve(call, Enqueued(call.hop.key, Outcome.EXISTS, JobStatus(row[1]), row[2]))
            else:
                # It expired between the two statements, so it can be published after all.
                call.sent = False
                self._waiting.append(call)

    def _fail(self, batch: list[_Call], error: Exception, *, unknown: bool = False) -> None:
        for call in batch:
            if not call.future.done():
                failure = error
                if unknown:
                    failure = Unknown(f"Publishing {call.hop.key}: the connection was lost.", key=call.hop.key)
                    failure.__cause__ = error
                call.future.set_exception(failure)


def _resolve(call: _Call, outcome: Enqueued) -> None:
    if not call.future.done():
        call.future.set_result(outcome)
