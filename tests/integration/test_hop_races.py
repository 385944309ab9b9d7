"""Edges of one hop against each other at the same time: one of them wins, and the row tells which."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import pytest

from runs.ledger.claim import CLAIM, Claim
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost, Won
from runs.ledger.publication import MARK_PUBLISHED, NOTE_PUBLICATION_ERROR, PublicationError, Published
from runs.ledger.release import REFUSE_QUEUED, Refusal
from runs.ledger.rotate import ROTATE, Rotation
from tests.support.vessel_parts import Build, Ctx, Parts, cancelled, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def together(parts: Parts, run_id: uuid.UUID, *asked: tuple[Any, Any]) -> list[Any]:
    """Ask for edges at the same time, each over a ledger of its own, all of them waiting for the same row."""
    ledgers = [Ledger(parts.dsn) for _ in asked]
    try:
        async with parts.held_row(run_id):
            calls = [
                asyncio.ensure_future(ledger.run(edge, request))
                for ledger, (edge, request) in zip(ledgers, asked, strict=True)
            ]

            async def all_wait() -> bool:
                found = await parts.rows(
                    "select count(*) as n from pg_stat_activity where datname = current_database()"
                    " and application_name = 'lychd ledger slow' and wait_event_type = 'Lock'"
                )
                return found[0]["n"] == len(asked)

            await eventually(all_wait)
        return list(await asyncio.gather(*calls))
    finally:
        for ledger in ledgers:
            await ledger.close()


@pytest.mark.contract("CLM-4", "CLM-5", "RLY-10")
@pytest.mark.parametrize("claim_first", [True, False])
async def test_of_a_claim_and_a_rotation_exactly_one_takes_the_hop(parts: Parts, claim_first: bool) -> None:
    run_id = await parts.submit()
    claim = (CLAIM, Claim(run_id, 0, uuid.uuid4(), parts.boot_id))
    rotation = (ROTATE, Rotation(run_id, 0, parts.boot_id, "spent"))
    asked = [claim, rotation] if claim_first else [rotation, claim]
    outcomes = await together(parts, run_id, *asked)
    won = [edge.name for (edge, _), outcome in zip(asked, outcomes, strict=True) if isinstance(outcome, Won)]
    assert len(won) == 1
    unsettled = await parts.rows(
        "select enqueue_seq, state from runs_rundelivery where run_id = %s and state <> 'settled'", run_id
    )
    expected = {"claim": [(0, "claimed")], "rotate": [(1, "pending")]}[won[0]]
    assert [(row["enqueue_seq"], row["state"]) for row in unsettled] == expected
    assert (await parts.run(run_id))["status"] == ("running" if won == ["claim"] else "queued")


@pytest.mark.contract("CLM-4", "ADM-11", "ADM-15")
async def test_of_a_claim_and_a_refusal_of_the_queued_run_exactly_one_wins(parts: Parts) -> None:
    for _ in range(5):
        run_id = await parts.submit()
        claim, refusal = await together(
            parts,
            run_id,
            (CLAIM, Claim(run_id, 0, uuid.uuid4(), parts.boot_id)),
            (REFUSE_QUEUED, Refusal(run_id, 0, "pattern_gone", "no")),
        )
        assert isinstance(claim, Won) != isinstance(refusal, Won)
        assert await parts.standing(run_id) == (
            ("running", "claimed") if isinstance(claim, Won) else ("failed", "settled")
        )


@pytest.mark.contract("CLM-6", "ADM-13", "ADM-15")
async def test_the_brokers_word_never_moves_a_hop_back_that_was_claimed_meanwhile(parts: Parts) -> None:
    """S015: acknowledgement and error note race with the claim; whatever the order, the hop is claimed."""
    for _ in range(5):
        async with parts.refusing("runs_rundelivery", "new.state = 'published'"):
            run_id = await parts.submit()
        assert await parts.standing(run_id) == ("queued", "pending")
        outcomes = await together(
            parts,
            run_id,
            (MARK_PUBLISHED, Published(run_id, 0)),
            (CLAIM, Claim(run_id, 0, uuid.uuid4(), parts.boot_id)),
            (NOTE_PUBLICATION_ERROR, PublicationError(run_id, 0, "lost")),
        )
        assert isinstance(outcomes[1], Won)
        assert await parts.standing(run_id) == ("running", "claimed")


@pytest.mark.contract("CLM-5", "SET-1", "SET-6", "SET-10")
async def test_duplicates_and_cancellations_of_many_runs_leave_each_with_one_end(build: Build) -> None:
    """Every hop is handed out several times at once, and many of its ghouls are cancelled somewhere on their way."""
    entered: list[uuid.UUID] = []

    async def body(ctx: Ctx) -> str:
        entered.append(ctx.run.id)
        await ctx.step("work", lambda: None)
        return "fine"

    parts = await build(solo(body))
    dice = random.Random(7)
    runs = [await parts.submit() for _ in range(40)]

    async def ghoul(run_id: uuid.UUID) -> None:
        task = asyncio.create_task(parts.perform(run_id))
        if dice.random() < 0.5:
            for _ in range(dice.randrange(60)):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.wait({task})
                if not task.cancelled():
                    await cancelled(task) if task.exception() else None
                return
        await task

    await asyncio.gather(*(ghoul(run_id) for run_id in runs for _ in range(4)))
    for run_id in runs:  # where each of the four was cancelled before its claim
        await parts.perform(run_id)
    assert len(entered) == len(set(entered))
    found = await parts.rows("select status, count(*) as n from runs_run group by 1")
    assert {row["status"] for row in found} <= {"done", "failed"}
    assert sum(row["n"] for row in found) == 40
    assert await parts.rows("select 1 from runs_rundelivery where state <> 'settled'") == []
    for run_id in runs:
        await parts.bus.settle(run_id)
        assert await parts.ends(run_id) == [(await parts.run(run_id))["status"]]
    codes = await parts.rows("select distinct error_code as c from runs_run where status = 'failed'")
    assert {row["c"] for row in codes} <= {"worker_cancelled"}
    assert (parts.limits.queued, parts.limits.live) == (0, {"default": 0})
    assert await parts.rows("select 1 from runs_journalentry") == []


@pytest.mark.contract("CLM-4", "ADM-3")
async def test_many_hops_at_once_are_few_statements_and_each_its_own_claim(parts: Parts) -> None:
    runs = [await parts.submit() for _ in range(100)]
    before = {use.name: use for use in parts.ledger.uses()}["claim"]
    outcomes = await asyncio.gather(
        *(parts.ledger.run(CLAIM, Claim(run_id, 0, uuid.uuid4(), parts.boot_id)) for run_id in runs for _ in range(2))
    )
    after = {use.name: use for use in parts.ledger.uses()}["claim"]
    assert [isinstance(outcome, Won) for outcome in outcomes[::2]] == [True] * 100
    assert [isinstance(outcome, Lost) for outcome in outcomes[1::2]] == [True] * 100
    assert after.requests - before.requests == 200
    assert after.statements - before.statements < 20
