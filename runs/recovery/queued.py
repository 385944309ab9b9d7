"""Queued Runs of earlier boots: each exact hop is at the broker as this boot needs it, or comes there (REC-10..17).

Before the workers start and under the guard every active broker row is another boot's: it is fenced, looked at again,
and only then followed by a new hop.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from runs import ids
from runs import reads as rows
from runs.aftermath import Aftermath, Ended
from runs.broker.jobs import JobStatus, JobView, require_queue
from runs.broker.probe import Probe
from runs.engine import Engine, HopRef
from runs.errors import Degraded
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost
from runs.ledger.publication import MARK_PUBLISHED, Published
from runs.ledger.release import REFUSE, Refusal
from runs.ledger.rotate import ROTATE, Rotation
from runs.reads import QueuedRow, Reads
from runs.recovery.report import Report
from runs.routing import QUEUES
from runs.states import DeliveryState

PAGE = 500
UNRESOLVED = "context_unresolved"


@dataclass(slots=True)
class QueuedHops:
    """One sweep over all queued Runs of this road."""

    engine: Engine
    ledger: Ledger
    reads: Reads
    probe: Probe
    aftermath: Aftermath
    boot_id: uuid.UUID
    report: Report
    done: Counter[str] = field(default_factory=Counter[str])
    phase: str = "queued"

    async def sweep(self) -> None:
        """Look at every page in the order (updated_at, id); what changes moves behind the cursor and is seen again.

        Ends when a page is not full (REC-21). Trouble of one Run is that Run's own.
        """
        after: tuple[datetime, uuid.UUID] | None = None
        looked_at = 0
        while True:
            found = await rows.queued_page(self.reads, after=after, limit=PAGE, settle_seconds=0.0)
            if found:
                jobs = await self._jobs(found)
                await asyncio.gather(*(self._look(row, jobs) for row in found))
                after = (found[-1].updated_at, found[-1].run_id)
            if len(found) < PAGE:
                return
            looked_at += len(found)
            await self.report.progress(self.phase, looked_at)

    async def _jobs(self, found: list[QueuedRow]) -> dict[str, JobView] | Degraded:
        try:
            return await self.probe.statuses([ids.job_key(row.run_id, row.seq) for row in found])
        except Degraded as error:
            return error

    async def _look(self, row: QueuedRow, jobs: dict[str, JobView] | Degraded) -> None:
        try:
            if isinstance(jobs, Degraded):
                raise jobs
            self.done[await self._repair(row, jobs.get(ids.job_key(row.run_id, row.seq)))] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this Run's, and the report names it
            self.report.degrade(row.run_id, error)

    async def _repair(self, row: QueuedRow, job: JobView | None) -> str:
        require_queue(row.queue, QUEUES)
        if row.state is None:
            raise Degraded(f"There is no delivery for hop {row.seq}.")
        if row.delivery_queue != row.queue or row.delivery_priority != row.priority:
            raise Degraded(f"Queue or priority of hop {row.seq} differ from the Run's.")
        if row.state == DeliveryState.HELD:
            return await self._refuse(row)
        if row.state not in {DeliveryState.PENDING, DeliveryState.PUBLISHED}:
            raise Degraded(f"It is queued, and its hop {row.seq} is {row.state}.")
        if job is None:
            return "republished" if await self._publish(row, row.seq) else "left_pending"
        if job.queue != row.queue:
            raise Degraded(f"The broker has hop {row.seq} on {job.queue!r}, not on {row.queue!r}.")
        if job.status is JobStatus.QUEUED:
            if row.state == DeliveryState.PENDING:
                await self.ledger.run(MARK_PUBLISHED, Published(row.run_id, row.seq))
                return "marked"
            return "kept"
        if not job.status.terminal:
            await self._fence(row, job)
            return await self._rotate(row, "its worker belonged to an earlier boot")
        return await self._rotate(row, f"the broker's record ended {job.status.value}")

    async def _fence(self, row: QueuedRow, job: JobView) -> None:
        if job.started_ms is None:
            raise Degraded(f"The broker's row of hop {row.seq} is {job.status.value} and does not say since when.")
        await self.probe.fence_orphan(job.key, "its worker belonged to an earlier boot")
        view = await self.probe.status(row.run_id, row.seq, row.queue)
        if view is not None and not view.status.terminal:
            raise Degraded(f"The broker's row of hop {row.seq} was fenced and is {view.status.value} nevertheless.")

    async def _rotate(self, row: QueuedRow, reason: str) -> str:
        outcome = await self.ledger.run(ROTATE, Rotation(row.run_id, row.seq, self.boot_id, reason))
        if isinstance(outcome, Lost):
            raise Degraded(f"Hop {row.seq} could not be rotated: {outcome.reason.value}.")
        await self._publish(row, outcome.value)
        return "rotated"

    async def _publish(self, row: QueuedRow, seq: int) -> bool:
        # One that fails stays PENDING, and the relay goes on with it (REC-26).
        return await self.engine.publish(HopRef(row.run_id, seq, row.queue, row.priority))

    async def _refuse(self, row: QueuedRow) -> str:
        """Nobody lives who could keep the caller's context: end the admission (REC-10)."""
        message = "The Vessel ended before the context of this Run was kept."
        outcome = await self.ledger.run(REFUSE, Refusal(row.run_id, row.seq, UNRESOLVED, message))
        if isinstance(outcome, Lost):
            raise Degraded(f"Held hop {row.seq} could not be refused: {outcome.reason.value}.")
        run = await rows.run(self.reads, row.run_id)
        stored = await rows.terminal(self.reads, row.run_id)
        if run is not None and stored is not None:
            self.aftermath.bus.renew(row.run_id, tenant=run.tenant, next_seq=stored.next_seq)
            error = {"code": UNRESOLVED, "message": message, "node": None}
            await self.aftermath.tell(
                Ended(row.run_id, run.tenant, run.pattern_key, row.seq, "failed", {"error": error})
            )
        return "refused"
