"""perform_run: carry one hop of one Run: gate, claim, drive, settle (TOP-6, EVT-1).

The broker's message is only a hint; everything it needs comes from the ledger by exact (run, seq) (CLM-1). A stale or
duplicate delivery is skipped and touches nothing. After the claim, every way out settles or says why it could not.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import structlog

from runs import payloads
from runs.aftermath import Aftermath, Ended
from runs.connections import patiently
from runs.containment import Containment, ContainmentUncertain
from runs.custody import Custody, Drain
from runs.driver.drive import Driver, End, Failed, Finished, NotMine, Waiting, Yielded
from runs.errors import Corrupt, LychdError, NodeFailed, PatternError, PatternNotFound, Unknown, first_line, said
from runs.events.bus import RunEventBus
from runs.events.event import Kind
from runs.gate import Gate
from runs.ledger.claim import CLAIM, RECLAIM, Claim, Claimed
from runs.ledger.contain import Guard
from runs.ledger.give_back import GIVE_BACK, GiveBack
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost, Outcome, Won
from runs.ledger.settle import SETTLE, Settlement
from runs.parking import Parking
from runs.patterns import PatternRegistry
from runs.patterns.pattern import AnyPattern
from runs.pinned import pinned_digest
from runs.returning import ToReturn, Ways
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
        custody: knows which hops are carried here, and keeps outcomes that could not be written.
        drain: whether the Vessel is going down in good order.
    """

    ledger: Ledger
    bus: RunEventBus
    driver: Driver
    registry: PatternRegistry
    revalidate: Revalidate
    gate: Gate
    boot_id: uuid.UUID
    parking: Parking
    containment: Containment
    aftermath: Aftermath
    custody: Custody
    ways: Ways
    drain: Drain

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
        self.custody.ask(claim.claim_id, run_id)
        try:
            return await self._perform(claim)
        finally:
            self.custody.leave(claim.claim_id)

    async def _perform(self, claim: Claim) -> Result:
        run_id, seq = claim.run_id, claim.seq
        outcome, cancelled = await finish(self._claim(claim))
        await seam("claim.committed")
        if isinstance(outcome, Lost):
            log.debug("run.skipped", run=str(run_id), hop=seq, reason=outcome.reason.value)
            if cancelled:
                raise asyncio.CancelledError
            return {"outcome": "skipped", "reason": outcome.reason.value}
        claimed = outcome.value
        self.bus.open(run_id, tenant=claimed.tenant, next_seq=claimed.next_step)
        self._moved(claimed, "running")
        if cancelled:
            await finish(self._interrupted(claimed))
            raise asyncio.CancelledError
        log.debug("run.claimed", run=str(run_id), hop=seq, resume=claimed.resume)
        self.bus.emit(run_id, Kind.STATUS, data={"status": "running", "hop": seq, "resume": claimed.resume})
        try:
            end = await self._carry(claimed)
        except asyncio.CancelledError:
            await finish(self._interrupted(claimed))
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

    async def _carry(self, claimed: Claimed) -> End:
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

    async def _interrupted(self, claimed: Claimed) -> Result:
        """The worker was cancelled: by a drain that is over, by a cancellation of the Run, or unexpectedly (SET-10)."""
        if self.drain.asked:
            try:
                hop = await self.ways.hop(claimed.run_id, claimed.claim_id)
                way = await self.ways.of(hop) if hop is not None else None
            except LychdError as error:
                log.warning("run.way_back_unknown", run=str(claimed.run_id), error=error.detail)
                way = None
            if isinstance(way, ToReturn):
                back = GiveBack(claimed.run_id, claimed.seq, claimed.claim_id, way.resume, "the Vessel stopped")
                outcome = await self.ledger.run(GIVE_BACK, back)
                if isinstance(outcome, Won):
                    return self._yielded(claimed, outcome.value)
        return await self._end(claimed, _CANCELLED)

    async def _end(self, claimed: Claimed, end: End) -> Result:
        """Settle, clean up, tell, in the order of SET-2. Runs to its end whoever is cancelled meanwhile."""
        if isinstance(end, Waiting):
            parked = await self.parking.park(claimed, end)
            if not isinstance(parked, Failed | NotMine):
                return {"outcome": parked}
            end = parked
        if isinstance(end, Yielded):
            return self._yielded(claimed, end.seq)
        if isinstance(end, NotMine):
            return self._not_mine(claimed, end.lost)
        if isinstance(end, Finished):
            settlement = Settlement(claimed.run_id, claimed.seq, claimed.claim_id, "done", output_json=end.output_json)
        else:
            settlement = _failure(claimed, _storable(end))
            lost = await self._contain(settlement)
            if lost is not None:
                return self._settlement_lost(claimed, lost)
        outcome, settlement = await self._settle(settlement)
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
        await self.aftermath.discard(claimed.run_id, claimed.seq)
        data: dict[str, Any] = {}
        if settlement.status == "failed":
            data["error"] = {
                "code": settlement.error_code,
                "message": settlement.error_message,
                "node": settlement.error_node,
            }
        await self.aftermath.tell(
            Ended(claimed.run_id, claimed.tenant, claimed.pattern_key, claimed.seq, settlement.status, data)
        )
        return {"outcome": settlement.status}

    async def _contain(self, settlement: Settlement) -> Lost | None:
        """Nothing may act for the Run before it is FAILED (SET-7, SET-8); uncertainty keeps it unfinished (SET-9)."""
        guard = Guard(settlement.run_id, settlement.seq, settlement.claim_id)
        try:
            return await self.containment.before_failure(guard, "failure")
        except ContainmentUncertain as error:
            self.custody.keep(settlement)
            data = {"status": "running", "hop": settlement.seq, "containment": error.detail}
            self.bus.emit(settlement.run_id, Kind.STATUS, data=data)
            raise

    def _yielded(self, claimed: Claimed, seq: int) -> Result:
        log.info("run.yielded", run=str(claimed.run_id), hop=claimed.seq, next=seq)
        self.bus.emit(claimed.run_id, Kind.STATUS, data={"status": "queued", "hop": seq, "reason": "draining"})
        self._moved(claimed, "queued")
        self.bus.fold(claimed.run_id)
        return {"outcome": "yielded"}

    def _not_mine(self, claimed: Claimed, lost: Lost) -> Result:
        log.info("run.hop_lost", run=str(claimed.run_id), hop=claimed.seq, reason=lost.reason.value)
        return {"outcome": "lost", "reason": lost.reason.value}

    def _moved(self, claimed: Claimed, status: str) -> None:
        self.aftermath.announce(claimed.run_id, claimed.tenant, claimed.pattern_key, status)

    async def _settle(self, settlement: Settlement) -> tuple[Outcome[None], Settlement]:
        """Write the end; when nobody knows whether it was written, it stays in custody and is written again."""
        try:
            return await self.ledger.run(SETTLE, settlement), settlement
        except Unknown:
            self.custody.keep(settlement)
            raise
        except psycopg.Error as error:
            if settlement.status == "failed":
                self.custody.keep(settlement)
                raise
            # The output itself is what the database refused; that is the Run's failure, not ours to hide.
            log.warning("run.output_refused", run=str(settlement.run_id), error=first_line(error))
            refused = replace(
                settlement,
                status="failed",
                output_json=None,
                error_code="refused_by_database",
                error_message=first_line(error),
            )
            return await self._settle(refused)

    def _settlement_lost(self, claimed: Claimed, lost: Lost) -> Result:
        """SET-4: benign against a terminal Run, and against one that somebody cancels; else it must be heard."""
        if lost.standing is not None and lost.standing.status in {*TERMINAL, RunStatus.CANCELLING}:
            log.info("run.settlement_lost", run=str(claimed.run_id), hop=claimed.seq, reason=lost.reason.value)
            return {"outcome": "lost", "reason": lost.reason.value}
        raise Corrupt(f"Run {claimed.run_id} could not be settled at hop {claimed.seq}: {lost.reason.value}.")


def _failure(claimed: Claimed, end: Failed) -> Settlement:
    return Settlement(
        claimed.run_id,
        claimed.seq,
        claimed.claim_id,
        "failed",
        error_code=end.code,
        error_message=end.message,
        error_node=end.node,
    )


def _storable(end: Failed) -> Failed:
    """The same failure in bounds and in text that the database holds, or settling it would fail as well."""
    code, message = payloads.escaped(end.code)[:_MOST_CODE], payloads.escaped(end.message)[:_MOST_MESSAGE]
    return Failed(code or NodeFailed.code, message or NodeFailed.title, end.node)


_MOST_CODE, _MOST_MESSAGE = 50, 8000
_CANCELLED = Failed("worker_cancelled", "The worker was cancelled while it carried this Run.", None)
