"""The statements of a lane: one turn ends finished jobs and takes new ones, in one round trip and one commit.

Finishes and free slots that gather while a turn is in flight go together into the next. A turn that failed is unknown:
its finishes are repeated and rows taken without anybody knowing go back to the queue. Never runs a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psycopg
import structlog
from psycopg.rows import TupleRow
from saq.job import Job

from runs.backoff import delays
from runs.broker import statements
from runs.broker.jobs import HEARTBEAT, TTL, JobStatus
from runs.broker.pools import LOST, Line

log = structlog.get_logger()

BATCH = 256


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that ended here and waits for its acknowledgement; `patch` is merged into the stored job."""

    key: str
    status: JobStatus
    patch: str


class Pump:
    """Feeds the slots of one lane and acknowledges what they finish.

    Args:
        line: carries every statement that locks several rows of this lane.
        slots: jobs at a time; a row is only taken for a slot that is free.
        boot_id: written into each taken job, the proof of which life took it (ruling 14).
        decode: makes a SAQ job of a stored payload.
    """

    def __init__(
        self, line: Line, queue: str, slots: int, boot_id: str, worker_id: str, decode: Callable[[bytes], Job]
    ) -> None:
        self._line, self._queue, self.slots = line, queue, slots
        self._boot, self._worker, self._decode = boot_id, worker_id, decode
        self.ready: asyncio.Queue[Job] = asyncio.Queue()
        self._live: dict[str, Job] = {}
        self._finished: list[Finished] = []
        self._bell = asyncio.Event()
        self._quiet = asyncio.Event()
        self._more = True
        self._unsure = False
        self._held = False
        self.serving = False

    @property
    def live(self) -> frozenset[str]:
        """The keys that were taken and have not finished."""
        return frozenset(self._live)

    @property
    def free(self) -> int:
        """Slots without a job."""
        return self.slots - len(self._live)

    def hint(self) -> None:
        """There may be something to take; remembered if a turn is in flight."""
        self._more = True
        self._ring()

    def serve(self) -> None:
        """Take jobs from now on: somebody waits for them."""
        self.serving = True
        self._ring()

    def hold(self) -> None:
        """Take nothing from now on; what is in flight still arrives."""
        self._held = True
        self._ring()

    def finish(self, done: Finished) -> None:
        """Free the slot and acknowledge the job with the next turn."""
        self._live.pop(done.key, None)
        self._finished.append(done)
        self._ring()

    async def settled(self) -> None:
        """Wait until nothing is in flight and every finish is acknowledged. Cancellation: nothing changes."""
        await self._quiet.wait()

    async def beat(self) -> int:
        """Refresh `touched` of every live job in one statement (CLM-14); returns how many."""
        keys = list(self._live)
        return len(await self._line.run(statements.BEAT, {"keys": keys})) if keys else 0

    async def aborted(self) -> list[tuple[str, str]]:
        """Key and reason of each live job whose row asks for its end."""
        keys = list(self._live)
        rows = await self._line.run(statements.ABORTED, {"keys": keys}) if keys else []
        return [(key, error or "aborted") for key, error in rows]

    async def sweep(self) -> list[str]:
        """End rows whose worker stopped touching them and that do not live here; returns their keys."""
        keys = [*self._live, *(done.key for done in self._finished)]
        return [
            row[0]
            for row in await self._line.run(
                statements.STUCK, {"queue": self._queue, "keys": keys, "ttl": TTL, "heartbeat": HEARTBEAT}
            )
        ]

    async def release(self) -> list[str]:
        """Put jobs that were taken but never started back into the queue, under the same key."""
        keys: list[str] = []
        while not self.ready.empty():
            keys.append(self.ready.get_nowait().key)
        if keys:
            await self._give_back(keys, lost=False)
            for key in keys:
                self._live.pop(key, None)
        return keys

    async def run(self) -> None:
        """Turn for ever; a server that is away is waited for with backoff."""
        pause = delays()
        while True:
            if self._idle():
                self._bell.clear()
                self._quiet.set()
                await self._bell.wait()
            self._quiet.clear()
            # Jobs that end in the same tick of the loop are acknowledged by the same turn.
            await asyncio.sleep(0)
            try:
                await self._turn()
            except LOST as error:
                self._unsure = True
                wait = next(pause)
                log.warning("lane.unreachable", queue=self._queue, error=str(error).strip(), again_in=wait)
                await asyncio.sleep(wait)
            except psycopg.Error as error:
                log.error("lane.turn_refused", queue=self._queue, error=str(error).strip())
                await asyncio.sleep(next(pause))
            else:
                pause = delays()

    def _ring(self) -> None:
        self._quiet.clear()
        self._bell.set()

    def _idle(self) -> bool:
        taking = self.serving and not self._held and self._more and self.free > 0
        return not (self._finished or self._unsure or taking)

    async def _turn(self) -> None:
        if self._unsure:
            # A turn whose answer was lost may have taken rows for us that no slot knows of.
            await self._give_back([*self._live, *(done.key for done in self._finished)], lost=True)
            self._unsure, self._more = False, True
        finished, self._finished = self._finished[:BATCH], self._finished[BATCH:]
        asked = self.free if self.serving and not self._held and self._more else 0
        if not finished and not asked:
            return
        if asked:
            self._more = False
        try:
            rows = await self._statement(finished, asked)
        except BaseException as error:
            self._finished[:0] = finished
            self._more = True
            if not isinstance(error, psycopg.DataError):
                raise
            await self._isolate()
            return
        if asked and len(rows) >= asked:
            self._more = True
        self._hand_out(rows)

    async def _statement(self, finished: Iterable[Finished], free: int) -> list[TupleRow]:
        finished = list(finished)
        parameters = {
            "keys": [done.key for done in finished],
            "statuses": [done.status.value for done in finished],
            "patches": [done.patch for done in finished],
            "queue": self._queue,
            "free": free,
            "ttl": TTL,
            "worker": self._worker,
            "boot": self._boot,
        }
        return await self._line.run(statements.TURN, parameters)

    def _hand_out(self, rows: list[TupleRow]) -> None:
        for key, stored, _, _ in sorted(rows, key=lambda row: row[2:]):
            try:
                job = self._decode(stored)
            except (ValueError, TypeError, KeyError) as error:
                log.error("lane.job_unreadable", queue=self._queue, key=key, error=str(error))
                self._finished.append(Finished(key, JobStatus.FAILED, '{"status": "failed"}'))
                continue
            self._live[key] = job
            self.ready.put_nowait(job)

    async def _give_back(self, keys: list[str], *, lost: bool) -> None:
        parameters = {"queue": self._queue, "keys": keys, "lost": lost, "worker": self._worker, "ttl": TTL}
        rows = await self._line.run(statements.GIVE_BACK, parameters)
        if rows:
            log.info("lane.given_back", queue=self._queue, jobs=len(rows), lost=lost)

    async def _isolate(self) -> None:
        # One row that PostgreSQL cannot read as JSON must not stop the lane: find it and set it aside.
        finished, self._finished = self._finished, []
        for done in finished:
            try:
                await self._statement([done], 0)
            except psycopg.DataError as error:
                log.error("lane.finish_refused", queue=self._queue, key=done.key, error=str(error))
        for (key,) in await self._line.run(statements.NEXT, {"queue": self._queue}):
            try:
                await self._line.run(statements.READABLE, {"key": key})
            except psycopg.DataError as error:
                log.error("lane.job_set_aside", queue=self._queue, key=key, error=str(error))
                await self._line.run(statements.SET_ASIDE, {"key": key, "ttl": TTL})
