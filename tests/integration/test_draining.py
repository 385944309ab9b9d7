"""A Vessel that goes down in good order: hops stop where their Run returns from, the rest ends as it must (BYD-5)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from runs import seams
from tests.support.returning import stopping, walk
from tests.support.vessel_parts import Build, Ctx, Latch, Parts, cancelled

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def drained_in_the_first_node(parts: Parts) -> tuple[uuid.UUID, Any]:
    """A Run of `walk` whose Vessel began to drain before its first node, and how its hop ended."""
    latch = Latch()
    remove = seams.install("claim.committed", latch)
    try:
        run_id = await parts.submit("walk")
        task = asyncio.create_task(parts.perform(run_id))
        await latch.arrived()
        parts.ghoul.drain.asked = True
        latch.release.set()
        return run_id, await task
    finally:
        remove()
        parts.ghoul.drain.asked = False


@pytest.mark.contract("BYD-5", "BYD-3")
async def test_a_hop_yields_at_the_boundary_and_the_next_vessel_goes_on_there(build: Build) -> None:
    parts = await build(walk(safe=True))
    run_id, outcome = await drained_in_the_first_node(parts)
    assert outcome == {"outcome": "yielded"}
    assert await parts.standing(run_id, 0) == ("queued", "settled")
    following = await parts.delivery(run_id, 1)
    assert (following["state"], following["resume"]) == ("pending", True)
    (snapshot,) = await parts.snapshots(run_id)
    assert snapshot["node"] == "two"
    assert await parts.perform(run_id, 1) == {"outcome": "done"}
    assert (await parts.run(run_id))["output"]["text"] == "one two"
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("BYD-5")
async def test_a_hop_that_cannot_yield_goes_on_to_its_end(build: Build) -> None:
    parts = await build(walk(safe=False))
    run_id, outcome = await drained_in_the_first_node(parts)
    assert outcome == {"outcome": "done"}
    assert (await parts.run(run_id))["enqueue_seq"] == 0


@pytest.mark.contract("BYD-5", "SET-10")
@pytest.mark.parametrize("safe", [True, False], ids=["replay safe", "not"])
async def test_what_is_cancelled_when_the_drain_is_over_returns_if_it_may_and_fails_if_not(
    build: Build, safe: bool
) -> None:
    latch = Latch()

    async def stuck(ctx: Ctx) -> str:
        await latch()
        return "never"

    parts = await build(stopping(stuck, safe=safe))
    run_id = await parts.submit("stopping")
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    parts.ghoul.drain.asked = True
    task.cancel()
    assert await cancelled(task) is None
    run = await parts.run(run_id)
    if safe:
        assert (run["status"], run["enqueue_seq"]) == ("queued", 1)
        assert (await parts.delivery(run_id, 1))["resume"] is True
    else:
        assert (run["status"], run["error_code"]) == ("failed", "worker_cancelled")
