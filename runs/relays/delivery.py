"""The delivery relay: every QUEUED Run's exact hop is at the broker, or is brought there (RLY-1..4, RLY-9..12).

It probes before it acts, always. Absent: the same hop is published again. Live: a PENDING hop is marked PUBLISHED.
Spent record: the hop is rotated. HELD is left alone and looked at again; active jobs are never fenced from here.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from runs import ids
from runs import reads as rows
from runs.broker.jobs import JobStatus, JobView
from runs.broker.probe import Probe
from runs.engine import Engine, HopRef
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Won
from runs.ledger.publication import MARK_PUBLISHED, Published
from runs.ledger.rotate import ROTATE, Rotation
from runs.relays.pages import PageScheduler
from runs.states import DeliveryState

log = structlog.get_logger(__name__)

PAGE = 32
# With a deep queue that is all well, this bounds what looking at it costs; what needed repair is followed at once.
PAGES_A_TICK = 8
PROBE_SECONDS = 5.0
MOST_TOLD = 1000

type Key = tuple[datetime, uuid.UUID]


@dataclass(slots=True)
class DeliveryRelay:
    """Repairs publications, one page a tick.

    Args:
        settle_seconds: Runs that changed more recently are left to the road they are on.
    """

    engine: Engine
    ledger: Ledger
    reads: rows.Reads
    probe: Probe
    interval: float = 1.0
    settle_seconds: float = 2.0
    pages: PageScheduler[Key] = field(default_factory=PageScheduler[Key])
    repaired: int = 0
    degraded: int = 0
    name: str = "delivery"
    _told: set[rows.QueuedRow] = field(default_factory=set[rows.QueuedRow])

    async def tick(self) -> bool:
        """Look at a few pages.

        Returns:
            Whether the next ones should follow at once: only while there is something to repair.
        """
        before = self.repaired
        for _ in range(PAGES_A_TICK):
            if not self.engine.publish_gate.is_open or not await self._page():
                return False
        return self.repaired > before

    async def _page(self) -> bool:
        """Look at one page. Returns whether it was a whole one on the way forward."""
        page = self.pages.next()
        try:
            found = await rows.queued_page(
                self.reads, after=page.cursor, limit=PAGE, settle_seconds=self.settle_seconds
            )
            async with asyncio.timeout(PROBE_SECONDS):
                jobs = await self.probe.statuses([ids.job_key(row.run_id, row.seq) for row in found]) if found else {}
        except BaseException:
            self.pages.failed(page)
            raise
        # Together, so that their publications share a statement and one that hangs delays nobody else.
        kept = await asyncio.gather(*(self._look(row, jobs.get(ids.job_key(row.run_id, row.seq))) for row in found))
        full = len(found) == PAGE
        end = (found[-1].updated_at, found[-1].run_id) if full else None
        self.pages.report(page, end=end, retain=any(kept))
        return full and not page.revisit

    async def _look(self, row: rows.QueuedRow, job: JobView | None) -> bool:
        """`_repair`, whose trouble is this owner's own: the others of the page go on (RLY-4)."""
        try:
            return await self._repair(row, job)
        except Exception as error:  # noqa: BLE001 - recorded, and this owner is looked at again
            self.degraded += 1
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("relay.owner_failed", relay=self.name, run=str(row.run_id), error=reason)
            return True

    async def _repair(self, row: rows.QueuedRow, job: JobView | None) -> bool:
        """Bring one hop on its way. Returns whether it has to be looked at again."""
        if row.state is None or row.delivery_queue != row.queue or row.delivery_priority != row.priority:
            return self._corrupt(row)
        if row.state == DeliveryState.HELD:
            return True
        if row.state not in {DeliveryState.PENDING, DeliveryState.PUBLISHED}:
            # Queued, yet its hop is claimed or settled: truth contradicts itself, recovery has to judge it.
            return self._corrupt(row)
        if job is None:
            self.repaired += 1
            log.info("relay.republishing", run=str(row.run_id), hop=row.seq)
            return not await self.engine.publish(HopRef(row.run_id, row.seq, row.queue, row.priority))
        if not job.status.terminal:
            if row.state == DeliveryState.PENDING:
                await self.ledger.run(MARK_PUBLISHED, Published(row.run_id, row.seq))
                return True
            return job.status is not JobStatus.QUEUED
        outcome = await self.ledger.run(
            ROTATE, Rotation(row.run_id, row.seq, self.engine.boot_id, f"the broker's record ended {job.status.value}")
        )
        if not isinstance(outcome, Won):
            return False
        self.repaired += 1
        log.info("relay.rotated", run=str(row.run_id), hop=outcome.value, record=job.status.value)
        return not await self.engine.publish(HopRef(row.run_id, outcome.value, row.queue, row.priority))

    def _corrupt(self, row: rows.QueuedRow) -> bool:
        """Leave alone what contradicts itself; it is looked at for ever and told once."""
        self.degraded += 1
        if row not in self._told:
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told.add(row)
            log.error("relay.corrupt_delivery", run=str(row.run_id), hop=row.seq, state=row.state)
        return True
