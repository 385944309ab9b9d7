"""Brings dead hops to what they become: parked, done, another hop, or FAILED once contained (REC-4..9, ruling 11)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import structlog

from runs import reads
from runs.aftermath import Aftermath, Ended
from runs.containment import Containment
from runs.errors import Degraded
from runs.events.event import Kind
from runs.ledger.contain import Guard
from runs.ledger.give_back import GIVE_BACK, GiveBack
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost
from runs.ledger.park import Park, park
from runs.ledger.settle import SETTLE, Settlement
from runs.returning import DeadHop, ToPark, ToReturn, ToSettle, Ways
from runs.states import RunStatus

log = structlog.get_logger(__name__)

GHOUL_LOST = "ghoul_lost"
MOVED = "moved"


@dataclass(frozen=True, slots=True)
class DeadHops:
    """Acts in the name of claimants that are gone; the broker's generation must have been fenced before.

    Args:
        boot_id: the Vessel that acts.
    """

    ledger: Ledger
    ways: Ways
    containment: Containment
    aftermath: Aftermath
    boot_id: uuid.UUID

    async def become(self, hop: DeadHop) -> str:
        """Carry out what the table says of one hop.

        Returns:
            What it became: `parked`, `done`, `returned`, `failed`; or `moved` when somebody else was first.

        Raises:
            ContainmentUncertain: it cannot be failed yet, and stays as it is (REC-9).
            Degraded, Unknown: it could not be judged or written.
        """
        way = await self.ways.of(hop)
        if isinstance(way, ToPark):
            request = Park(
                hop.run_id, hop.seq, hop.claim_id, way.kind.status, way.kind.name, way.owner_id, way.kind.park_proof
            )
            if isinstance(await self.ledger.script(ScriptFactory(park, request)), Lost):
                return self._said(hop, MOVED)
            self._moved(hop, way.kind.status, {"hop": hop.seq, "kind": way.kind.name, "owner": str(way.owner_id)})
            return self._said(hop, "parked")
        if isinstance(way, ToReturn):
            back = GiveBack(hop.run_id, hop.seq, hop.claim_id, way.resume, "its worker is gone", boot_id=self.boot_id)
            outcome = await self.ledger.run(GIVE_BACK, back)
            if isinstance(outcome, Lost):
                return self._said(hop, MOVED)
            self._moved(hop, RunStatus.QUEUED, {"hop": outcome.value, "reason": back.reason})
            return self._said(hop, "returned")
        if isinstance(way, ToSettle):
            return await self.settle(
                hop, Settlement(hop.run_id, hop.seq, hop.claim_id, "done", output_json=way.output_json)
            )
        failed = Settlement(
            hop.run_id,
            hop.seq,
            hop.claim_id,
            "failed",
            error_code=GHOUL_LOST,
            error_message="The worker that carried this Run is gone, and nothing says that it may be carried on.",
        )
        return await self.settle(hop, failed)

    async def settle(self, hop: DeadHop, settlement: Settlement) -> str:
        """End a hop in its claimant's name; a failure only after containment.

        Raises:
            ContainmentUncertain: as `become`.
        """
        if settlement.status == "failed":
            guard = Guard(hop.run_id, hop.seq, hop.claim_id)
            if await self.containment.before_failure(guard, "recovery") is not None:
                return self._said(hop, MOVED)
        outcome = await self.ledger.run(SETTLE, settlement)
        if isinstance(outcome, Lost):
            return self._said(hop, MOVED)
        self.aftermath.bus.renew(hop.run_id, tenant=hop.tenant, next_seq=hop.next_step)
        await self._tell(settlement, hop.tenant, hop.pattern_key)
        return self._said(hop, settlement.status)

    async def told(self, settlement: Settlement) -> bool:
        """Tell an end that was committed without an answer, if that is how the Run stands.

        Raises:
            Degraded, EvidenceFailed, EvidenceMismatch: it could not be asked or told.
        """
        run = await reads.run(self.ways.reads, settlement.run_id)
        if run is None or run.status != settlement.status or run.hop != settlement.seq:
            return False
        await self._tell(settlement, run.tenant, run.pattern_key)
        # Without a channel there was nobody to tell, and the Step is written all the same.
        await self.aftermath.repair(settlement.run_id)
        return True

    async def _tell(self, settlement: Settlement, tenant: str, pattern_key: str) -> None:
        data: dict[str, Any] = {}
        if settlement.error_code is not None:
            data["error"] = {
                "code": settlement.error_code,
                "message": settlement.error_message,
                "node": settlement.error_node,
            }
        await self.aftermath.discard(settlement.run_id, settlement.seq)
        await self.aftermath.tell(
            Ended(settlement.run_id, tenant, pattern_key, settlement.seq, settlement.status, data)
        )

    def _moved(self, hop: DeadHop, status: RunStatus, data: dict[str, Any]) -> None:
        """Whoever follows the Run in this boot sees where it stands now."""
        self.aftermath.bus.emit(hop.run_id, Kind.STATUS, data={"status": status.value, **data})
        self.aftermath.announce(hop.run_id, hop.tenant, hop.pattern_key, status)

    def _said(self, hop: DeadHop, became: str) -> str:
        log.info("recovery.dead_hop", run=str(hop.run_id), hop=hop.seq, became=became)
        return became


def require_hop(fault: str | None) -> None:
    """Raise Degraded for a Run whose delivery contradicts it (REC-16)."""
    if fault is not None:
        raise Degraded(fault)
