"""A hop that fails is FAILED once nothing acts for its Run any more; what nobody carries comes to an end (SET, BYD)."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import Any

import pytest

from consents.wait import ConsentWait
from runs import seams
from runs.containment import ContainmentUncertain
from runs.errors import Corrupt, Unknown
from runs.ledger.claim import CLAIM, Claim
from runs.ledger.settle import SETTLE
from runs.recovery.custody import CancelRelay, CustodyRelay, Patience
from tests.support.delegates import Delegates, Faulty, job_of, job_table
from tests.support.hops import checkpoint, pair
from tests.support.returning import asking
from tests.support.vessel_parts import Build, Ctx, Latch, Parts, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def fails(ctx: Ctx) -> str:
    raise ValueError("boom")


def relay_of(parts: Parts) -> CustodyRelay:
    """The relay, for which every claim is old enough and every look a second later."""
    custody = parts.ghoul.custody
    patience = Patience(clock=itertools.count(step=1000).__next__)
    return CustodyRelay(
        parts.reads, parts.engine, parts.dead, custody, parts.boot_id, settle_seconds=0.0, patience=patience
    )


async def a_job(parts: Parts, run_id: uuid.UUID) -> None:
    await parts.rows("insert into test_job (id, run_id, visit) values (%s, %s, 5)", uuid.uuid4(), run_id)


@pytest.mark.contract("SET-7")
async def test_s063_a_late_failure_ends_nothing_of_the_next_hop(build: Build) -> None:
    latch, delegates = Latch(), Delegates()

    async def body(ctx: Ctx) -> str:
        await latch()
        raise ValueError("late")

    parts = await build(pair(echo, body), waits=[delegates])
    await job_table(parts)
    run_id = await parts.submit("pair")
    late = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    await parts.park_and_return(run_id, checkpoint(run_id, "second", visited=["ours"]))
    await a_job(parts, run_id)
    latch.release.set()
    await asyncio.wait({late})
    assert isinstance(late.exception(), Corrupt)
    assert (await job_of(parts, run_id))["status"] == "running"
    assert delegates.halted == []
    assert (await parts.run(run_id))["status"] == "queued"


@pytest.mark.contract("SET-7", "WAIT-14")
async def test_s064_a_park_whose_answer_was_lost_stands_and_the_run_returns(build: Build) -> None:
    parts = await build(asking(), waits=[ConsentWait()])
    run_id = await parts.submit("asking")

    async def lost(_: str) -> None:
        raise Unknown("The answer to the park was lost.")

    remove = seams.install("park.committed", lost)
    try:
        with pytest.raises(Unknown):
            await parts.perform(run_id)
    finally:
        remove()
    assert await parts.standing(run_id) == ("awaiting_consent", "settled")
    (consent,) = await parts.rows("select id, status from consents_consent where run_id = %s", run_id)
    assert consent["status"] == "pending"
    relay = relay_of(parts)
    await relay.tick()
    assert (relay.ended, (await parts.run(run_id))["status"]) == (0, "awaiting_consent")
    await parts.rows(
        "update consents_consent set status = 'granted', decided_by = 'olga', decided_at = now(), surface = 'admin'"
        " where run_id = %s",
        run_id,
    )
    assert await parts.engine.resume(ConsentWait(), run_id, consent["id"])
    await parts.perform(run_id, 1)
    assert (await parts.run(run_id))["output"]["text"] == "yes"


@pytest.mark.contract("SET-8")
async def test_s065_a_transient_trouble_of_an_authority_is_tried_again_before_failed(build: Build) -> None:
    delegates = Delegates(Faulty(2, lambda: OSError("away")))
    parts = await build(solo(fails), waits=[delegates])
    await job_table(parts)
    run_id = await parts.carried()
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"], len(delegates.halted)) == ("failed", "node_failed", 3)
    assert run["containment_error"] is None


@pytest.mark.contract("SET-9", "BYD-6")
async def test_s066_what_cannot_be_contained_stays_unfinished_until_it_is_and_fails_with_its_own_reason(
    build: Build,
) -> None:
    delegates = Delegates(Faulty(4, lambda: OSError("away")))
    parts = await build(solo(fails), waits=[delegates])
    await job_table(parts)
    run_id = await parts.submit()
    with pytest.raises(ContainmentUncertain):
        await parts.perform(run_id)
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"]) == ("running", None)
    assert "away" in run["containment_error"]
    assert await parts.ends(run_id) == []
    relay = relay_of(parts)
    for _ in range(4):
        await relay.tick()
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"], run["containment_error"]) == ("failed", "node_failed", None)
    assert await parts.ends(run_id) == ["failed"]
    assert parts.ghoul.custody.outcomes == {}


@pytest.mark.contract("BYD-6", "SET-1")
@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
async def test_an_end_that_got_no_answer_is_written_or_told_by_the_relay(
    build: Build, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    parts = await build(solo(echo))
    run_id = await parts.submit()
    real = parts.ledger.run

    async def unanswered(edge: Any, request: Any) -> Any:
        if edge is not SETTLE:
            return await real(edge, request)
        if written:
            await real(edge, request)
        raise Unknown("The database did not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(parts.ledger, "run", unanswered)
        with pytest.raises(Unknown):
            await parts.perform(run_id)
    assert (await parts.run(run_id))["status"] == ("done" if written else "running")
    assert await parts.ends(run_id) == []
    await relay_of(parts).tick()
    run = await parts.run(run_id)
    assert (run["status"], run["output"]["text"]) == ("done", "hello")
    assert await parts.ends(run_id) == ["done"]
    assert parts.ghoul.custody.outcomes == {}


@pytest.mark.contract("BYD-6")
async def test_a_hop_that_is_carried_is_never_touched_and_one_that_nobody_carries_is_judged(build: Build) -> None:
    latch = Latch()

    async def body(ctx: Ctx) -> str:
        await latch()
        return "ours"

    parts = await build(solo(body))
    live, lost = await parts.submit(), await parts.submit()
    task = asyncio.create_task(parts.perform(live))
    await latch.arrived()
    await parts.ledger.run(CLAIM, Claim(lost, 0, uuid.uuid4(), parts.boot_id))
    await relay_of(parts).tick()
    assert (await parts.run(live))["status"] == "running"
    assert (await parts.run(lost))["error_code"] == "ghoul_lost"
    latch.release.set()
    assert await task == {"outcome": "done"}


@pytest.mark.contract("CAN-5")
async def test_a_cancellation_that_came_to_no_end_is_taken_up_again(build: Build) -> None:
    parts = await build(waits=[Delegates(Faulty(1, lambda: OSError("away")))])
    await job_table(parts)
    run_id = await parts.submit()
    with pytest.raises(ContainmentUncertain):
        await parts.canceller.cancel(run_id, "olga")
    relay = CancelRelay(parts.reads, parts.engine, parts.canceller, settle_seconds=0.0)
    await relay.tick()
    await eventually(lambda: relay.ended)
    run = await parts.run(run_id)
    assert (run["status"], run["cancelled_by"]) == ("cancelled", "olga")
