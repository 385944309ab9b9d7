"""The wait relay: Runs whose owner has answered are brought back, whatever became of the road (RLY-6..8).

It asks each kind for a bounded look, which also expires what is due by the clock, and resumes owner by owner, each
under one deadline and on its own: one that hangs or fails keeps its wait and holds up nobody.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import psycopg
import structlog

from runs.engine import Engine
from runs.errors import LychdError, first_line
from runs.ledger.ledger import Ledger
from runs.reads import Reads
from runs.relays.pages import PageScheduler
from runs.waits import Pending, Place, WaitKind

log = structlog.get_logger(__name__)

PAGE = 32
OWNER_SECONDS = 10.0


@dataclass(slots=True)
class WaitRelay:
    """Repairs the waits of one kind.

    Args:
        owner_seconds: the deadline of a look, and of each owner's return (RLY-7).
    """

    kind: WaitKind
    engine: Engine
    ledger: Ledger
    reads: Reads
    interval: float = 2.0
    owner_seconds: float = OWNER_SECONDS
    pages: PageScheduler[Place] = field(default_factory=PageScheduler[Place])
    resumed: int = 0
    errors: int = 0

    @property
    def name(self) -> str:
        return f"waits {self.kind.name}"

    async def tick(self) -> bool:
        """One page.

        Returns:
            Whether the next one should follow at once: a whole page was found on the way forward.
        """
        if not self.engine.publish_gate.is_open:
            return False
        page = self.pages.next()
        try:
            async with asyncio.timeout(self.owner_seconds):
                found = list(await self.kind.tick(self.ledger, self.reads, PAGE, page.cursor))
        except BaseException:
            self.pages.failed(page)
            raise
        # Together, so that one owner that hangs delays nobody else.
        kept = await asyncio.gather(*(self._bring_back(owner) for owner in found))
        full = len(found) == PAGE
        self.pages.report(page, end=found[-1].place if full else None, retain=any(kept))
        return full and not page.revisit

    async def _bring_back(self, owner: Pending) -> bool:
        """Resume one Run. Returns whether it has to be looked at again (RLY-4)."""
        try:
            async with asyncio.timeout(self.owner_seconds):
                self.resumed += await self.engine.resume(self.kind, owner.run_id, owner.owner_id)
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            self.errors += 1
            reason = f"{type(error).__name__}: {first_line(error)}"
            log.warning("relay.owner_failed", relay=self.name, run=str(owner.run_id), error=reason)
            return True
        return False
