"""Parks a hop that wants to wait: open the owner, park in one transaction, tell, and look once more (WAIT-2, 13..15).

The worker is free afterwards. A verdict that landed before the park is not lost: after the park the owner is read once
more, and if it has answered the Run is resumed at once; if that look fails, the relay is the net below.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psycopg
import structlog

from runs.aftermath import Moved
from runs.driver.drive import Failed, NotMine, Waiting
from runs.errors import LychdError, Unknown, first_line
from runs.events.bus import RunEventBus
from runs.events.event import Kind
from runs.ledger.claim import Claimed
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost, Reason
from runs.ledger.park import Park, park
from runs.reads import Reads
from runs.seams import seam
from runs.waits import WaitKind

log = structlog.get_logger(__name__)

# Bounds the look after a park; the relay repeats it (WAIT-14). Seconds.
LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Parking:
    """Parks hops.

    Args:
        resume: brings a parked Run back when its owner has answered.
        moved: called after a Run changed its status; must not block.
    """

    ledger: Ledger
    reads: Reads
    bus: RunEventBus
    resume: Callable[[WaitKind, uuid.UUID, uuid.UUID], Awaitable[bool]]
    moved: Callable[[Moved], None]

    async def park(self, claimed: Claimed, waiting: Waiting) -> str | Failed | NotMine:
        """Open the owner and park.

        Returns:
            The parked status; or how the hop ends instead.

        Raises:
            Unknown: the ledger did not answer; the park may have been committed.
        """
        kind, ask = waiting.kind, waiting.ask
        try:
            await self.ledger.script(ScriptFactory(kind.open, ask))
        except Unknown:
            raise
        except (LychdError, psycopg.Error) as error:
            code = error.code if isinstance(error, LychdError) else "refused_by_database"
            return Failed(code, first_line(error), ask.node)
        await seam("park.opened")
        request = Park(
            claimed.run_id, claimed.seq, claimed.claim_id, kind.status, kind.name, ask.owner_id, kind.park_proof
        )
        outcome = await self.ledger.script(ScriptFactory(park, request))
        if isinstance(outcome, Lost):
            if outcome.reason == Reason.NO_OWNER:
                return Failed(
                    "not_the_owner", f"The {kind.name} to wait for is not this Run's, or was cancelled.", ask.node
                )
            return NotMine(outcome)
        await seam("park.committed")
        log.info("run.parked", run=str(claimed.run_id), hop=claimed.seq, kind=kind.name, owner=str(ask.owner_id))
        await self._tell(claimed, kind, ask.owner_id)
        await self._look_again(claimed.run_id, kind, ask.owner_id)
        return kind.status.value

    async def _tell(self, claimed: Claimed, kind: WaitKind, owner_id: uuid.UUID) -> None:
        """Only after the park is committed may anybody hear of the question (WAIT-15)."""
        self.bus.emit(
            claimed.run_id,
            Kind.STATUS,
            data={"status": kind.status.value, "hop": claimed.seq, "kind": kind.name, "owner": str(owner_id)},
        )
        try:
            told = await kind.describe(self.reads, owner_id)
        except LychdError as error:
            log.warning("park.not_described", run=str(claimed.run_id), error=error.detail)
            told = None
        self.bus.emit(claimed.run_id, Kind(kind.name), data=told or {"id": str(owner_id)})
        self.moved(Moved(claimed.run_id, claimed.tenant, claimed.pattern_key, kind.status.value))
        self.bus.fold(claimed.run_id)

    async def _look_again(self, run_id: uuid.UUID, kind: WaitKind, owner_id: uuid.UUID) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await seam("park.look")
                if await kind.answer(self.reads, owner_id) is not None:
                    await self.resume(kind, run_id, owner_id)
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            # The wait stands whatever becomes of this look (WAIT-14).
            log.warning("park.look_failed", run=str(run_id), owner=str(owner_id), error=first_line(error))
