"""elect, contain and quarantine against every state they could meet, on both connections."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from runs.ledger.cancel import Elected, Election, elect
from runs.ledger.contain import Guard, contain, note_containment
from runs.ledger.ledger import ScriptFactory
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.quarantine import Quarantine, quarantine
from runs.ledger.script import Script, Statement
from runs.states import EDGES, ON_WORKER, DeliveryState, RunStatus
from tests.ledger.test_matrix import ASKED, LAWFUL, MINE, Situation
from tests.ledger.test_waits import ROADS, Road
from tests.support.ledger import Delivery, LedgerDesk, Placed

S, D = RunStatus, DeliveryState


def each(desk: LedgerDesk, road: Road, script: Callable[[uuid.UUID], ScriptFactory[Any]]) -> dict[uuid.UUID, Any]:
    """What the script says of every lawful situation."""
    desk.place(one.placed(run_id) for run_id, one in LAWFUL.items())
    return dict(zip(LAWFUL, road(desk, [script(run_id) for run_id in LAWFUL]), strict=True))


@ROADS
@pytest.mark.contract("CAN-2", "CAN-11")
def test_an_election_freezes_every_unfinished_run_at_its_hop_and_touches_no_delivery(
    desk: LedgerDesk, road: Road
) -> None:
    outcomes = each(desk, road, lambda run_id: ScriptFactory(elect, Election(run_id, "olga", "default", desk.boot)))
    after = desk.rows(LAWFUL)
    for run_id, found in LAWFUL.items():
        outcome = outcomes[run_id]
        assert isinstance(outcome, Won), found
        elected: Elected = outcome.value
        frozen = found.status in EDGES["elect"].from_status
        assert outcome.again is not frozen, found
        assert (elected.status, elected.seq) == (S.CANCELLING if frozen else found.status, found.seq)
        run = after[run_id].run
        assert (run["status"], run["enqueue_seq"]) == (elected.status, found.seq), found
        states = {ASKED: found.state} if found.state else {}
        states |= {found.seq: found.own} if found.own else {}
        assert {seq: row["state"] for seq, row in after[run_id].deliveries.items()} == states, found
        if frozen:
            assert (run["wait_kind"], run["wait_owner"], run["cancelled_by"]) == (None, None, "olga"), found


@ROADS
@pytest.mark.contract("CAN-1", "CAN-5")
def test_an_election_asked_twice_keeps_the_first_wish(desk: LedgerDesk, road: Road) -> None:
    hop = desk.a_run(status=S.RUNNING)
    wishes = [ScriptFactory[Any](elect, Election(hop.run_id, name, None, desk.boot)) for name in ("olga", "ivan")]
    outcomes: list[Outcome[Elected]] = road(desk, wishes)
    firsts = [outcome for outcome in outcomes if isinstance(outcome, Won) and not outcome.again]
    assert len(firsts) == 1
    assert {outcome.value.by for outcome in outcomes if isinstance(outcome, Won)} == {firsts[0].value.by}


@ROADS
@pytest.mark.contract("CAN-2")
def test_a_vessel_that_was_cut_off_elects_nothing_and_a_foreign_run_does_not_exist(
    desk: LedgerDesk, road: Road
) -> None:
    hop = desk.a_run(status=S.RUNNING)
    before = desk.row(hop)
    cut_off, foreign, unknown = road(
        desk,
        [
            ScriptFactory(elect, Election(hop.run_id, "olga", None, uuid.uuid4())),
            ScriptFactory(elect, Election(hop.run_id, "olga", "other", desk.boot)),
            ScriptFactory(elect, Election(uuid.uuid4(), "olga", None, desk.boot)),
        ],
    )
    reasons = [outcome.reason for outcome in (cut_off, foreign, unknown) if isinstance(outcome, Lost)]
    assert reasons == [Reason.OTHER_BOOT, Reason.NO_RUN, Reason.NO_RUN]
    assert desk.row(hop) == before


def may_contain(found: Situation, claim: uuid.UUID | None) -> bool:
    if claim is None:
        return found.status in {S.CANCELLING, S.CANCELLED} and found.right
    return found.status in ON_WORKER and found.right and found.state is D.CLAIMED and found.claim == claim


@ROADS
@pytest.mark.contract("SET-7", "SET-8", "CAN-3")
@pytest.mark.parametrize("claim", [MINE, None], ids=["of a failed hop", "of a cancelling Run"])
def test_owners_are_withdrawn_exactly_under_the_guard_of_their_hop(
    desk: LedgerDesk, road: Road, claim: uuid.UUID | None
) -> None:
    def withdraw(run_id: uuid.UUID, principal: str) -> Script[int]:
        # An effect that is seen, in the transaction that proves the guard.
        yield Statement(
            "update runs_run set quarantine_reason = %(by)s::text, quarantined_at = now() where id = %(run)s::uuid",
            {"by": principal, "run": str(run_id)},
        )
        return 1

    outcomes = each(desk, road, lambda run_id: ScriptFactory(contain, Guard(run_id, ASKED, claim), withdraw, "failure"))
    after = desk.rows(LAWFUL)
    assert any(isinstance(outcome, Won) for outcome in outcomes.values())
    for run_id, found in LAWFUL.items():
        assert isinstance(outcomes[run_id], Won) is may_contain(found, claim), (found, outcomes[run_id])
        assert (after[run_id].run["quarantine_reason"] == "failure") is may_contain(found, claim), found


@ROADS
@pytest.mark.contract("SET-9", "BYD-6")
def test_why_something_is_not_contained_is_kept_on_an_unfinished_run_and_is_news_once(
    desk: LedgerDesk, road: Road
) -> None:
    hop, ended = desk.a_run(status=S.RUNNING), desk.a_run(status=S.DONE)
    said = ScriptFactory[Any](note_containment, hop.run_id, hop.seq, "the runtime is away")
    assert [*road(desk, [said]), *road(desk, [said])] == [True, False]
    assert road(desk, [ScriptFactory(note_containment, ended.run_id, ended.seq, "late")]) == [False]
    assert road(desk, [ScriptFactory(note_containment, hop.run_id, hop.seq + 1, "of another hop")]) == [False]
    assert desk.row(hop).run["containment_error"] == "the runtime is away"


@ROADS
def test_a_quarantine_is_for_every_unfinished_run_and_for_an_end_without_its_step(desk: LedgerDesk, road: Road) -> None:
    outcomes = each(desk, road, lambda run_id: ScriptFactory(quarantine, Quarantine(run_id, "bad")))
    assert {type(outcome) for outcome in outcomes.values()} == {Won}
    again = road(desk, [ScriptFactory(quarantine, Quarantine(run_id, None)) for run_id in LAWFUL])
    assert [outcome.again for outcome in again if isinstance(outcome, Won)] == [False] * len(LAWFUL)
    assert all(rows.run["quarantined_at"] is None for rows in desk.rows(LAWFUL).values())


@ROADS
def test_an_end_that_its_step_tells_truly_is_not_quarantined(desk: LedgerDesk, road: Road) -> None:
    proved = uuid.uuid4()
    desk.place([Placed(proved, S.DONE, 0, (Delivery(0, D.SETTLED),))])
    desk.execute(
        "insert into runs_step (id, run_id, tenant, epoch, seq, tokens_before, kind, data, meta, at)"
        " values (gen_random_uuid(), %s, 'default', 'e', 0, 0, 'done', '{\"status\": \"done\"}', '{}', now())",
        proved,
    )
    (outcome,) = road(desk, [ScriptFactory(quarantine, Quarantine(proved, "bad"))])
    assert isinstance(outcome, Lost)
    assert outcome.reason is Reason.TERMINAL
