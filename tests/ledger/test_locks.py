"""Who waits for whom: a locked row delays its own request and no other (ruling 8). Waits are seen, never timed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runs.errors import Unknown
from runs.ledger.admit import ADMIT
from runs.ledger.checkpoint import DISCARD_CHECKPOINT, SAVE_CHECKPOINT, DiscardCheckpoint, SaveCheckpoint
from runs.ledger.claim import CLAIM, Claim
from runs.ledger.journal import RECORD_STEP, RecordStep
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost, Reason, Won
from runs.ledger.release import RELEASE, Release
from runs.ledger.settle import SETTLE, Settlement
from runs.states import DeliveryState, RunStatus
from tests.support.ledger import Hop, LedgerDesk
from tests.support.waiting import eventually

S, D = RunStatus, DeliveryState
LOCK = "select 1 from runs_run where id = %s for update"


def claim_of(desk: LedgerDesk, hop: Hop) -> Claim:
    return Claim(hop.run_id, hop.seq, hop.claim_id, desk.boot)


@pytest.mark.contract("CLM-4")
async def test_a_locked_run_does_not_hold_up_those_that_go_with_it(desk: LedgerDesk, ledger: Ledger) -> None:
    locked, *others = (desk.a_run() for _ in range(4))
    with desk.another() as other:
        other.execute(LOCK, [locked.run_id])
        late = asyncio.ensure_future(ledger.run(CLAIM, claim_of(desk, locked)))
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*(ledger.run(CLAIM, claim_of(desk, hop)) for hop in others))
        assert all(isinstance(outcome, Won) for outcome in outcomes)
        await eventually(lambda: desk.waiting("lychd ledger slow"))
        assert not late.done()
    async with asyncio.timeout(10):
        assert isinstance(await late, Won)


async def test_a_locked_run_holds_up_rare_edges_of_others_no_longer_than_one_lock_timeout(
    desk: LedgerDesk,
) -> None:
    ledger = Ledger(desk.dsn, lock_timeout_ms=200, patience=60.0)
    locked, held = desk.a_run(), desk.a_run(delivery=D.HELD)
    try:
        with desk.another() as other:
            other.execute(LOCK, [locked.run_id])
            late = asyncio.ensure_future(ledger.run(CLAIM, claim_of(desk, locked)))
            await eventually(lambda: desk.waiting("lychd ledger slow"))
            async with asyncio.timeout(30):
                outcome = await ledger.run(RELEASE, Release(held.run_id, 0))
            assert outcome == Won(None)
            assert not late.done()
        assert isinstance(await late, Won)
    finally:
        await ledger.close()


async def test_an_edge_on_a_run_that_stays_locked_ends_as_unknown_and_nothing_changed(
    desk: LedgerDesk,
) -> None:
    hasty = Ledger(desk.dsn, lock_timeout_ms=100, patience=0.5)
    locked = desk.a_run()
    before = desk.row(locked)
    with desk.another() as other:
        other.execute(LOCK, [locked.run_id])
        with pytest.raises(Unknown):
            await hasty.run(CLAIM, claim_of(desk, locked))
    await hasty.close()
    assert desk.row(locked) == before


@pytest.mark.contract("ADM-22")
async def test_s017_an_admission_that_waits_for_another_process_holds_up_no_other(
    desk: LedgerDesk, ledger: Ledger
) -> None:
    asked = desk.admission()
    with desk.another() as other:
        desk.statement(ADMIT, asked, on=other)
        late = asyncio.ensure_future(ledger.run(ADMIT, asked))
        async with asyncio.timeout(20):
            outcomes = await asyncio.gather(*(ledger.run(ADMIT, desk.admission()) for _ in range(3)))
        assert all(isinstance(outcome, Won) for outcome in outcomes)
        assert not late.done()
    async with asyncio.timeout(10):
        outcome = await late
    assert isinstance(outcome, Lost)
    assert outcome.reason is Reason.STATUS
    assert outcome.standing is not None
    assert outcome.standing.delivery is D.PENDING
    assert desk.value("select count(*) from runs_rundelivery where run_id = %s", asked.run_id) == 1


@pytest.mark.contract("ADM-22")
async def test_s017_an_admission_whose_rival_rolled_back_is_admitted(desk: LedgerDesk, ledger: Ledger) -> None:
    asked = desk.admission()
    with desk.another() as other:
        desk.statement(ADMIT, asked, on=other)
        late = asyncio.ensure_future(ledger.run(ADMIT, asked))
        await eventually(lambda: desk.waiting("lychd ledger%"))
        other.rollback()
    async with asyncio.timeout(10):
        assert isinstance(await late, Won)


@pytest.mark.contract("BYD-4")
async def test_two_records_of_one_step_that_waited_for_the_same_lock_answer_with_the_same_result(
    desk: LedgerDesk, ledger: Ledger
) -> None:
    hop = desk.a_run(status=S.RUNNING)
    twin = Ledger(desk.dsn)

    def recorded(result: str) -> RecordStep:
        return RecordStep(hop.run_id, 0, hop.claim_id, 0, "fetch", 0, "a" * 64, result)

    try:
        with desk.another() as other:
            other.execute(LOCK, [hop.run_id])
            both: list[Any] = [
                asyncio.ensure_future(one.run(RECORD_STEP, recorded(result)))
                for one, result in ((ledger, "1"), (twin, "2"))
            ]
            await eventually(lambda: len(desk.waiting("lychd ledger slow")) == 2)
        async with asyncio.timeout(10):
            first, second = await asyncio.gather(*both)
    finally:
        await twin.close()
    assert [first.value.fresh, second.value.fresh].count(True) == 1
    stored = desk.row(hop).of("journal")[0]["result"]
    assert first.value.result == second.value.result == stored


@pytest.mark.contract("SET-2")
@pytest.mark.parametrize("earlier", [True, False], ids=["another before it", "the first"])
async def test_the_archive_of_a_failed_run_has_the_checkpoint_that_its_end_waited_for(
    desk: LedgerDesk, ledger: Ledger, earlier: bool
) -> None:
    hop = desk.a_run(status=S.RUNNING)

    def checkpoint(node: str) -> SaveCheckpoint:
        return SaveCheckpoint(hop.run_id, hop.seq, hop.claim_id, f'[{{"node":"{node}"}}]')

    if earlier:
        desk.statement(SAVE_CHECKPOINT, checkpoint("first"))
    with desk.another() as other:
        desk.statement(SAVE_CHECKPOINT, checkpoint("last"), on=other)
        end = Settlement(hop.run_id, hop.seq, hop.claim_id, "failed", error_code="broke", error_message="it broke")
        late = asyncio.ensure_future(ledger.run(SETTLE, end))
        await eventually(lambda: desk.waiting("lychd ledger slow"))
        other.commit()
    async with asyncio.timeout(10):
        assert await late == Won(None)
    assert await ledger.run(DISCARD_CHECKPOINT, DiscardCheckpoint(hop.run_id, hop.seq)) == Won(None)
    (archived,) = desk.execute("select snapshots from runs_checkpointarchive where run_id = %s", hop.run_id)
    assert archived[0] == [{"node": "last"}]
    assert desk.value("select count(*) from runs_checkpoint where run_id = %s", hop.run_id) == 0
