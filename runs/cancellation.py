"""Cancels Runs: elect, abort at the broker, sweep every authority, finish, tell, clean up; in that order (CAN-1..18).

Between the election and the finish the Run is CANCELLING, and says so. One task of this process works on a Run, others
wait for it; the task is nobody's child, so a caller who goes away interrupts nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import structlog

from runs import ids
from runs import reads as rows
from runs.aftermath import Aftermath, Ended
from runs.broker.jobs import require_queue
from runs.broker.probe import Probe
from runs.containment import Containment, ContainmentUncertain
from runs.errors import Degraded, LychdError, NotFound, Unknown, first_line
from runs.events.event import Kind
from runs.ledger.cancel import FINISH_CANCEL, Elected, Election, FinishCancel, elect
from runs.ledger.contain import Guard
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost, Reason
from runs.reads import Reads
from runs.routing import QUEUES
from runs.seams import seam
from runs.shielding import complete
from runs.states import TERMINAL, RunStatus

log = structlog.get_logger(__name__)

# Seconds for the worker's acknowledgement (CAN-16).
ABORT_SECONDS = 10.0
# Seconds between two looks whether a worker still carries the Run.
LIVE_LOOK = 0.05


@dataclass(slots=True)
class Canceller:
    """Cancels for one boot.

    Args:
        live: whether a task of this process still carries the Run; then nothing is contained yet.

    Attributes:
        untold: Runs whose end got no answer: it may stand in the ledger, and nobody was told.
    """

    ledger: Ledger
    reads: Reads
    probe: Probe
    containment: Containment
    aftermath: Aftermath
    boot_id: uuid.UUID
    live: Callable[[uuid.UUID], bool]
    untold: set[uuid.UUID] = field(default_factory=set[uuid.UUID])
    _working: dict[uuid.UUID, asyncio.Task[RunStatus]] = field(
        default_factory=dict[uuid.UUID, "asyncio.Task[RunStatus]"]
    )

    async def request(
        self, run_id: uuid.UUID, principal: str, *, tenant: str | None = None, untold: bool = False
    ) -> RunStatus:
        """Elect, and go on with the cancellation in a task of its own.

        Args:
            untold: a surface without a bus may have elected; the status is told even if it stood before.

        Returns:
            The status as it stands: CANCELLING, or the terminal one that was there before (CAN-11).

        Raises:
            NotFound: no such Run for this tenant.
            Degraded: this Vessel does not hold the database any more; nothing was changed.
            Unknown: the ledger did not answer; asking again is safe.
        """
        elected = await complete(self._elect(run_id, principal, tenant, untold=untold))
        if elected.status == RunStatus.CANCELLING or elected.status == RunStatus.CANCELLED:
            self._work(elected, orphan=False)
        return elected.status

    async def cancel(
        self, run_id: uuid.UUID, principal: str, *, tenant: str | None = None, orphan: bool = False
    ) -> RunStatus:
        """Cancel, and wait until the Run is terminal.

        Args:
            orphan: the broker's row belongs to an earlier boot that can acknowledge nothing (REC-3).

        Returns:
            The terminal status; DONE or FAILED when the Run ended before it could be frozen.

        Raises:
            NotFound, Degraded, Unknown: as `request`.
            ContainmentUncertain: the Run stays CANCELLING, with the reason (CAN-5).

        Cancellation: the work goes on to its end, then it propagates (CAN-12).
        """
        elected = await complete(self._elect(run_id, principal, tenant))
        if elected.status in {RunStatus.DONE, RunStatus.FAILED}:
            return elected.status
        return await complete(_result(self._work(elected, orphan=orphan)))

    @property
    def working(self) -> frozenset[uuid.UUID]:
        """Runs on which a task works now."""
        return frozenset(self._working)

    async def join(self) -> None:
        """Wait for all cancellations on their way; the caller bounds the time."""
        while self._working:
            await asyncio.wait(set(self._working.values()))

    async def stop(self, seconds: float) -> None:
        """Wait for the cancellations on their way; what takes longer stays CANCELLING for the next start (CAN-5)."""
        try:
            async with asyncio.timeout(seconds):
                await self.join()
        except TimeoutError:
            left = set(self._working.values())
            log.warning("vessel.cancellations_left", runs=[str(run_id) for run_id in self._working])
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    async def _elect(self, run_id: uuid.UUID, principal: str, tenant: str | None, *, untold: bool = False) -> Elected:
        outcome = await self.ledger.script(ScriptFactory(elect, Election(run_id, principal, tenant, self.boot_id)))
        if isinstance(outcome, Lost):
            if outcome.reason is Reason.OTHER_BOOT:
                raise Degraded("This Vessel does not hold the database any more.")
            raise NotFound("There is no such Run.")
        elected = outcome.value
        if not outcome.again:
            await seam("cancel.elected")
        if elected.status == RunStatus.CANCELLING:
            # Without a channel the end could not be told, and a Run that an earlier boot knew has none.
            await self._open(elected)
            if not outcome.again or (untold and run_id not in self._working):
                self._told(elected)
        return elected

    async def _open(self, elected: Elected) -> None:
        bus = self.aftermath.bus
        if not bus.is_open(elected.run_id):
            stored = await rows.terminal(self.reads, elected.run_id)
            if stored is not None and stored.step_status is not None:
                # It ended while we asked; a new channel would have no end.
                return
            bus.open(elected.run_id, tenant=elected.tenant, next_seq=stored.next_seq if stored is not None else 0)

    def _told(self, elected: Elected, **more: str) -> None:
        log.info("run.cancelling", run=str(elected.run_id), hop=elected.seq, by=elected.by, **more)
        data = {"status": "cancelling", "hop": elected.seq, "by": elected.by, **more}
        self.aftermath.bus.emit(elected.run_id, Kind.STATUS, data=data)
        self.aftermath.announce(elected.run_id, elected.tenant, elected.pattern_key, RunStatus.CANCELLING)

    def _work(self, elected: Elected, *, orphan: bool) -> asyncio.Task[RunStatus]:
        task = self._working.get(elected.run_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._finish(elected, orphan=orphan), name=f"cancel {elected.run_id}"
            )
            self._working[elected.run_id] = task
            task.add_done_callback(lambda done: self._worked(elected.run_id, done))
        return task

    def _worked(self, run_id: uuid.UUID, done: asyncio.Task[RunStatus]) -> None:
        self._working.pop(run_id, None)
        if done.cancelled() or done.exception() is None:
            return
        # Heard here as well: whoever asked may be gone.
        log.warning("run.still_cancelling", run=str(run_id), error=first_line(done.exception()))

    async def _finish(self, elected: Elected, *, orphan: bool) -> RunStatus:
        run_id, guard = elected.run_id, Guard(elected.run_id, elected.seq, None)
        again = elected.status == RunStatus.CANCELLED
        failures: list[str] = []
        try:
            await self._abort(elected, orphan=orphan)
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            failures.append(f"the worker: {first_line(error)}")
        await seam("cancel.aborted")
        # The sweep comes after the acknowledgement, or else what the hop made in between would escape it (CAN-3).
        try:
            lost = await self.containment.sweep(guard, "cancellation")
        except ContainmentUncertain as error:
            failures.append(error.detail)
        else:
            if lost is not None and not failures and not again:
                return await self._stands(run_id)
        if failures:
            reason = " ".join(failures)
            if await self.containment.note(guard, reason):
                self._told(elected, containment=reason)
            raise ContainmentUncertain(reason, run=str(run_id))
        if again:
            if run_id in self.untold:
                await self.aftermath.tell(self._ended(elected))
                self.untold.discard(run_id)
            await self.aftermath.repair_quietly(run_id)
            await self.aftermath.discard(run_id, elected.seq)
            return RunStatus.CANCELLED
        await seam("cancel.contained")
        self.untold.add(run_id)
        outcome = await self.ledger.run(FINISH_CANCEL, FinishCancel(run_id, elected.seq, self.boot_id))
        self.untold.discard(run_id)
        if isinstance(outcome, Lost):
            return await self._stands(run_id)
        await seam("cancel.committed")
        log.info("run.cancelled", run=str(run_id), hop=elected.seq)
        await self.aftermath.tell(self._ended(elected))
        await self.aftermath.discard(run_id, elected.seq)
        return RunStatus.CANCELLED

    def _ended(self, elected: Elected) -> Ended:
        return Ended(elected.run_id, elected.tenant, elected.pattern_key, elected.seq, RunStatus.CANCELLED)

    async def _abort(self, elected: Elected, *, orphan: bool) -> None:
        require_queue(elected.queue, QUEUES)
        key = ids.job_key(elected.run_id, elected.seq)
        if orphan:
            await self.probe.fence_orphan(key, "cancelled")
            view = await self.probe.status(elected.run_id, elected.seq, elected.queue)
            if view is not None and not view.status.terminal:
                raise ContainmentUncertain(f"The broker's row {key} did not end.")
            return
        await self.probe.abort(key, "cancelled", ABORT_SECONDS)
        # The worker of the hop before may be on its last steps, after a park or a yield.
        deadline = asyncio.get_running_loop().time() + ABORT_SECONDS
        while self.live(elected.run_id):
            if asyncio.get_running_loop().time() > deadline:
                raise ContainmentUncertain("The broker has no job of it, and yet a worker carries it.")
            await asyncio.sleep(LIVE_LOOK)

    async def _stands(self, run_id: uuid.UUID) -> RunStatus:
        """Somebody else moved the Run meanwhile: say how it stands."""
        row = await rows.run(self.reads, run_id)
        if row is None or row.status not in TERMINAL:
            raise Unknown(f"Run {run_id} is {row.status if row else 'gone'} and could not be cancelled.")
        return RunStatus(row.status)


async def _result(task: asyncio.Task[RunStatus]) -> RunStatus:
    return await asyncio.shield(task)
