"""The state machine as data: statuses, delivery states, and every edge with its guard.

One page is the whole law. The ledger implements these edges, the database's constraints repeat what they can,
the admin takes its words from here, and a test runs every edge against every state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_HARDWARE = "awaiting_hardware"
    AWAITING_CONSENT = "awaiting_consent"
    AWAITING_DELEGATE = "awaiting_delegate"
    AWAITING_SERVICE = "awaiting_service"
    AWAITING_TIMER = "awaiting_timer"
    AWAITING_SIGNAL = "awaiting_signal"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DeliveryState(StrEnum):
    HELD = "held"
    PENDING = "pending"
    PUBLISHED = "published"
    CLAIMED = "claimed"
    SETTLED = "settled"


class Road(StrEnum):
    VESSEL = "vessel"
    FLEET = "fleet"


S, D = RunStatus, DeliveryState

TERMINAL = frozenset({S.DONE, S.FAILED, S.CANCELLED})
NONTERMINAL = frozenset(RunStatus) - TERMINAL
# Parked on a durable owner; hardware is not here: its worker stays and it has no owner (ruling 24).
PARKED = frozenset({S.AWAITING_CONSENT, S.AWAITING_DELEGATE, S.AWAITING_SERVICE, S.AWAITING_TIMER, S.AWAITING_SIGNAL})
ON_WORKER = frozenset({S.RUNNING, S.AWAITING_HARDWARE})
UNCLAIMED = frozenset({D.PENDING, D.PUBLISHED})


@dataclass(frozen=True, slots=True)
class Edge:
    """One change of Run truth.

    `generation` says whether the exact `enqueue_seq` is part of the guard, `claimant` whether the claim is, `owner`
    whether the owner of the wait is proved on its own row. A target of None leaves the status or the delivery as it is;
    `from_delivery` None means that no delivery is asked for.
    """

    name: str
    from_status: frozenset[RunStatus]
    to_status: RunStatus | None
    from_delivery: frozenset[DeliveryState] | None
    to_delivery: DeliveryState | None
    generation: bool = True
    claimant: bool = False
    owner: bool = False


def _f[T](*values: T) -> frozenset[T]:
    return frozenset(values)


EDGES: dict[str, Edge] = {
    edge.name: edge
    for edge in (
        Edge("release", _f(S.QUEUED), None, _f(D.HELD), D.PENDING),
        Edge("refuse", _f(S.QUEUED), S.FAILED, _f(D.HELD), D.SETTLED),
        Edge("refuse_queued", _f(S.QUEUED), S.FAILED, UNCLAIMED, D.SETTLED),
        Edge("mark_published", _f(S.QUEUED), None, UNCLAIMED, D.PUBLISHED),
        Edge("note_publication_error", _f(S.QUEUED), None, UNCLAIMED, None),
        Edge("claim", _f(S.QUEUED), S.RUNNING, UNCLAIMED, D.CLAIMED),
        Edge("reclaim", ON_WORKER, None, _f(D.CLAIMED), None, claimant=True),
        Edge("checkpoint", ON_WORKER, None, _f(D.CLAIMED), None, claimant=True),
        Edge("journal", ON_WORKER, None, _f(D.CLAIMED), None, claimant=True),
        Edge("enter_hardware", _f(S.RUNNING), S.AWAITING_HARDWARE, _f(D.CLAIMED), None, claimant=True),
        Edge("leave_hardware", _f(S.AWAITING_HARDWARE), S.RUNNING, _f(D.CLAIMED), None, claimant=True),
        Edge("settle_done", ON_WORKER, S.DONE, _f(D.CLAIMED), D.SETTLED, claimant=True),
        Edge("settle_failed", ON_WORKER, S.FAILED, _f(D.CLAIMED), D.SETTLED, claimant=True),
        Edge("discard_checkpoint", TERMINAL, None, None, None, generation=False),
        Edge("rotate", _f(S.QUEUED), None, UNCLAIMED, D.SETTLED),
        Edge("give_back", ON_WORKER, S.QUEUED, _f(D.CLAIMED), D.SETTLED, claimant=True),
        Edge("elect", NONTERMINAL - {S.CANCELLING}, S.CANCELLING, None, None, generation=False),
        Edge("finish_cancel", _f(S.CANCELLING), S.CANCELLED, frozenset(DeliveryState), D.SETTLED),
    )
}

# Edges of several statements in one transaction, for every kind of wait: to its parked status, and back from it.
WAITS: tuple[Edge, ...] = tuple(
    edge
    for status in RunStatus
    if status in PARKED
    for edge in (
        Edge("park", _f(S.RUNNING), status, _f(D.CLAIMED), D.SETTLED, claimant=True, owner=True),
        Edge("resume", _f(status), S.QUEUED, None, D.PENDING, generation=False, owner=True),
    )
)

# What the generic status writer may do (1.1 of the contracts): everything else has an edge of its own.
GENERIC: frozenset[tuple[RunStatus, RunStatus]] = frozenset(
    {(S.RUNNING, S.AWAITING_HARDWARE), (S.AWAITING_HARDWARE, S.RUNNING)}
)

WORDS: dict[RunStatus, str] = {
    S.QUEUED: "queued",
    S.RUNNING: "running",
    S.AWAITING_HARDWARE: "waiting for hardware",
    S.AWAITING_CONSENT: "waiting for a consent",
    S.AWAITING_DELEGATE: "waiting for a delegated job",
    S.AWAITING_SERVICE: "waiting for a service",
    S.AWAITING_TIMER: "waiting for a timer",
    S.AWAITING_SIGNAL: "waiting for a signal",
    S.CANCELLING: "cancelling",
    S.DONE: "done",
    S.FAILED: "failed",
    S.CANCELLED: "cancelled",
}


def is_terminal(status: str) -> bool:
    """Whether no edge leaves this status."""
    return status in TERMINAL
