"""Worker, Ghoul and Run are three things; the broker has its own tables and connections; a pause stops nobody."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.support.hops import Entries, checkpoint, pair
from tests.support.vessel_parts import Build, Ctx, Latch, Parts, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def ended(parts: Parts, *keys: str) -> bool:
    jobs = await parts.jobs()
    return all(key in jobs and jobs[key]["status"] == "complete" for key in keys)


@pytest.mark.contract("TOP-6", "CLM-5")
async def test_one_worker_carries_a_run_by_one_ghoul_after_the_other(build: Build) -> None:
    """The worker outlives its invocations; each claims a hop of its own; the Run is one row through all of them."""
    entries, latch = Entries(), Latch()

    async def first(ctx: Ctx) -> None:
        await entries(ctx)
        await latch()

    parts = await build(pair(first, entries))
    async with parts.lanes(runs=1) as lanes:
        worker = lanes.workers["runs"]
        run_id = await parts.submit("pair")
        await latch.arrived()
        assert len(worker.busy()) == 1
        await parts.park_and_return(run_id, checkpoint(run_id, "second"))
        latch.release.set()
        await eventually(lambda: ended(parts, f"run:{run_id}:0"))
        assert worker.busy() == set()
        assert await parts.standing(run_id, 1) == ("queued", "pending"), "the first Ghoul has no part in this hop"
        await parts.publisher.enqueue(run_id, 1, "runs", 50)
        await eventually(lambda: ended(parts, f"run:{run_id}:1"))
        assert lanes.workers["runs"] is worker
    assert entries.nodes == ["first", "second"]
    assert await parts.standing(run_id, 1) == ("done", "settled")
    hops = [await parts.delivery(run_id, seq) for seq in (0, 1)]
    assert len({hop["claim_id"] for hop in hops}) == 2
    assert {hop["boot_id"] for hop in hops} == {parts.boot_id}
    assert {job["worker_id"] for job in (await parts.jobs(run_id)).values()} == {worker.id}
    assert await parts.runs_stored() == 1
    await parts.bus.settle(run_id)
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("TOP-2")
async def test_the_broker_has_tables_and_autocommit_connections_of_its_own(build: Build) -> None:
    """While a Run is carried no session of the broker holds a transaction, and none of its rows is tied to ours."""
    latch = Latch()

    async def waits(ctx: Ctx) -> str:
        await latch()
        return "told"

    parts = await build(solo(waits))
    async with parts.lanes() as lanes:
        run_id = await parts.submit()
        await latch.arrived()
        pools = [parts.publisher.pool, *(worker.queue.connections for worker in lanes.workers.values())]
        names: set[str] = set()
        for pool in pools:
            async with pool.connection() as connection:
                assert connection.autocommit
                names.add(connection.info.get_parameters()["application_name"])
        assert names == {"lychd publication", "lychd lane runs", "lychd lane rites"}
        in_transaction = (
            "select application_name from pg_stat_activity where datname = current_database()"
            " and application_name = any(%s) and state like 'idle in transaction%%'"
        )
        assert await parts.rows(in_transaction, list(names)) == []
        kept = await parts.jobs(run_id)
        assert {tuple(sorted(job["kwargs"])) for job in kept.values()} == {("run_id", "seq")}
        latch.release.set()
        await eventually(lambda: ended(parts, f"run:{run_id}:0"))
    ties = (
        "select conname from pg_constraint where contype = 'f'"
        " and (conrelid::regclass::text like 'saq_%%') <> (confrelid::regclass::text like 'saq_%%')"
    )
    assert await parts.rows(ties) == []
    told = (await parts.run(run_id), await parts.delivery(run_id), await parts.steps(run_id))
    await parts.rows("truncate saq_jobs, saq_stats")
    assert (await parts.run(run_id), await parts.delivery(run_id), await parts.steps(run_id)) == told
    assert told[0]["output"] == {"text": "told", "value": None}


@pytest.mark.contract("MUT-3", "MUT-2")
async def test_a_pause_tells_no_running_work_to_stop(build: Build) -> None:
    """There is no soft stop: what runs goes on to its end, through its checkpoint; only the next claim waits."""
    latch = Latch()
    noticed: list[Any] = []

    async def first(ctx: Ctx) -> None:
        await latch()
        noticed.append(ctx.cancelled)

    parts = await build(pair(first, echo), solo(echo))
    async with parts.lanes(runs=2) as lanes:
        running = await parts.submit("pair")
        await latch.arrived()
        parts.claim_gate.close("keeper", "a pause")
        waiting = await parts.submit("solo")
        await eventually(lambda: len(lanes.workers["runs"].busy()) == 2)
        latch.release.set()
        await eventually(lambda: ended(parts, f"run:{running}:0"))
        assert await parts.standing(running) == ("done", "settled")
        assert noticed == [False]
        assert await parts.standing(waiting) == ("queued", "published")
        await parts.bus.settle(running)
        assert {kind for _, kind, _ in await parts.steps(running)} == {"status", "node", "done"}
        assert await untouched(parts, waiting)
        parts.claim_gate.open("keeper")
        await eventually(lambda: ended(parts, f"run:{waiting}:0"))
    assert await parts.standing(waiting) == ("done", "settled")


async def untouched(parts: Parts, run_id: uuid.UUID) -> bool:
    """Whether nobody has begun with it."""
    return (await parts.run(run_id))["started_at"] is None and (await parts.delivery(run_id))["claim_id"] is None
