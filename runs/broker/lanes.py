"""The two lanes of a Vessel and their life: connect, start, drain, stop by proof, disconnect.

Exactly two workers, `runs` and `rites`, on the loop of the application (TOP-1); both run the same function (TOP-5).
Startup and shutdown belong to the caller (TOP-3); nothing here starts or ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

import structlog

from runs.broker.jobs import MissingQueue, require_queue
from runs.broker.queue import LaneQueue
from runs.broker.worker import LaneWorker, Pace, Perform
from runs.routing import HIGHEST, QUEUES
from runs.shielding import complete

log = structlog.get_logger()

# The last column: the priority of the longest waiting job if one came later, is more urgent and runs already.
_DEPTHS: LiteralString = """
SELECT q.queue, q.depth, extract(epoch FROM now())::bigint - q.since, (
    SELECT max(w.priority) FROM saq_jobs w
    WHERE w.status = 'queued' AND w.queue = q.queue AND w.scheduled = q.since AND EXISTS (
        SELECT FROM saq_jobs a
        WHERE a.status = 'active' AND a.queue = q.queue AND a.priority < w.priority AND a.scheduled > w.scheduled
    )
)
FROM (
    SELECT queue, count(*) AS depth, min(scheduled) AS since
    FROM saq_jobs WHERE status = 'queued' AND queue = ANY(%s) GROUP BY queue
) q
"""


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One lane as it stands.

    `waiting_seconds`: age of the oldest queued job; `overtaken`: its priority (0 to 100) while more urgent work that
    came later runs before it, else None; `running`: the worker is up.
    """

    queue: str
    queued: int
    waiting_seconds: int
    active: int
    concurrency: int
    free: int
    complete: int
    failed: int
    aborted: int
    running: bool
    overtaken: int | None = None


class Lanes:
    """Both lanes.

    Args:
        dsn: a direct connection to PostgreSQL.
        concurrency: jobs at a time per queue; must name exactly the queues `runs` and `rites` (TOP-4, QUE-7).
        perform: runs one hop, given the Run's id and the sequence; what it returns is kept with the broker's row.
        boot_id: this life of the Vessel; written into each taken job and into the workers' ids (ruling 14).
        pace: how often the duties of a lane are due.

    Raises:
        MissingQueue: `concurrency` is empty or does not name exactly the two queues.
    """

    def __init__(
        self,
        dsn: str,
        *,
        concurrency: Mapping[str, int],
        perform: Perform,
        boot_id: object,
        pace: Pace | None = None,
    ) -> None:
        if set(concurrency) != set(QUEUES):
            named = ", ".join(sorted(concurrency)) or "none"
            raise MissingQueue(f"The Vessel has exactly the lanes {' and '.join(QUEUES)}, but was given: {named}.")
        self._dsn, self._perform, self._boot = dsn, perform, str(boot_id)
        self._pace = pace or Pace()
        self.concurrency = {name: concurrency[name] for name in QUEUES}
        self.queues: dict[str, LaneQueue] = {}
        self.workers: dict[str, LaneWorker] = {}
        self._launchers: dict[str, asyncio.Task[None]] = {}
        self._observed: set[asyncio.Task[Any]] = set()

    def require(self, queues: Iterable[str]) -> None:
        """Raise MissingQueue unless every named queue has a lane (QUE-7)."""
        for name in queues:
            require_queue(name, self.concurrency)

    async def connect(self) -> None:
        """Connect the queues one after the other.

        A failure at one rolls back every attempted queue in reverse order, that one included (QUE-3); failures of the
        roll-back are logged. Cancellation: like a failure.
        """
        attempted: list[LaneQueue] = []
        try:
            for name, slots in self.concurrency.items():
                queue = self._queue(name, slots)
                attempted.append(queue)
                await queue.connect()
        except BaseException:
            failures, _ = await _disconnect_all(attempted)
            for failure in failures:
                log.warning("lanes.rollback_failed", error=repr(failure))
            raise
        self.queues = {queue.name: queue for queue in attempted}
        self.workers = {name: self._worker(queue) for name, queue in self.queues.items()}

    def start(self) -> None:
        """Launch the workers of connected lanes; the launcher tasks are owned here (SHUT-4)."""
        if not self.workers:
            raise RuntimeError("the lanes are not connected")
        for name, worker in self.workers.items():
            launcher = asyncio.create_task(worker.start(), name=f"lychd.lane.{name}")
            launcher.add_done_callback(self._ended)
            self._launchers[name] = launcher

    async def drain(self, timeout: float) -> bool:
        """Take no new jobs and wait up to `timeout` seconds for the running ones; aborts and heartbeats go on.

        Returns:
            Whether nothing runs any more.
        """
        for queue in self.queues.values():
            queue.pump.hold()
        try:
            async with asyncio.timeout(timeout):
                for name, queue in self.queues.items():
                    await queue.pump.settled()
                    while queue.pump.live:
                        if busy := self.workers[name].busy():
                            await asyncio.wait(busy)
                        # A job that was handed over just now is about to start, or the end just recorded.
                        await asyncio.sleep(0 if busy else 0.01)
        except TimeoutError:
            return False
        return True

    async def stop(self, grace: float = 0.0, deadline: float = 30.0) -> None:
        """Stop both workers and prove that each of their tasks has ended, all under one deadline (SHUT-3, SHUT-4).

        Idle slots end at once; running jobs get `grace` seconds, are then cancelled once and waited for.

        Raises:
            TimeoutError: names the tasks that still live; queues and shared services must stay open then (SHUT-2).
                Another call looks again.
            ExceptionGroup: stopping a worker failed.

        Cancellation: deferred until the proof is given or has failed.
        """
        await complete(self._stop(grace, deadline))

    async def disconnect(self) -> None:
        """Disconnect every queue in reverse order, each attempted whatever happened before (SHUT-5).

        Raises:
            ExceptionGroup: the failures. If the caller was cancelled meanwhile, the group holds both (SHUT-7).

        Cancellation: kept, however often, until the sweep has attempted every queue (SHUT-6).
        """
        failures, cancelled = await _disconnect_all(list(self.queues.values()))
        if cancelled and failures:
            raise BaseExceptionGroup("disconnecting the lanes", [asyncio.CancelledError(), *failures])
        if cancelled:
            raise asyncio.CancelledError
        if failures:
            raise ExceptionGroup("disconnecting the lanes", failures)

    async def stats(self) -> dict[str, LaneStats]:
        """How each lane stands, from one query."""
        first = next(iter(self.queues.values()), None)
        if first is None:
            raise RuntimeError("the lanes are not connected")
        async with first.connections.connection() as conn:
            rows = await (await conn.execute(_DEPTHS, (list(self.queues),))).fetchall()
        depths: dict[str, tuple[int, int, int | None]] = {
            name: (queued, max(0, age), None if wire is None else HIGHEST - wire) for name, queued, age, wire in rows
        }
        return {name: self._stats(queue, *depths.get(name, (0, 0, None))) for name, queue in self.queues.items()}

    def _stats(self, queue: LaneQueue, queued: int, age: int, overtaken: int | None) -> LaneStats:
        launcher = self._launchers.get(queue.name)
        return LaneStats(
            queue=queue.name,
            queued=queued,
            waiting_seconds=age,
            active=len(queue.pump.live),
            concurrency=queue.pump.slots,
            free=queue.pump.free,
            complete=queue.complete,
            failed=queue.failed,
            aborted=queue.aborted,
            running=launcher is not None and not launcher.done(),
            overtaken=overtaken,
        )

    def _queue(self, name: str, slots: int) -> LaneQueue:
        return LaneQueue(self._dsn, name, slots=slots, boot_id=self._boot, worker_id=self._worker_id(name))

    def _worker(self, queue: LaneQueue) -> LaneWorker:
        return LaneWorker(
            queue,
            self._perform,
            concurrency=queue.pump.slots,
            worker_id=self._worker_id(queue.name),
            boot_id=self._boot,
            pace=self._pace,
        )

    def _worker_id(self, name: str) -> str:
        return f"{name}@{self._boot}"

    def _ended(self, launcher: asyncio.Task[None]) -> None:
        if launcher.cancelled():
            return
        if (error := launcher.exception()) is not None:
            log.error("lane.ended", task=launcher.get_name(), error=repr(error))

    async def _stop(self, grace: float, deadline: float) -> None:
        ends_at = asyncio.get_running_loop().time() + deadline
        stops: list[asyncio.Task[None]] = []
        for name, worker in self.workers.items():
            worker.grace = grace
            # Captured before the stop, which may forget them: the job tasks are not all in `worker.tasks`.
            self._observed |= {*worker.tasks, *worker.busy()}
            stops.append(asyncio.create_task(worker.stop(), name=f"lychd.lane.{name}.stop"))
        launchers = list(self._launchers.values())
        await _until(stops, ends_at)
        for launcher in launchers:
            launcher.cancel()
        self._observed.update(stops, launchers)
        await _until(self._observed, ends_at)
        alive = sorted(task.get_name() for task in self._observed if not task.done())
        if alive:
            raise TimeoutError(f"still running {deadline:g} s after the lanes were told to stop: {', '.join(alive)}")
        failed = [error for task in stops if not task.cancelled() and (error := task.exception()) is not None]
        self._observed.clear()
        if failed:
            raise BaseExceptionGroup("stopping the lanes", failed)


async def _until(tasks: Iterable[asyncio.Task[Any]], ends_at: float) -> None:
    waiting = {task for task in tasks if not task.done()}
    if waiting:
        await asyncio.wait(waiting, timeout=max(0.0, ends_at - asyncio.get_running_loop().time()))


async def _disconnect_all(queues: list[LaneQueue]) -> tuple[list[Exception], bool]:
    """Disconnect in reverse order; the failures, and whether a cancellation arrived or came out of a disconnect."""
    failures: list[Exception] = []
    cancelled = False
    for queue in reversed(queues):
        task = asyncio.create_task(queue.disconnect(), name=f"lychd.lane.{queue.name}.disconnect")
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
        if task.cancelled():
            cancelled = True
        elif isinstance(error := task.exception(), Exception):
            failures.append(error)
    return failures, cancelled
