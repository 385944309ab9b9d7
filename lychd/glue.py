"""The small functions with which the parts of a Vessel reach each other; each part knows only a callable."""

from __future__ import annotations

import uuid

import structlog

from lychd.graph import Vessel
from lychd.postgres.guard import GuardEvents
from runs import reads as rows
from runs.aftermath import Moved
from runs.cancellation import Canceller
from runs.engine import Engine, HopRef
from runs.events.bus import RunEventBus
from runs.events.event import RunChange
from runs.limits import Limits
from runs.reads import Reads
from runs.states import TERMINAL, DeliveryState, RunStatus

log = structlog.get_logger(__name__)

# The process ends with this code when the guard is lost for good (the host's own codes are 0 and 3 to 6).
GUARD_LOST = 7


async def attend(reads: Reads, engine: Engine, canceller: Canceller, run_id: uuid.UUID) -> None:
    """Go on with a Run that a surface without a broker admitted, resumed or wants cancelled (ruling 30)."""
    prior = await rows.prior(reads, run_id)
    if prior is None:
        return
    if prior.status == RunStatus.QUEUED and prior.delivery == DeliveryState.PENDING:
        await engine.publish(HopRef(run_id, prior.seq, prior.queue, prior.priority))
    elif prior.status == RunStatus.CANCELLING and engine.publish_gate.is_open:
        await canceller.request(run_id, "recovery", untold=True)


def moved(bus: RunEventBus, limits: Limits, change: Moved) -> None:
    """Tell the feed of all Runs and the counts of back-pressure that a Run changed its status."""
    if change.status == RunStatus.RUNNING:
        limits.started()
    elif change.status in TERMINAL:
        limits.ended(change.tenant)
    bus.announce(RunChange(change.run_id, change.tenant, change.status, pattern=change.pattern_key))


def guard_events(vessel: Vessel) -> GuardEvents:
    """What a Vessel does when its guard is lost, held again, or gone for good (ruling 13)."""

    def lost() -> None:
        vessel.engine.admitting = False
        for gate in (vessel.claim_gate, vessel.publish_gate):
            gate.close("guard", "the one-Vessel guard was lost")

    def regained() -> None:
        for gate in (vessel.claim_gate, vessel.publish_gate):
            gate.open("guard")
        vessel.engine.admitting = vessel.serving and not vessel.stopping

    def gone(reason: str) -> None:
        vessel.cut_off = True
        log.error("vessel.guard_gone", reason=reason)
        vessel.stop(GUARD_LOST, f"The one-Vessel guard is lost for good: {reason}.")

    return GuardEvents(lost, regained, gone)
