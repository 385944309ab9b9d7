"""What follows a committed end of a Run: its terminal event and Step, its checkpoint. None of it can revise the end.

One place for all who write a terminal status: the ghoul, a cancellation, recovery (SET-2, SET-5, CAN-7, EVT-8).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog

from runs import reads as rows
from runs.errors import EvidenceFailed, LychdError, Unknown, first_line
from runs.events.bus import Repaired, RunEventBus, TerminalTruth
from runs.ledger.checkpoint import DISCARD_CHECKPOINT, DiscardCheckpoint
from runs.ledger.ledger import Ledger
from runs.reads import Reads
from runs.states import TERMINAL

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """A Run that changed its status, for the feed of all Runs and the counts of back-pressure."""

    run_id: uuid.UUID
    tenant: str
    pattern_key: str
    status: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A Run whose terminal status was just committed. `data` goes into its terminal event."""

    run_id: uuid.UUID
    tenant: str
    pattern_key: str
    seq: int
    status: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Tells ends and cleans up for one boot.

    Args:
        moved: called once a Run's new status is committed; must not block.
    """

    ledger: Ledger
    reads: Reads
    bus: RunEventBus
    moved: Callable[[Moved], None]

    async def tell(self, ended: Ended) -> None:
        """Emit the terminal event and wait for its Step; a Step that cannot be written is repaired later (EVT-12)."""
        self.bus.finish(ended.run_id, ended.status, data={"hop": ended.seq, **ended.data})
        self.moved(Moved(ended.run_id, ended.tenant, ended.pattern_key, ended.status))
        try:
            await self.bus.settle(ended.run_id)
        except EvidenceFailed as error:
            log.warning("run.evidence_failed", run=str(ended.run_id), error=error.detail)
            self.bus.discard(ended.run_id)
        else:
            self.bus.close(ended.run_id)

    def announce(self, run_id: uuid.UUID, tenant: str, pattern_key: str, status: str) -> None:
        """Tell the feed of all Runs of a status that is not an end."""
        self.moved(Moved(run_id, tenant, pattern_key, status))

    async def discard(self, run_id: uuid.UUID, seq: int) -> None:
        """Delete checkpoint and journal of a terminal Run; startup does it where this cannot (REC-25)."""
        try:
            await self.ledger.run(DISCARD_CHECKPOINT, DiscardCheckpoint(run_id, seq))
        except (psycopg.Error, Unknown) as error:
            log.warning("run.checkpoint_kept", run=str(run_id), error=first_line(error))

    async def truth(self, run_id: uuid.UUID) -> TerminalTruth | None:
        """What the database holds of a Run's end, for a repair; None unless it has ended."""
        row = await rows.run(self.reads, run_id)
        stored = await rows.terminal(self.reads, run_id)
        if row is None or stored is None or row.status not in TERMINAL:
            return None
        error = {"code": row.error_code, "message": row.error_message, "node": row.error_node}
        data: dict[str, Any] = {"hop": row.hop} if row.error_code is None else {"hop": row.hop, "error": error}
        return TerminalTruth(row.status, stored.next_seq, row.tenant, stored.step_status, data)

    async def repair(self, run_id: uuid.UUID) -> Repaired:
        """Write the terminal Step if it is missing.

        Returns:
            What was done.

        Raises:
            EvidenceMismatch: a Step says something else than the Run (EVT-17).
            EvidenceFailed, Degraded: it could not be written or asked.
        """
        return await self.bus.repair_terminal(run_id, lambda: self.truth(run_id))

    async def repair_quietly(self, run_id: uuid.UUID) -> None:
        """`repair`, whose trouble is only told."""
        try:
            await self.repair(run_id)
        except LychdError as error:
            log.warning("run.evidence_not_repaired", run=str(run_id), error=error.detail)
