"""A SAQ worker that lives inside the Vessel: no signal handlers, no threads, no retries, stops by proof.

It runs one function, `perform_run`, for the jobs of one lane. It never decides what a Run becomes.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog
from saq.job import Job
from saq.types import Context, JobTaskContext
from saq.worker import Worker

from runs.broker.jobs import FUNCTION, JobStatus
from runs.broker.pools import LOST
from runs.broker.queue import LaneQueue

log = structlog.get_logger()

Perform = Callable[[UUID, int], Awaitable[Mapping[str, Any]]]

STOPPED = "the lane was stopped"
_SLOT = "process"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between a lane's duties; tests make them shorter."""

    abort: float = 1.0
    look: float = 1.0
    beat: float = 30.0
    sweep: float = 60.0
    report: float = 30.0
    hand_over: float = 5.0


class LaneWorker(Worker[Context]):
    """The long-lived engine of one lane (TOP-6); each job is one call of `perform`.

    A job whose task is cancelled is ended as aborted, with the abort's reason or that the lane was stopped. SAQ would
    queue it again under the same key whatever its retries say; here only jobs that never started go back.
    """

    SIGNALS = []
    queue: LaneQueue

    def __init__(
        self, queue: LaneQueue, perform: Perform, *, concurrency: int, worker_id: str, boot_id: str, pace: Pace
    ) -> None:
        async def perform_run(_: Context, *, run_id: str, seq: int, resume: object = None) -> Mapping[str, Any]:
            # `resume` comes from payloads of older publishers; the claimed delivery decides it (CLM-2).
            del resume
            return dict(await perform(UUID(run_id), int(seq)))

        super().__init__(
            queue, [(FUNCTION, perform_run)], id=worker_id, concurrency=concurrency, metadata={"boot": boot_id}
        )
        self.grace = 0.0
        self._pace = pace
        self._upkeep: list[asyncio.Task[None]] = []
        self._told: set[asyncio.Task[Any]] = set()
        self._failing: set[str] = set()

    def busy(self) -> set[asyncio.Task[Any]]:
        """The tasks that run a job now."""
        return {context["task"] for context in self.job_task_contexts.values()}

    async def process(self) -> bool:
        """Take one job and run it to its end.

        Cancellation: while waiting it propagates; while a job runs it reaches the job, and the job is ended as aborted.
        """
        job = await self.queue.dequeue()
        task = asyncio.current_task()
        if job is None or task is None:
            return False
        context = JobTaskContext(task=task, aborted=None)
        self.job_task_contexts[job] = context
        try:
            result = await self.functions[job.function]({"worker": self, "job": job}, **(job.kwargs or {}))
        except asyncio.CancelledError:
            self._end(job, context, JobStatus.ABORTED, error=STOPPED)
            raise
        except Exception as error:
            log.exception("lane.job_failed", queue=self.queue.name, key=job.key)
            self._end(job, context, JobStatus.FAILED, error="".join(traceback.format_exception(error)))
        else:
            self._end(job, context, JobStatus.COMPLETE, result=result)
        return True

    async def abort(self, abort_threshold: float = 0) -> None:  # noqa: ARG002
        """Cancel every job whose row asks for it, once, without waiting; its own end is the acknowledgement."""
        asked = await self.queue.pump.aborted()
        contexts = {job.key: context for job, context in self.job_task_contexts.items()}
        for key, reason in asked:
            context = contexts.get(key)
            if context is not None and context["aborted"] is None:
                log.info("lane.job_aborting", queue=self.queue.name, key=key, reason=reason)
                context["aborted"] = reason
                self._tell(context["task"])

    async def upkeep(self) -> list[asyncio.Task[None]]:
        """Start the lane's duties; each is retried at its next time whatever happened."""
        duties: tuple[tuple[str, float, Callable[[], Awaitable[object]]], ...] = (
            ("look", self._pace.look, self.queue.schedule),
            ("beat", self._pace.beat, self.queue.pump.beat),
            ("sweep", self._pace.sweep, self.queue.sweep),
            ("report", self._pace.report, self._report),
        )
        self._upkeep = [
            asyncio.create_task(self._every(name, seconds, duty), name=self._name(name))
            for name, seconds, duty in duties
        ]
        self._upkeep.append(asyncio.create_task(self._watch_aborts(), name=self._name("abort")))
        return self._upkeep

    async def stop(self) -> None:
        """End the idle slots, give running jobs `grace` seconds, cancel the rest, wait until all have ended.

        May be called again and by several callers; each returns only when nothing of this worker runs. There is no
        limit of time here: who calls it holds the deadline (SHUT-4). Cancellation: propagates; call it again.
        """
        self.event.set()
        self.queue.pump.hold()
        busy = self.busy()
        slots = {task for task in self.tasks if task.get_name() == _SLOT} - busy
        await self._end_all(slots)
        if busy and self.grace > 0:
            await asyncio.wait(busy, timeout=self.grace)
        await self._end_all(busy)
        await self._hand_over()
        await self._end_all(set(self._upkeep))

    async def _hand_over(self) -> None:
        # Best effort: rows that cannot be handed over now are pre-boot rows at the next start.
        pump = self.queue.pump
        try:
            async with asyncio.timeout(self._pace.hand_over):
                await pump.settled()
                await pump.release()
        except (TimeoutError, *LOST) as error:
            log.warning("lane.not_handed_over", queue=self.queue.name, error=repr(error))

    async def _end_all(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            self._tell(task)
        if tasks:
            await asyncio.wait(tasks)

    def _tell(self, task: asyncio.Task[Any]) -> None:
        # Once: a second cancellation would break into the cleanup that the first one asked for.
        if task not in self._told and not task.done():
            self._told.add(task)
            task.add_done_callback(self._told.discard)
            task.cancel()

    def _end(
        self, job: Job, context: JobTaskContext, status: JobStatus, *, result: Any = None, error: str | None = None
    ) -> None:
        # A job that returned although it was told to end is still the acknowledgement of that abort.
        if context["aborted"] is not None:
            status, result, error = JobStatus.ABORTED, None, context["aborted"]
        self.queue.settle(job, status, result=result, error=error)
        if self.job_task_contexts.get(job) is context:
            del self.job_task_contexts[job]

    def _name(self, duty: str) -> str:
        return f"lychd.lane.{self.queue.name}.{duty}"

    async def _every(self, name: str, seconds: float, duty: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._try(name, duty)

    async def _watch_aborts(self) -> None:
        bell = self.queue.aborts
        while True:
            try:
                async with asyncio.timeout(self._pace.abort):
                    await bell.wait()
            except TimeoutError:
                pass
            bell.clear()
            if self.job_task_contexts:
                await self._try("abort", self.abort)

    async def _try(self, name: str, duty: Callable[[], Awaitable[object]]) -> None:
        try:
            await duty()
        except Exception as error:  # noqa: BLE001 - recorded; a duty that fails is tried again at its next time (CLM-14)
            if name not in self._failing:
                self._failing.add(name)
                log.warning("lane.duty_failed", queue=self.queue.name, duty=name, error=repr(error))
        else:
            if name in self._failing:
                self._failing.discard(name)
                log.info("lane.duty_recovered", queue=self.queue.name, duty=name)

    async def _report(self) -> None:
        await self.worker_info(ttl=int(self._pace.report * 2) + 1)
