"""perform_run: carry one hop of one Run: gate, claim, drive, settle (TOP-6, EVT-1).

The broker's message is only a hint; everything it needs comes from the ledger by exact (run, seq) (CLM-1). A stale or
duplicate delivery is skipped and touches nothing. After the claim, every way out settles or says why it could not.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from runs import payloads
from runs.connections import patiently
from runs.driver.drive import Driver, Failed, Finished, NotMine
from runs.errors import (
    Corrupt,
    EvidenceFailed,
    LychdError,
    NodeFailed,
    PatternError,
    PatternNotFound,
    Unknown,
    first_line,
    said,
)
from runs.events.bus import RunEventBus
from runs.events.event import Kind
from runs.gate import Gate
from runs.ledger.checkpoint import DISCARD_CHECKPOINT, DiscardCheckpoint
from runs.ledger.claim import CLAIM, RECLAIM, Claim, Claimed
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost, Outcome, Won
from runs.ledger.settle import SETTLE, Settlement
from runs.patterns import PatternRegistry
from runs.patterns.pattern import AnyPattern
from runs.pinned import pinned_digest
from runs.seams import seam
from runs.shielding import finish
from runs.states import TERMINAL, RunStatus

log = structlog.get_logger(__name__)

# The authority recorded on the Run → the scopes it has now, or None when it was revoked (CLM-15, ruling 29).
type Revalidate = Callable[[Claimed], Awaitable[frozenset[str] | None]]
type Result = dict[str, Any]


class AuthorityRevoked(NodeFailed):
    """The Sigil in whose name the Run was submitted has been revoked."""

    code, title = "authority_revoked", "Authority revoked"


class PinnedPattern(NodeFailed):
    """The Pattern that the Run is pinned to is not here, or is not the same any more."""

    code, title = "pinned_pattern", "Pinned Pattern not available"


@dataclass(frozen=True, slots=True)
class Ghoul:
    """Carries hops for one boot.

    Args:
        gate: the claim gate (CLM-3).
        moved: called after a Run changed its status, for the feed of all Runs; must not block.
    """

    ledger: Ledger
    bus: RunEventBus
    driver: Driver
    registry: PatternRegistry
    revalidate: Revalidate
    gate: Gate
    boot_id: uuid.UUID
    moved: Callable[[Claimed, str], None]

    async def perform_run(self, run_id: uuid.UUID, seq: int) -> Result:
        """Carry the hop `seq` of the Run, if it can still be claimed.

        Returns:
            `{"outcome": "skipped", "reason": …}` or `{"outcome": "done" | "failed" | "lost"}`, for the broker's record.

        Raises:
            Unknown: the ledger did not answer; recovery decides by what it holds.

        Cancellation: a hop that was claimed is settled FAILED first (SET-10, CLM-12), then it goes on.
        """
        await self.gate.wait()
        claim = Claim(run_id, seq, uuid.uuid4(), self.boot_id)
        outcome, cancelled = await finish(self._claim(claim))
        await seam("claim.committed")
        if isinstance(outcome, Lost):
            log.debug("run.skipped", run=str(run_id), hop=seq, reason=outcome.reason.value)
            if cancelled:
                raise asyncio.CancelledError
            return {"outcome": "skipped", "reason": outcome.reason.value}
        claimed = outcome.value
        self.bus.open(run_id, tenant=claimed.tenant, next_seq=claimed.next_step)
        self.moved(claimed, "running")
        if cancelled:
            await finish(self._end(claimed, _CANCELLED))
            raise asyncio.CancelledError
        log.debug("run.claimed", run=str(run_id), hop=seq, resume=claimed.resume)
        self.bus.emit(run_id, Kind.STATUS, data={"status": "running", "hop": seq, "resume": claimed.resume})
        try:
            end = await self._carry(claimed)
        except asyncio.CancelledError:
            await finish(self._end(claimed, _CANCELLED))
            raise
        result, cancelled = await finish(self._end(claimed, end))
        if cancelled:
            raise asyncio.CancelledError
        return result

    async def _claim(self, claim: Claim) -> Outcome[Claimed]:
        outcome = await self.ledger.run(CLAIM, claim)
        if isinstance(outcome, Won):
            return outcome
        standing = outcome.standing
        if standing is not None and standing.claim_id == claim.claim_id:
            # Our own claim, committed by a statement whose answer was lost (ruling 6).
            return await self.ledger.run(RECLAIM, claim)
        return outcome

    async def _carry(self, claimed: Claimed) -> Finished | Failed | NotMine:
        try:
            pattern = self._pinned(claimed)
            scopes = await patiently(lambda: self.revalidate(claimed))
            if scopes is None:
                raise AuthorityRevoked
            return await self.driver.drive(claimed, pattern, scopes)
        except Unknown:
            raise
        except LychdError as error:
            return Failed(error.code, error.detail, None)
        except psycopg.Error as error:
            # The database answered and refused: a definite failure of this hop, not an unknown one.
            log.warning("run.refused_by_database", run=str(claimed.run_id), error=first_line(error))
            return Failed("refused_by_database", first_line(error), None)
        except Exception as error:
            # A fault of ours, and no reason to leave the Run behind without an owner.
            log.exception("run.broke", run=str(claimed.run_id), hop=claimed.seq)
            return Failed("internal", said(error), None)

    def _pinned(self, claimed: Claimed) -> AnyPattern:
        """The exact Pattern of the Run (CLM-9, CLM-11). Never another one, never from the start again."""
        if pinned_digest(claimed.manifest) != claimed.pattern_digest:
            raise PinnedPattern("The manifest recorded on the Run does not match its digest.")
        try:
            return self.registry.exact(claimed.pattern_key, claimed.pattern_revision, claimed.pattern_digest)
        except (PatternNotFound, PatternError) as error:
            raise PinnedPattern(error.detail) from error

    async def _end(self, claimed: Claimed, end: Finished | Failed | NotMine) -> Result:
        """Settle, clean up, tell, in the order of SET-2. Runs to its end whoever is cancelled meanwhile."""
        if isinstance(end, NotMine):
            log.info("run.hop_lost", run=str(claimed.run_id), hop=claimed.seq, reason=end.lost.reason.value)
            return {"outcome": "lost", "reason": end.lost.reason.value}
        if isinstance(end, Failed):
            end = _storable(end)
        settlement = (
            Settlement(claimed.run_id, claimed.seq, claimed.claim_id, "done", output_json=end.output_json)
            if isinstance(end, Finished)
            else Settlement(
                claimed.run_id,
                claimed.seq,
                claimed.claim_id,
                "failed",
                error_code=end.code,
                error_message=end.message,
                error_node=end.node,
            )
        )
        settlement, outcome = await self._settle(settlement)
        if isinstance(outcome, Lost):
            return self._settlement_lost(claimed, outcome)
        await seam("settle.committed")
        log.info(
            "run.settled",
            run=str(claimed.run_id),
            hop=claimed.seq,
            status=settlement.status,
            error=settlement.error_code,
        )
        await self._discard(claimed)
        data: dict[str, Any] = {"hop": claimed.seq}
        if settlement.status == "failed":
            data["error"] = {
                "code": settlement.error_code,
                "message": settlement.error_message,
                "node": settlement.error_node,
            }
        self.bus.finish(claimed.run_id, settlement.status, data=data)
        self.moved(claimed, settlement.status)
        await self._evidence(claimed.run_id)
        return {"outcome": settlement.status}

    async def _settle(self, settlement: Settlement) -> tuple[Settlement, Outcome[None]]:
        """Write the end; what was written may be another one than was asked for."""
        try:
            return settlement, await self.ledger.run(SETTLE, settlement)
        except psycopg.Error as error:
            if settlement.status == "failed":
                raise
            # The output itself is what the database refused; that is the Run's failure, not ours to hide.
            log.warning("run.output_refused", run=str(settlement.run_id), error=first_line(error))
            refused = Settlement(
                settlement.run_id,
                settlement.seq,
                settlement.claim_id,
                "failed",
                error_code="refused_by_database",
                error_message=first_line(error),
            )
            return refused, await self.ledger.run(SETTLE, refused)

    def _settlement_lost(self, claimed: Claimed, lost: Lost) -> Result:
        """SET-4: benign against a terminal Run, and against one that somebody cancels; else it must be heard."""
        if lost.standing is not None and lost.standing.status in {*TERMINAL, RunStatus.CANCELLING}:
            log.info("run.settlement_lost", run=str(claimed.run_id), hop=claimed.seq, reason=lost.reason.value)
            return {"outcome": "lost", "reason": lost.reason.value}
        raise Corrupt(f"Run {claimed.run_id} could not be settled at hop {claimed.seq}: {lost.reason.value}.")

    async def _discard(self, claimed: Claimed) -> None:
        try:
            await self.ledger.run(DISCARD_CHECKPOINT, DiscardCheckpoint(claimed.run_id, claimed.seq))
        except (psycopg.Error, Unknown) as error:
            # Committed status stands whatever becomes of the cleanup (SET-5); startup deletes it later (REC-25).
            log.warning("run.checkpoint_kept", run=str(claimed.run_id), error=first_line(error))

    async def _evidence(self, run_id: uuid.UUID) -> None:
        try:
            await self.bus.settle(run_id)
        except EvidenceFailed as error:
            log.warning("run.evidence_failed", run=str(run_id), error=error.detail)
            self.bus.discard(run_id)
        else:
            self.bus.close(run_id)


def _storable(end: Failed) -> Failed:
    """The same failure in bounds and in text that the database holds, or settling it would fail as well."""
    code, message = payloads.escaped(end.code)[:_MOST_CODE], payloads.escaped(end.message)[:_MOST_MESSAGE]
    return Failed(code or NodeFailed.code, message or NodeFailed.title, end.node)


_MOST_CODE, _MOST_MESSAGE = 50, 8000
_CANCELLED = Failed("worker_cancelled", "The worker was cancelled while it carried this Run.", None)
