"""What an edge answers: it won, or it lost for a reason, with the row as it stands. Losing is an answer."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import StrEnum

from runs.states import DeliveryState, RunStatus


class Reason(StrEnum):
    """Why a conditional write did not happen."""

    NO_RUN = "no_run"
    NO_DELIVERY = "no_delivery"
    OTHER_ROAD = "other_road"
    OTHER_BOOT = "other_boot"
    QUARANTINED = "quarantined"
    STALE = "stale"
    STATUS = "status"
    CANCELLING = "cancelling"
    TERMINAL = "terminal"
    HELD = "held"
    NOT_HELD = "not_held"
    CLAIMED = "claimed"
    SETTLED = "settled"
    NOT_MINE = "not_mine"
    ARGUMENTS = "arguments"
    NO_OWNER = "no_owner"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Standing:
    """A Run and the asked-for delivery as a fresh snapshot shows them."""

    run_id: uuid.UUID
    status: RunStatus
    enqueue_seq: int
    road: str
    quarantined: bool
    delivery: DeliveryState | None
    claim_id: uuid.UUID | None
    delivery_boot: uuid.UUID | None
    resume: bool | None
    current_boot: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Won[T]:
    """The write happened, or an earlier identical request of the same claimant already made it (`again`)."""

    value: T
    again: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """The write did not happen and nothing was changed."""

    reason: Reason
    standing: Standing | None


type Outcome[T] = Won[T] | Lost
