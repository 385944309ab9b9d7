"""park and resume against every state they could meet, on both roads: they win exactly where the law lets them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.park import Park, park
from runs.ledger.resume import Resume, Resumed, resume
from runs.ledger.runner import run_script
from runs.states import GENERIC, PARKED, WAITS, DeliveryState, RunStatus
from tests.ledger.test_matrix import ASKED, EVERY, LAWFUL, MINE, TRUE_WHEN, Situation
from tests.support.ledger import Delivery, LedgerDesk, Placed

S, D = RunStatus, DeliveryState
YES = "select 1 where %(owner)s::uuid is not null and %(run)s::uuid is not null"
NO = "select 1 where %(owner)s::uuid is null"

type Road = Callable[[LedgerDesk, list[ScriptFactory[Any]]], list[Outcome[Any]]]


def on_the_vessel(desk: LedgerDesk, scripts: list[ScriptFactory[Any]]) -> list[Outcome[Any]]:
    async def all_at_once() -> list[Outcome[Any]]:
        ledger = Ledger(desk.dsn)
        try:
            return await asyncio.gather(*(ledger.script(script) for script in scripts))
        finally:
            await ledger.close()

    return asyncio.run(all_at_once())


def on_djangos(_desk: LedgerDesk, scripts: list[ScriptFactory[Any]]) -> list[Outcome[Any]]:
    return [run_script(script()) for script in scripts]


ROADS = pytest.mark.parametrize("road", [on_the_vessel, on_djangos])


def parking(run_id: uuid.UUID, proof: str = YES, claim: uuid.UUID = MINE) -> ScriptFactory[Any]:
    owner = uuid.uuid5(run_id, "owner")
    return ScriptFactory(park, Park(run_id, ASKED, claim, S.AWAITING_CONSENT, "consent", owner, proof))


def may_park(found: Situation) -> bool:
    return found.status is S.RUNNING and found.right and found.state is D.CLAIMED and found.claim == MINE


@ROADS
@pytest.mark.contract("WAIT-2", "SET-7")
def test_a_hop_parks_exactly_while_it_runs_under_its_own_claim(desk: LedgerDesk, road: Road) -> None:
    desk.place(one.placed(run_id) for run_id, one in LAWFUL.items())
    before = desk.rows(LAWFUL)
    outcomes = dict(zip(LAWFUL, road(desk, [parking(run_id) for run_id in LAWFUL]), strict=True))
    after = desk.rows(LAWFUL)
    assert any(isinstance(outcome, Won) for outcome in outcomes.values())
    for run_id, found in LAWFUL.items():
        outcome = outcomes[run_id]
        assert isinstance(outcome, Won) is may_park(found), (found, outcome)
        if isinstance(outcome, Lost):
            assert after[run_id] == before[run_id], found
            assert outcome.reason is Reason.STATUS or TRUE_WHEN[outcome.reason](found), (found, outcome)
            continue
        run, hop = after[run_id].run, after[run_id].deliveries[ASKED]
        assert (run["status"], run["wait_kind"], run["wait_owner"]) == (
            "awaiting_consent",
            "consent",
            str(uuid.uuid5(run_id, "owner")),
        )
        assert (hop["state"], hop["settled_at"] is not None) == ("settled", True)
    assert len(EVERY) > len(LAWFUL)


@ROADS
@pytest.mark.contract("WAIT-4")
def test_without_its_owner_a_hop_stays_as_it_is(desk: LedgerDesk, road: Road) -> None:
    hop = desk.a_run(status=S.RUNNING)
    before = desk.row(hop)
    request = Park(hop.run_id, hop.seq, hop.claim_id, S.AWAITING_CONSENT, "consent", uuid.uuid4(), NO)
    (outcome,) = road(desk, [ScriptFactory(park, request)])
    assert isinstance(outcome, Lost)
    assert outcome.reason is Reason.NO_OWNER
    assert desk.row(hop) == before


@ROADS
@pytest.mark.contract("SET-7")
def test_a_park_whose_answer_was_lost_is_won_when_asked_again_by_the_same_hop_for_the_same_owner(
    desk: LedgerDesk, road: Road
) -> None:
    hop = desk.a_run(status=S.RUNNING)
    owner = uuid.uuid4()
    request = Park(hop.run_id, hop.seq, hop.claim_id, S.AWAITING_CONSENT, "consent", owner, YES)
    (first,) = road(desk, [ScriptFactory(park, request)])
    parked = desk.row(hop)
    (again,) = road(desk, [ScriptFactory(park, request)])
    assert (first, again) == (Won(None), Won(None, again=True))
    other = Park(hop.run_id, hop.seq, hop.claim_id, S.AWAITING_CONSENT, "consent", uuid.uuid4(), YES)
    stranger = Park(hop.run_id, hop.seq, uuid.uuid4(), S.AWAITING_CONSENT, "consent", owner, YES)
    for outcome in road(desk, [ScriptFactory(park, other)]) + road(desk, [ScriptFactory(park, stranger)]):
        assert isinstance(outcome, Lost)
    assert desk.row(hop) == parked


def settled(run_id: uuid.UUID, status: RunStatus, **how: Any) -> Placed:
    return Placed(run_id, status, 1, (Delivery(0, D.SETTLED), Delivery(1, D.SETTLED)), **how)


@ROADS
@pytest.mark.contract("WAIT-5", "WAIT-6", "WAIT-8", "WAIT-12")
def test_a_run_returns_exactly_from_the_wait_for_that_answered_owner(desk: LedgerDesk, road: Road) -> None:
    cases = list(product(S, (True, False), (YES, NO), ("mine", "none", "other")))
    runs = {uuid.UUID(int=0x9000 + number): case for number, case in enumerate(cases)}
    desk.place(settled(run_id, case[0]) for run_id, case in runs.items())
    before = desk.rows(runs)
    boots = {"mine": desk.boot, "none": None, "other": uuid.uuid4()}
    scripts: list[ScriptFactory[Any]] = []
    for run_id, (_, exact, proof, boot) in runs.items():
        owner = uuid.UUID(before[run_id].run["wait_owner"] or str(uuid.uuid4())) if exact else uuid.uuid4()
        scripts.append(ScriptFactory(resume, Resume(run_id, S.AWAITING_CONSENT, "consent", owner, proof, boots[boot])))
    outcomes = dict(zip(runs, road(desk, scripts), strict=True))
    after = desk.rows(runs)
    won = 0
    for run_id, (status, exact, proof, boot) in runs.items():
        outcome = outcomes[run_id]
        lawful = status is S.AWAITING_CONSENT and exact and proof is YES and boot != "other"
        assert isinstance(outcome, Won) is lawful, (runs[run_id], outcome)
        if isinstance(outcome, Lost):
            assert after[run_id] == before[run_id]
            continue
        won += 1
        assert outcome.value == Resumed(run_id, 2, "runs", 50, "default")
        run, hop = after[run_id].run, after[run_id].deliveries[2]
        assert (run["status"], run["enqueue_seq"], run["wait_kind"], run["wait_owner"]) == ("queued", 2, None, None)
        assert (hop["state"], hop["resume"], hop["queue_name"], hop["priority"]) == ("pending", True, "runs", 50)
    assert won == 2


@ROADS
def test_a_run_of_another_road_and_a_quarantined_one_stay_parked(desk: LedgerDesk, road: Road) -> None:
    fleet, bad = uuid.uuid4(), uuid.uuid4()
    desk.place([settled(fleet, S.AWAITING_CONSENT, road="fleet"), settled(bad, S.AWAITING_CONSENT, quarantined=True)])
    before = desk.rows([fleet, bad])
    scripts = [
        ScriptFactory[Any](
            resume,
            Resume(one, S.AWAITING_CONSENT, "consent", uuid.UUID(before[one].run["wait_owner"]), YES, desk.boot),
        )
        for one in (fleet, bad)
    ]
    for outcome in road(desk, scripts):
        assert isinstance(outcome, Lost)
    assert desk.rows([fleet, bad]) == before


@pytest.mark.contract("WAIT-8")
def test_s100_the_generic_writer_moves_no_wait() -> None:
    assert not [(before, after) for before, after in GENERIC if before in PARKED or after in PARKED]
    ways = {(edge.name, status, edge.to_status) for edge in WAITS for status in edge.from_status}
    assert ways == {("park", S.RUNNING, one) for one in PARKED} | {("resume", one, S.QUEUED) for one in PARKED}


@pytest.mark.contract("WAIT-5")
def test_a_surface_without_a_broker_leaves_a_word_and_a_vessel_leaves_none(desk: LedgerDesk) -> None:
    told, quiet = uuid.uuid4(), uuid.uuid4()
    desk.place([settled(told, S.AWAITING_CONSENT), settled(quiet, S.AWAITING_CONSENT)])
    with desk.another() as listener:
        listener.autocommit = True
        listener.execute("listen lychd_hops")
        for run_id, boot in ((quiet, desk.boot), (told, None)):
            owner = uuid.UUID(desk.rows([run_id])[run_id].run["wait_owner"])
            run_script(resume(Resume(run_id, S.AWAITING_CONSENT, "consent", owner, YES, boot)))
        (note,) = list(listener.notifies(timeout=5, stop_after=1))
    assert note.payload == str(told)
