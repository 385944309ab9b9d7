"""Every edge against every state it could meet, on both roads: it wins exactly where `runs.states` allows it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import psycopg
import pytest

from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.runner import run_once
from runs.states import EDGES, TERMINAL, DeliveryState, RunStatus
from tests.support.ledger import CASES, Case, Delivery, Hop, LedgerDesk, Placed, Rows

S, D = RunStatus, DeliveryState
ASKED = 1
MINE = uuid.UUID(int=1)
OTHER = uuid.UUID(int=2)
# Edges that make the next hop.
FOLLOWED = ("rotate", "give_back")

# The asked hop: no row, or its state and whose claim it bears.
HOPS: tuple[tuple[DeliveryState | None, uuid.UUID | None], ...] = (
    (None, None),
    (D.HELD, None),
    (D.PENDING, None),
    (D.PUBLISHED, None),
    (D.CLAIMED, MINE),
    (D.CLAIMED, OTHER),
    (D.SETTLED, None),
    (D.SETTLED, MINE),
    (D.SETTLED, OTHER),
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a request for hop 1 meets: the Run's status and hop, the asked delivery, the Run's own if it is another."""

    status: RunStatus
    seq: int
    state: DeliveryState | None
    claim: uuid.UUID | None
    own: DeliveryState | None = None

    @property
    def lawful(self) -> bool:
        """Whether the constraints allow it: at most one delivery of a Run is unsettled."""
        return not (self.own is D.PENDING and self.state not in {None, D.SETTLED})

    @property
    def right(self) -> bool:
        return self.seq == ASKED

    def placed(self, run_id: uuid.UUID) -> Placed:
        rows: list[Delivery] = []
        if self.state is not None:
            rows.append(Delivery(ASKED, self.state, self.claim))
        if self.own is not None:
            rows.append(Delivery(self.seq, self.own))
        return Placed(run_id, self.status, self.seq, tuple(rows))


EVERY = [
    Situation(status, seq, state, claim, own)
    for status, (state, claim) in product(S, HOPS)
    for seq, own in ((ASKED, None), (0, D.SETTLED), (0, D.PENDING), (2, D.SETTLED), (2, D.PENDING))
]
LAWFUL = {uuid.UUID(int=0x7000 + number): one for number, one in enumerate(EVERY) if one.lawful}


def allowed(name: str, found: Situation) -> bool:
    """Whether the table lets the edge win here."""
    edge = EDGES[name]
    return (
        found.status in edge.from_status
        and (edge.from_delivery is None or found.state in edge.from_delivery)
        and (found.right or not edge.generation)
        and (found.claim == MINE or not edge.claimant)
    )


def repeated(name: str, found: Situation) -> bool:
    """Whether this is what the same request would find that had won before, so that asking again is no defeat."""
    if not found.right:
        return False
    if name == "release":
        return found.state in {D.PENDING, D.PUBLISHED, D.CLAIMED} and found.status not in TERMINAL | {S.CANCELLING}
    mine = found.claim == MINE
    if name in {"enter_hardware", "leave_hardware"}:
        return mine and found.state is D.CLAIMED and found.status is EDGES[name].to_status
    if name == "finish_cancel":
        return found.status is S.CANCELLED
    if name in {"settle_done", "settle_failed"}:
        return mine and found.state is D.SETTLED and found.status is EDGES[name].to_status
    return False


def true(name: str, reason: Reason, found: Situation) -> bool:
    """Whether the reason is a fact of the situation."""
    if reason is Reason.STATUS:
        return found.status not in EDGES[name].from_status
    return TRUE_WHEN[reason](found)


TRUE_WHEN: dict[Reason, Callable[[Situation], bool]] = {
    Reason.STALE: lambda s: not s.right,
    Reason.NO_DELIVERY: lambda s: s.state is None,
    Reason.CANCELLING: lambda s: s.status is S.CANCELLING,
    Reason.TERMINAL: lambda s: s.status in TERMINAL,
    Reason.HELD: lambda s: s.state is D.HELD,
    Reason.NOT_HELD: lambda s: s.state is not D.HELD,
    Reason.CLAIMED: lambda s: s.state is D.CLAIMED,
    Reason.SETTLED: lambda s: s.state is D.SETTLED,
    Reason.NOT_MINE: lambda s: s.claim != MINE,
}


def coalesced(desk: LedgerDesk, case: Case, hops: list[Hop]) -> list[Outcome[Any]]:
    async def all_at_once() -> list[Outcome[Any]]:
        ledger = Ledger(desk.dsn)
        try:
            return await asyncio.gather(*(ledger.run(case.edge, case.request(hop)) for hop in hops))
        finally:
            await ledger.close()

    return asyncio.run(all_at_once())


def one_by_one(_desk: LedgerDesk, case: Case, hops: list[Hop]) -> list[Outcome[Any]]:
    return [run_once(case.edge, case.request(hop)) for hop in hops]


def won_rightly(name: str, found: Situation, before: Rows, after: Rows) -> bool:
    """Whether the rows changed as the table says, and nowhere else."""
    edge = EDGES[name]
    deliveries = {seq: row["state"] for seq, row in before.deliveries.items()}
    if edge.to_delivery is not None:
        deliveries[ASKED] = edge.to_delivery.value
    if name in FOLLOWED:
        deliveries[ASKED + 1] = "pending"
    return (
        after.run["status"] == (edge.to_status or found.status)
        and after.run["enqueue_seq"] == found.seq + (name in FOLLOWED)
        and {seq: row["state"] for seq, row in after.deliveries.items()} == deliveries
    )


@pytest.mark.contract("ADM-11", "ADM-15", "ADM-16", "CLM-4", "CLM-5", "CLM-6", "CLM-7", "SET-3")
@pytest.mark.parametrize("name", CASES)
def test_an_edge_wins_exactly_where_the_table_allows_it_and_else_changes_nothing(desk: LedgerDesk, name: str) -> None:
    case = CASES[name]
    hops = [Hop(run_id, ASKED, MINE, desk.boot) for run_id in LAWFUL]
    roads: list[tuple[list[Outcome[Any]], dict[uuid.UUID, Rows]]] = []
    for road in (coalesced, one_by_one):
        desk.empty()
        desk.place(found.placed(run_id) for run_id, found in LAWFUL.items())
        before = desk.rows(LAWFUL)
        outcomes = road(desk, case, hops)
        after = desk.rows(LAWFUL)
        roads.append((outcomes, after))
        for (run_id, found), outcome in zip(LAWFUL.items(), outcomes, strict=True):
            if allowed(name, found):
                assert isinstance(outcome, Won), (found, outcome)
                assert not outcome.again, found
                assert won_rightly(name, found, before[run_id], after[run_id]), found
                continue
            assert after[run_id] == before[run_id], found
            if repeated(name, found):
                assert isinstance(outcome, Won), (found, outcome)
                assert outcome.again, found
            else:
                assert isinstance(outcome, Lost), (found, outcome)
                assert true(name, outcome.reason, found), (found, outcome.reason)
                assert outcome.standing is not None
                assert outcome.standing.status is found.status
    for found, one, other in zip(LAWFUL.values(), *(outcomes for outcomes, _ in roads), strict=True):
        assert type(one) is type(other), found
        assert isinstance(one, Won) or one.reason is other.reason, found
    for run_id, found in LAWFUL.items():
        assert roads[0][1][run_id].timeless() == roads[1][1][run_id].timeless(), found


def test_what_the_matrix_leaves_out_is_what_the_database_refuses(desk: LedgerDesk) -> None:
    unlawful = [found for found in EVERY if not found.lawful]
    assert unlawful
    for state in {found.state for found in unlawful}:
        found = next(found for found in unlawful if found.state is state)
        with pytest.raises(psycopg.errors.UniqueViolation, match="runs_delivery_one_unsettled"):
            desk.place([found.placed(uuid.uuid4())])


def test_every_cell_of_the_table_is_met() -> None:
    assert {found.status for found in LAWFUL.values()} == set(S)
    assert {found.state for found in LAWFUL.values()} == {None, *D}
    for name in EDGES:
        assert any(allowed(name, found) for found in LAWFUL.values()), name
