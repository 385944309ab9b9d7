"""Brings dead hops to what they become: parked, done, another hop, or FAILED once contained (REC-4..9, ruling 11)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import structlog

from runs.aftermath import Aftermath, Ended
from runs.containment import Containment
from runs.errors import Degraded
from runs.ledger.contain import Guard
from runs.ledger.give_back import GIVE_BACK, GiveBack
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost
from runs.ledger.park import Park, park
from runs.ledger.settle import SETTLE, Settlement
from runs.returning import DeadHop, ToPark, ToReturn, ToSettle, Ways

log = structlog.get_logger(__name__)

GHOUL_LOST = "ghoul_lost"


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
            parked = await self.ledger.script(ScriptFactory(park, request))
            return self._said(hop, "moved" if isinstance(parked, Lost) else "parked")
        if isinstance(way, ToReturn):
            back = GiveBack(hop.run_id, hop.seq, hop.claim_id, way.resume, "its worker is gone", boot_id=self.boot_id)
            outcome = await self.ledger.run(GIVE_BACK, back)
            return self._said(hop, "moved" if isinstance(outcome, Lost) else "returned")
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
                return self._said(hop, "moved")
        outcome = await self.ledger.run(SETTLE, settlement)
        if isinstance(outcome, Lost):
            return self._said(hop, "moved")
        self.aftermath.bus.renew(hop.run_id, tenant=hop.tenant, next_seq=hop.next_step)
        data: dict[str, Any] = {}
        if settlement.error_code is not None:
            data["error"] = {
                "code": settlement.error_code,
                "message": settlement.error_message,
                "node": settlement.error_node,
            }
        await self.aftermath.discard(hop.run_id, hop.seq)
        await self.aftermath.tell(Ended(hop.run_id, hop.tenant, hop.pattern_key, hop.seq, settlement.status, data))
        return self._said(hop, settlement.status)

    def _said(self, hop: DeadHop, became: str) -> str:
        log.info("recovery.dead_hop", run=str(hop.run_id), hop=hop.seq, became=became)
        return became


def require_hop(fault: str | None) -> None:
    """Raise Degraded for a Run whose delivery contradicts it (REC-16)."""
    if fault is not None:
        raise Degraded(fault)
