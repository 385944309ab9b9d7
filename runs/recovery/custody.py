"""Hops of this very boot that nobody carries any more, and cancellations that came to no end (BYD-6, ruling 12).

A ghoul whose settlement got no answer, or whose effects could not be contained, leaves its hop in custody with the
outcome it had reached; that is tried again first. A hop without an outcome is judged like any other dead one.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import structlog

from runs.cancellation import Canceller
from runs.custody import Custody
from runs.engine import Engine
from runs.errors import LychdError, first_line
from runs.ledger.settle import Settlement
from runs.reads import Reads
from runs.recovery import rows
from runs.recovery.dead import MOVED, DeadHops, require_hop

log = structlog.get_logger(__name__)

PAGE = 32
# A claim is on its way to its task for a moment.
SETTLE_SECONDS = 2.0
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
OWNER_SECONDS = 60.0


@dataclass(slots=True)
class Patience:
    """Which Runs were tried in vain, and when each is due again: each pause twice the last."""

    clock: Callable[[], float] = time.monotonic
    _due: dict[uuid.UUID, tuple[float, float]] = field(default_factory=dict[uuid.UUID, tuple[float, float]])

    def is_due(self, run_id: uuid.UUID) -> bool:
        """Whether it may be tried now."""
        due = self._due.get(run_id)
        return due is None or self.clock() >= due[0]

    def failed(self, run_id: uuid.UUID) -> None:
        """It was tried in vain."""
        _, pause = self._due.get(run_id, (0.0, FIRST_PAUSE / 2))
        pause = min(pause * 2, LAST_PAUSE)
        self._due[run_id] = (self.clock() + pause, pause)

    def keep_only(self, run_ids: set[uuid.UUID]) -> None:
        """Forget all others."""
        self._due = {run_id: due for run_id, due in self._due.items() if run_id in run_ids}


@dataclass(slots=True)
class CustodyRelay:
    """Brings hops of this boot that lost their worker to an end."""

    reads: Reads
    engine: Engine
    dead: DeadHops
    custody: Custody
    boot_id: uuid.UUID
    interval: float = 2.0
    settle_seconds: float = SETTLE_SECONDS
    patience: Patience = field(default_factory=Patience)
    ended: int = 0
    errors: int = 0
    name: str = "custody"

    async def tick(self) -> bool:
        """One page of this boot's claimed hops. Never has more to do at once."""
        if not self.engine.publish_gate.is_open:
            return False
        page = await rows.claimed_by(self.reads, self.boot_id, seconds=self.settle_seconds, limit=PAGE_OF_CLAIMED)
        lost = [run for run in page if run.hop is not None and not self.custody.carried(run.hop.claim_id)]
        self.patience.keep_only({run.run_id for run in lost})
        due = [run for run in lost if self.patience.is_due(run.run_id)][:PAGE]
        # Together, so that one whose authorities hang delays nobody else.
        await asyncio.gather(*(self._end(run) for run in due))
        claimed = {run.hop.claim_id for run in page if run.hop is not None}
        for settlement in [kept for kept in self.custody.outcomes.values() if kept.claim_id not in claimed][:PAGE]:
            await self._followed(settlement)
        return False

    async def _followed(self, settlement: Settlement) -> None:
        """An end in custody whose hop is not open any more: it was written after all, and nobody told it (SET-12)."""
        run_id = settlement.run_id
        try:
            if self.custody.carried(settlement.claim_id) or await self.dead.ways.hop(run_id, settlement.claim_id):
                return
            if await self.dead.told(settlement):
                log.info("custody.told", run=str(run_id), hop=settlement.seq, status=settlement.status)
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            self.errors += 1
            log.warning("custody.not_told", run=str(run_id), hop=settlement.seq, error=first_line(error))
            return
        self.custody.forget(settlement.claim_id)

    async def _end(self, run: rows.OnWorker) -> None:
        try:
            async with asyncio.timeout(OWNER_SECONDS):
                require_hop(run.fault)
                assert run.hop is not None
                outcome = self.custody.outcomes.get(run.hop.claim_id)
                if outcome is not None:
                    became = await self.dead.settle(run.hop, outcome)
                else:
                    became = await self.dead.become(run.hop)
            if became != MOVED:
                self.custody.forget(run.hop.claim_id)
            self.ended += 1
            log.info("custody.ended", run=str(run.run_id), hop=run.seq, became=became)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this Run's, and it is tried again
            self.errors += 1
            self.patience.failed(run.run_id)
            log.warning("custody.not_ended", run=str(run.run_id), hop=run.seq, error=first_line(error))


# All that a Vessel can carry fits several times into one look.
PAGE_OF_CLAIMED = 2000


@dataclass(slots=True)
class CancelRelay:
    """Takes up cancellations that a surface without a broker began, or that came to no end (CAN-5, ruling 30)."""

    reads: Reads
    engine: Engine
    canceller: Canceller
    interval: float = 2.0
    settle_seconds: float = SETTLE_SECONDS
    patience: Patience = field(default_factory=Patience)
    ended: int = 0
    errors: int = 0
    name: str = "cancel"

    async def tick(self) -> bool:
        """One page of CANCELLING Runs that nobody works on. Never has more to do at once."""
        if not self.engine.publish_gate.is_open:
            return False
        found = {run.run_id: run for run in await self._page()}
        # One that was ended, and whose end nobody was told, is not among those that are still cancelling.
        found |= {run_id: rows.Cancelling(run_id, "recovery") for run_id in self.canceller.untold}
        waiting = [run for run_id, run in found.items() if run_id not in self.canceller.working]
        self.patience.keep_only({run.run_id for run in waiting})
        due = [run for run in waiting if self.patience.is_due(run.run_id)][:PAGE]
        await asyncio.gather(*(self._end(run) for run in due))
        return False

    async def _page(self) -> list[rows.Cancelling]:
        """All of them: however many are stuck, the newest has its turn."""
        found: list[rows.Cancelling] = []
        while True:
            page = await rows.cancelling(
                self.reads,
                after=found[-1].run_id if found else rows.FIRST,
                limit=PAGE_OF_CLAIMED,
                seconds=self.settle_seconds,
                quarantined=True,
            )
            found.extend(page)
            if len(page) < PAGE_OF_CLAIMED:
                return found

    async def _end(self, run: rows.Cancelling) -> None:
        try:
            await self.canceller.cancel(run.run_id, run.by)
            self.ended += 1
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            self.errors += 1
            self.patience.failed(run.run_id)
            log.warning("cancel.not_ended", run=str(run.run_id), error=first_line(error))
