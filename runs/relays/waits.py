"""The wait relay: Runs whose owner has answered are brought back, whatever became of the road (RLY-6..8).

It asks each kind for a bounded look, which also expires what is due by the clock, and resumes owner by owner, each
under one deadline and on its own: one that hangs or fails keeps its wait and holds up nobody.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import psycopg
import structlog

from runs.engine import Engine
from runs.errors import LychdError
from runs.ledger.ledger import Ledger
from runs.reads import Reads
from runs.waits import WaitKind

log = structlog.get_logger(__name__)

PAGE = 32
OWNER_SECONDS = 10.0


@dataclass(slots=True)
class WaitRelay:
    """Repairs the waits of one kind."""

    kind: WaitKind
    engine: Engine
    ledger: Ledger
    reads: Reads
    interval: float = 2.0
    resumed: int = 0
    errors: int = 0

    @property
    def name(self) -> str:
        return f"waits {self.kind.name}"

    async def tick(self) -> bool:
        """One page.

        Returns:
            Whether there is probably more: a whole page was found and all of it was brought back.
        """
        if not self.engine.publish_gate.is_open:
            return False
        async with asyncio.timeout(OWNER_SECONDS):
            pending = list(await self.kind.tick(self.ledger, self.reads, PAGE))
        failed = 0
        for owner in pending:
            try:
                async with asyncio.timeout(OWNER_SECONDS):
                    self.resumed += await self.engine.resume(self.kind, owner.run_id, owner.owner_id)
            except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
                failed += 1
                self.errors += 1
                log.warning(
                    "relay.owner_failed",
                    relay=self.name,
                    run=str(owner.run_id),
                    error=f"{type(error).__name__}: {error}".splitlines()[0],
                )
        return len(pending) == PAGE and not failed
