"""A connection lost in mid-statement means unknown; asking again with the same identity brings the truth back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from runs.errors import Unknown
from runs.ledger.admit import ADMIT, admit_in_session
from runs.ledger.claim import CLAIM, RECLAIM, Claim
from runs.ledger.journal import Recorded
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.states import DeliveryState, RunStatus
from tests.ledger.test_batches import ready_for
from tests.support.ledger import CASES, LedgerDesk
from tests.support.proxy import Wire, a_wire
from tests.support.waiting import eventually

S, D = RunStatus, DeliveryState


@pytest.fixture
async def wire(desk: LedgerDesk) -> AsyncIterator[Wire]:
    async with a_wire(desk.dsn) as wire:
        yield wire


@pytest.fixture
async def far(wire: Wire) -> AsyncIterator[Ledger]:
    """A ledger at the other end of the wire; its connections are open."""
    ledger = Ledger(wire.dsn)
    yield ledger
    await ledger.close()


def lost(reason: Reason) -> Callable[[Outcome[Any]], bool]:
    return lambda outcome: isinstance(outcome, Lost) and outcome.reason is reason


def won(*, again: bool) -> Callable[[Outcome[Any]], bool]:
    return lambda outcome: isinstance(outcome, Won) and outcome.again is again


# What the second asking says after the first had been committed.
ANSWERS: dict[str, Callable[[Outcome[Any]], bool]] = {
    "release": won(again=True),
    "refuse": lost(Reason.TERMINAL),
    "refuse_queued": lost(Reason.TERMINAL),
    "mark_published": won(again=False),
    "note_publication_error": won(again=False),
    "claim": lost(Reason.CLAIMED),
    "reclaim": won(again=False),
    "checkpoint": won(again=False),
    "journal": lambda outcome: outcome == Won(Recorded("a" * 64, [1], fresh=False)),
    "enter_hardware": won(again=True),
    "leave_hardware": won(again=True),
    "settle_done": won(again=True),
    "settle_failed": won(again=True),
    "discard_checkpoint": won(again=False),
    "rotate": lost(Reason.STALE),
    "give_back": lost(Reason.STALE),
    "finish_cancel": won(again=True),
}


@pytest.mark.contract("ADM-10", "CLM-12", "SET-1")
@pytest.mark.parametrize("name", CASES)
async def test_s011_an_edge_whose_answer_was_lost_is_asked_again_and_told_truthfully(
    desk: LedgerDesk, wire: Wire, far: Ledger, name: str
) -> None:
    case = CASES[name]
    once, twice = ready_for(desk, name), ready_for(desk, name)
    # The first goes through and opens the connection, so that the cut meets a statement and not a greeting.
    assert isinstance(await far.run(case.edge, case.request(once)), Won)
    wire.cut_answers(1)
    async with asyncio.timeout(10):
        outcome = await far.run(case.edge, case.request(twice))
    assert wire.cut == 1
    assert ANSWERS[name](outcome), outcome
    for table in ("journal", "checkpoint"):
        assert len(desk.row(twice).of(table)) == len(desk.row(once).of(table))
    assert desk.row(twice).run["status"] == desk.row(once).run["status"]
    assert desk.row(twice).run["enqueue_seq"] == desk.row(once).run["enqueue_seq"]


@pytest.mark.contract("CLM-5", "CLM-12")
async def test_a_claim_whose_answer_was_lost_is_read_back_by_its_claimant_alone(
    desk: LedgerDesk, wire: Wire, far: Ledger
) -> None:
    warm, hop = desk.a_run(), desk.a_run()
    await far.run(CLAIM, Claim(warm.run_id, 0, warm.claim_id, desk.boot))
    wire.cut_answers(1)
    asked = Claim(hop.run_id, 0, hop.claim_id, desk.boot)
    outcome = await far.run(CLAIM, asked)
    assert isinstance(outcome, Lost)
    assert outcome.standing is not None
    assert outcome.standing.claim_id == hop.claim_id
    again = await far.run(RECLAIM, asked)
    assert isinstance(again, Won)
    assert (again.value.run_id, again.value.claim_id, again.value.input) == (hop.run_id, hop.claim_id, {"x": 1})
    stranger = await far.run(RECLAIM, replace(asked, claim_id=uuid.uuid4()))
    assert isinstance(stranger, Lost)
    assert stranger.reason is Reason.NOT_MINE


@pytest.mark.contract("ADM-3", "ADM-22")
async def test_an_admission_whose_answer_was_lost_is_found_and_not_made_again(
    desk: LedgerDesk, wire: Wire, far: Ledger
) -> None:
    await far.run(ADMIT, desk.admission())
    asked = desk.admission()
    wire.cut_answers(1)
    outcome = await far.run(ADMIT, asked)
    assert isinstance(outcome, Lost)
    assert outcome.standing is not None
    assert outcome.standing.run_id == asked.run_id
    assert desk.value("select count(*) from runs_run where id = %s", asked.run_id) == 1
    assert desk.value("select count(*) from runs_rundelivery where run_id = %s", asked.run_id) == 1


@pytest.mark.contract("ADM-30")
async def test_a_fenced_admission_that_is_cut_off_at_any_answer_happens_once(
    desk: LedgerDesk, wire: Wire, far: Ledger
) -> None:
    await far.script(ScriptFactory(admit_in_session, desk.admission(session_id=uuid.uuid4()), fence=True))
    answers = 0
    while wire.cut == answers:
        asked = desk.admission(session_id=uuid.uuid4())
        wire.cut_answers(1, after=answers)
        async with asyncio.timeout(10):
            outcome = await far.script(ScriptFactory(admit_in_session, asked, fence=True))
        # At the last answer, the commit's, the first try had happened, and the second one meets its row.
        assert isinstance(outcome, Won) or (isinstance(outcome, Lost) and outcome.reason is Reason.STATUS)
        assert desk.value("select count(*) from runs_run where id = %s", asked.run_id) == 1
        assert desk.value("select count(*) from runs_rundelivery where run_id = %s", asked.run_id) == 1
        assert desk.value("select last_run_id from runs_session where id = %s", asked.session_id) == asked.run_id
        answers += 1
    assert answers > 3, "begin, statements, commit"


@pytest.mark.contract("SET-1", "CLM-12")
@pytest.mark.parametrize("name", ["claim", "settle_done", "release"])
async def test_a_connection_that_says_nothing_is_given_up_and_asked_again_over_another(
    desk: LedgerDesk, wire: Wire, name: str
) -> None:
    case = CASES[name]
    once, twice = ready_for(desk, name), ready_for(desk, name)
    far = Ledger(wire.dsn, answer_within=0.3)
    assert isinstance(await far.run(case.edge, case.request(once)), Won)
    wire.mute = True
    call = asyncio.ensure_future(far.run(case.edge, case.request(twice)))
    status = desk.row(once).run["status"]
    state = desk.row(once).deliveries[0]["state"]
    await eventually(lambda: desk.row(twice).run["status"] == status)
    await eventually(lambda: desk.row(twice).deliveries[0]["state"] == state)
    wire.mute = False
    async with asyncio.timeout(10):
        assert ANSWERS[name](await call)
    await far.close()


async def test_a_cancelled_script_on_a_connection_that_says_nothing_ends(desk: LedgerDesk, wire: Wire) -> None:
    far = Ledger(wire.dsn, answer_within=0.3)
    await far.script(ScriptFactory(admit_in_session, desk.admission(session_id=uuid.uuid4()), fence=True))
    wire.mute = True
    asked = desk.admission(session_id=uuid.uuid4())
    call = asyncio.ensure_future(far.script(ScriptFactory(admit_in_session, asked, fence=True)))
    await eventually(lambda: desk.value("select count(*) from pg_stat_activity where query ilike 'begin%%'"))
    call.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait({call})
    assert desk.value("select count(*) from runs_run where id = %s", asked.run_id) == 0
    wire.mute = False
    assert isinstance(await far.script(ScriptFactory(admit_in_session, asked, fence=True)), Won)
    await far.close()


@pytest.mark.contract("SET-1")
@pytest.mark.parametrize("name", ["claim", "settle_done", "release"])
async def test_a_backend_that_is_killed_in_mid_statement_costs_nothing(
    desk: LedgerDesk, ledger: Ledger, name: str
) -> None:
    case, hop = CASES[name], ready_for(desk, name)
    with desk.another() as other:
        other.execute("lock table runs_rundelivery in access exclusive mode")
        task = asyncio.ensure_future(ledger.run(case.edge, case.request(hop)))
        desk.kill(await eventually(lambda: desk.waiting("lychd ledger%")))
    async with asyncio.timeout(10):
        outcome = await task
    assert isinstance(outcome, Won)
    assert not outcome.again


@pytest.mark.parametrize("name", ["claim", "release"])
async def test_a_database_that_stays_away_is_unknown_and_one_that_returns_is_used_again(
    desk: LedgerDesk, wire: Wire, name: str
) -> None:
    case, hop = CASES[name], ready_for(desk, name)
    far = Ledger(wire.dsn, patience=0.3)
    before = desk.row(hop)
    await wire.close_door()
    with pytest.raises(Unknown):
        await far.run(case.edge, case.request(hop))
    assert desk.row(hop) == before
    await wire.open_door()
    assert isinstance(await far.run(case.edge, case.request(hop)), Won)
    await far.close()
