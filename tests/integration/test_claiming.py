"""From the broker's hint to a claimed hop: exactly one claimant, everything from the ledger, nothing guessed."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import psycopg
import pytest

from runs import reads as rows
from runs import seams
from runs.errors import Degraded
from runs.ledger.claim import Claimed
from runs.reads import Reads
from tests.support.hops import Entries, checkpoint, pair
from tests.support.lossy_wire import LossyWire
from tests.support.vessel_parts import Build, Ctx, Latch, Parts, a_caller, asks, cancelled, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


@pytest.mark.contract("CLM-4", "CLM-5")
async def test_of_many_ghouls_with_one_hop_exactly_one_runs_the_graph(build: Build) -> None:
    """S040"""
    entries = Entries()
    parts = await build(solo(entries))
    run_id = await parts.submit()
    results = await asyncio.gather(*(parts.perform(run_id) for _ in range(20)))
    assert sorted(result["outcome"] for result in results) == ["done"] + ["skipped"] * 19
    assert entries.nodes == ["only"]
    await parts.bus.settle(run_id)
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("CLM-5")
async def test_two_processes_with_one_hop_at_once_carry_it_once(build: Build) -> None:
    """S040, where the batches are not of one coalescer: both wait for the same row, then one of them wins."""
    entries = Entries()
    here = await build(solo(entries))
    there = await build(solo(entries), boot_id=here.boot_id)
    run_id = await here.submit()
    async with here.held_row(run_id):
        both = [asyncio.create_task(parts.perform(run_id)) for parts in (here, there)]
        await eventually(lambda: here.rows(_WAITERS))
    results = await asyncio.gather(*both)
    assert sorted(result["outcome"] for result in results) == ["done", "skipped"]
    assert entries.nodes == ["only"]


_WAITERS = (
    "select 1 from pg_stat_activity where datname = current_database() and application_name = 'lychd ledger slow'"
    " and wait_event_type = 'Lock' having count(*) = 2"
)


@pytest.mark.contract("CLM-5")
async def test_a_job_that_comes_again_after_the_end_is_skipped_without_a_trace(build: Build) -> None:
    """S200: the broker may hand the same key out again; nothing runs twice."""
    entries = Entries()
    parts = await build(solo(entries))
    run_id = await parts.carried()
    before = (await parts.run(run_id), await parts.delivery(run_id), await parts.steps(run_id), list(parts.moves))
    assert await parts.perform(run_id) == {"outcome": "skipped", "reason": "terminal"}
    assert (await parts.run(run_id), await parts.delivery(run_id), await parts.steps(run_id), parts.moves) == before
    assert entries.nodes == ["only"]
    assert not parts.bus.is_open(run_id)


@pytest.mark.contract("CLM-1", "CLM-5")
@pytest.mark.parametrize("seq", [1, 2**31 - 1])
async def test_a_job_of_another_generation_is_skipped_and_the_run_untouched(parts: Parts, seq: int) -> None:
    """S041"""
    run_id = await parts.submit()
    before = (await parts.run(run_id), await parts.delivery(run_id))
    assert (await parts.perform(run_id, seq))["outcome"] == "skipped"
    assert (await parts.run(run_id), await parts.delivery(run_id)) == before
    assert await parts.perform(run_id) == {"outcome": "done"}


@pytest.mark.contract("CLM-5")
async def test_a_job_of_no_run_is_skipped(parts: Parts) -> None:
    run_id = uuid.uuid4()
    assert (await parts.perform(run_id))["outcome"] == "skipped"
    assert not parts.bus.is_open(run_id)


@pytest.mark.contract("CLM-2", "CLM-10")
async def test_the_deliverys_own_flag_says_whether_a_hop_is_a_return(build: Build) -> None:
    """S043: the broker's word has no part in it; a fresh hop starts although a checkpoint lies there."""
    entries = Entries()
    parts = await build(pair(entries, entries))
    returned, fresh = await parts.submit("pair"), await parts.submit("pair")
    for run_id, resume in ((returned, True), (fresh, False)):
        await parts.park_and_return(run_id, checkpoint(run_id, "second"))
        await parts.rows(
            "update runs_rundelivery set resume = %s where run_id = %s and enqueue_seq = 1", resume, run_id
        )
    assert await parts.perform(returned, 1) == {"outcome": "done"}
    assert entries.nodes == ["second"]
    assert await parts.perform(fresh, 1) == {"outcome": "done"}
    assert entries.nodes == ["second", "first", "second"]


@pytest.mark.contract("CLM-7")
async def test_a_held_hop_is_never_claimed_even_with_a_job(parts: Parts) -> None:
    """S044: the job is there before the retention hook has returned."""
    skipped: list[Any] = []

    async def keep(run_id: uuid.UUID) -> None:
        skipped.append(await parts.perform(run_id))

    run_id = (await parts.engine.submit(a_caller(), asks(), keep)).run_id
    assert skipped == [{"outcome": "skipped", "reason": "held"}]
    assert await parts.perform(run_id) == {"outcome": "done"}


@pytest.mark.contract("CLM-3", "MUT-2", "MUT-3", "MUT-4")
async def test_a_shut_gate_keeps_jobs_before_their_claim_until_its_last_holder_lets_go(build: Build) -> None:
    """S045: pausing is the gate alone; the broker hands out work all the same, and its depth says nothing."""
    entries = Entries()
    parts = await build(solo(entries))
    parts.claim_gate.close("first", "a change")
    parts.claim_gate.close("second", "another one")
    async with parts.lanes(runs=2):
        runs = [await parts.submit() for _ in range(3)]

        async def active() -> bool:
            return sum(job["status"] == "active" for job in (await parts.jobs()).values()) == 2

        await eventually(active)
        parts.claim_gate.open("first")
        assert {await parts.standing(run_id) for run_id in runs} == {("queued", "published")}
        assert entries.nodes == []
        parts.claim_gate.open("second")
        await eventually(lambda: len(entries.nodes) == 3)
        await eventually(lambda: len(parts.moves) == 6)
    assert [await parts.standing(run_id) for run_id in runs] == [("done", "settled")] * 3


@pytest.mark.contract("CLM-12", "SET-10")
async def test_a_ghoul_cancelled_while_its_claim_commits_settles_what_it_claimed(build: Build) -> None:
    """S046"""
    entries = Entries()
    parts = await build(solo(entries))
    run_id = await parts.submit()
    async with parts.held_row(run_id):
        task = asyncio.create_task(parts.perform(run_id))
        await eventually(lambda: parts.waits_for_lock("lychd ledger slow"))
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
    assert await cancelled(task) is None
    run = await parts.run(run_id)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert run["error_code"] == "worker_cancelled"
    assert run["error_message"]
    assert await parts.ends(run_id) == ["failed"]
    assert not parts.bus.is_open(run_id)
    assert entries.nodes == []
    assert (parts.limits.queued, parts.limits.live) == (0, {"default": 0})


@pytest.mark.contract("CLM-12", "CLM-4")
@pytest.mark.parametrize("edge", ["claim", "checkpoint", "settle", "discard_checkpoint"])
async def test_a_ghoul_whose_ledger_loses_an_answer_carries_its_hop_once_and_to_the_end(
    build: Build, dsn: str, edge: str
) -> None:
    """The statement was carried out and its answer was lost; the claim is known by its claim id (ruling 6)."""
    entries = Entries()
    async with LossyWire(dsn) as wire:
        parts = await build(pair(entries, entries), through=wire.dsn)
        await parts.carried("pair")
        run_id = await parts.submit("pair")
        wire.lose_answers(f"lychd ledger {edge}")
        assert await parts.perform(run_id) == {"outcome": "done"}
        assert wire.lost == 1
    assert entries.nodes == ["first", "second"] * 2
    assert await parts.standing(run_id) == ("done", "settled")
    assert await parts.snapshots(run_id) is None
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("CLM-12")
async def test_a_ghoul_cancelled_while_it_loses_its_claim_is_cancelled_and_touches_nothing(parts: Parts) -> None:
    run_id = await parts.carried()
    before = await parts.run(run_id)
    latch = Latch()
    remove = seams.install("claim.committed", latch)
    try:
        task = asyncio.create_task(parts.perform(run_id))
        await latch.arrived()
        task.cancel()
    finally:
        remove()
    assert await cancelled(task) is None
    assert await parts.run(run_id) == before


@pytest.mark.contract("CLM-9", "CLM-11", "SET-12")
@pytest.mark.parametrize("change", ["gone", "other code", "digest", "manifest", "no manifest", "other key"])
async def test_a_run_whose_pinned_pattern_is_not_here_fails_and_is_never_rerouted(build: Build, change: str) -> None:
    """S047: a Pattern of the same key that is active does not take its place."""
    old, new = Entries(), Entries()
    first = await build(solo(old, revision="1"))
    run_id = await first.submit()
    changes = {
        "digest": "update runs_run set pattern_digest = repeat('0', 64) where id = %s",
        "manifest": "update runs_run set manifest = jsonb_set(manifest, '{revision}', '\"9\"') where id = %s",
        "no manifest": "update runs_run set manifest = '[]' where id = %s",
        "other key": "update runs_run set pattern_key = 'stranger' where id = %s",
    }
    if change in changes:
        await first.rows(changes[change], run_id)
    here = {
        "gone": (solo(new, revision="2"),),
        "other code": (pair(new, new, "solo", revision="1"),),
    }.get(change, (solo(new, revision="1"),))
    parts = await build(*here, boot_id=first.boot_id)
    parts.bus.open(run_id, tenant="default")
    reader = parts.bus.subscribe(run_id, None)
    assert await parts.perform(run_id) == {"outcome": "failed"}
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"], run["error_node"]) == ("failed", "pinned_pattern", None)
    assert await parts.ends(run_id) == ["failed"]
    async with asyncio.timeout(5):
        heard = [event async for event in reader]
    assert [getattr(event, "kind", None) for event in heard if getattr(event, "kind", None) == "done"] == ["done"]
    assert not parts.bus.is_open(run_id)
    assert (old.nodes, new.nodes) == ([], [])


@pytest.mark.contract("CLM-11")
async def test_a_run_goes_on_with_its_own_older_revision_while_a_newer_one_is_active(build: Build) -> None:
    old, new = Entries(), Entries()
    first = await build(solo(old, revision="1"))
    run_id = await first.submit()
    parts = await build(solo(old, revision="1", active=False), solo(new, revision="2"), boot_id=first.boot_id)
    assert await parts.perform(run_id) == {"outcome": "done"}
    assert (old.nodes, new.nodes) == (["only"], [])


@pytest.mark.contract("CLM-10")
@pytest.mark.parametrize(
    "snapshots",
    [
        None,
        [],
        [{"kind": "node", "node": "second", "status": "running", "visit": 1, "state": {}}],
        [{"kind": "mystery"}],
        [{"kind": "node", "status": "created"}],
        [{"kind": "node", "status": "created", "node": "second", "visit": "one", "state": {}}],
        ["nonsense"],
        [None],
    ],
)
async def test_a_return_without_a_usable_checkpoint_is_stasis_lost_and_enters_no_node(
    build: Build, snapshots: Any
) -> None:
    """S049"""
    entries = Entries()
    parts = await build(pair(entries, entries))
    run_id = await parts.submit("pair")
    await parts.park_and_return(run_id, snapshots)
    assert await parts.perform(run_id, 1) == {"outcome": "failed"}
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"]) == ("failed", "stasis_lost")
    assert entries.nodes == []
    assert await parts.ends(run_id) == ["failed"]


@pytest.mark.contract("CLM-10")
@pytest.mark.parametrize("node", ["third", "", "constructor"])
async def test_a_return_to_a_node_that_there_is_not_fails_and_enters_no_other(build: Build, node: str) -> None:
    entries = Entries()
    parts = await build(pair(entries, entries))
    run_id = await parts.submit("pair")
    await parts.park_and_return(run_id, checkpoint(run_id, node))
    assert await parts.perform(run_id, 1) == {"outcome": "failed"}
    assert (await parts.run(run_id))["status"] == "failed"
    assert entries.nodes == []


@pytest.mark.contract("CLM-10")
async def test_a_return_whose_state_does_not_fit_any_more_fails_and_says_where(build: Build) -> None:
    entries = Entries()
    parts = await build(pair(entries, entries))
    run_id = await parts.submit("pair")
    await parts.park_and_return(run_id, [{**checkpoint(run_id, "second")[0], "state": {"visited": "all"}}])
    assert await parts.perform(run_id, 1) == {"outcome": "failed"}
    run = await parts.run(run_id)
    assert run["status"] == "failed"
    assert "visited" in run["error_message"]
    assert entries.nodes == []


@pytest.mark.contract("CLM-8", "CLM-16")
async def test_the_first_claim_dates_the_run_for_ever_and_a_later_one_clears_its_error(build: Build) -> None:
    """S050"""
    seen: list[Any] = []
    parts: Parts

    async def look(ctx: Ctx) -> str:
        seen.append(await parts.run(ctx.run.id))
        return ""

    parts = await build(pair(look, look))
    run_id = await parts.submit("pair")
    assert (await parts.run(run_id))["started_at"] is None
    latch = Latch()
    remove = seams.install("drive.checkpointed", latch)
    try:
        first = asyncio.create_task(parts.perform(run_id))
        await latch.arrived()
        started = (await parts.run(run_id))["started_at"]
        assert started is not None
        await parts.park_and_return(run_id, None, error="an error of the hop before")
        await parts.rows("update runs_run set error_node = 'first' where id = %s", run_id)
        remove()
        assert await parts.perform(run_id, 1) == {"outcome": "done"}
    finally:
        remove()
        latch.release.set()
    await first
    del seen[2:]  # the abandoned hop goes on until its next write
    assert [run["enqueue_seq"] for run in seen] == [0, 1]
    assert [(run["error_code"], run["error_message"], run["error_node"]) for run in seen] == [(None, None, None)] * 2
    assert [run["started_at"] for run in seen] == [started, started]
    ended = await parts.run(run_id)
    assert (ended["started_at"], ended["error_code"]) == (started, None)


@pytest.mark.contract("CLM-15")
async def test_a_return_has_the_authority_that_was_recorded_cut_by_what_is_left_of_it(build: Build) -> None:
    """S053: the persisted scopes, on the fresh hop and on the return; a revocation in between is final."""
    seen: list[frozenset[str]] = []
    asked: list[tuple[str, tuple[str, ...]]] = []
    left: frozenset[str] | None = frozenset({"runs:read"})

    async def note(ctx: Ctx) -> str:
        seen.append(ctx.run.scopes)
        return ""

    def revalidate(_: Reads) -> Any:
        async def now(claimed: Claimed) -> frozenset[str] | None:
            asked.append((claimed.sigil_name, tuple(sorted(claimed.scopes))))
            return None if left is None else frozenset(claimed.scopes) & left

        return now

    parts = await build(pair(note, note), revalidate=revalidate)
    run_id = await parts.submit("pair")
    await parts.park_and_return(run_id, checkpoint(run_id, "second"))
    assert await parts.perform(run_id, 1) == {"outcome": "done"}
    assert seen == [frozenset({"runs:read"})]
    assert asked == [("tester", ("runs:read", "runs:submit"))]
    left = None
    run_id = await parts.carried("pair")
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"]) == ("failed", "authority_revoked")
    assert len(seen) == 1


@pytest.mark.contract("CLM-15")
async def test_a_database_that_cannot_be_asked_for_a_moment_fails_no_run(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of PostgreSQL between the claim and the first node, and again before the journal is read."""
    asked: list[str] = []

    def once(what: str) -> None:
        asked.append(what)
        if asked.count(what) == 1:
            raise Degraded("The database cannot be asked: it restarts.")

    def revalidate(_: Reads) -> Any:
        async def now(claimed: Claimed) -> frozenset[str]:
            once("authority")
            return frozenset(claimed.scopes)

        return now

    entries = Entries()
    parts = await build(pair(entries, entries), revalidate=revalidate)
    read = rows.journal

    async def journal(reads: Reads, run_id: uuid.UUID, visit: int) -> list[rows.JournalRow]:
        once("journal")
        return await read(reads, run_id, visit)

    monkeypatch.setattr(rows, "journal", journal)
    run_id = await parts.submit("pair")
    await parts.park_and_return(run_id, checkpoint(run_id, "second"))
    assert await parts.perform(run_id, 1) == {"outcome": "done"}
    assert asked == ["authority", "authority", "journal", "journal"]
    assert entries.nodes == ["second"]


@pytest.mark.contract("CLM-4", "BYD-1")
async def test_a_vessel_that_lost_the_slot_claims_nothing(parts: Parts, build: Build) -> None:
    run_id = await parts.submit()
    await build()
    assert (await parts.perform(run_id))["outcome"] == "skipped"
    assert (await parts.run(run_id))["status"] == "queued"


@pytest.mark.contract("CLM-4")
async def test_a_run_put_aside_is_claimed_only_when_it_is_back(parts: Parts) -> None:
    run_id = await parts.submit()
    await parts.rows("update runs_run set quarantined_at = now(), quarantine_reason = 'bad' where id = %s", run_id)
    assert await parts.perform(run_id) == {"outcome": "skipped", "reason": "quarantined"}
    await parts.rows("update runs_run set quarantined_at = null, quarantine_reason = null where id = %s", run_id)
    assert await parts.perform(run_id) == {"outcome": "done"}


@pytest.mark.contract("CLM-4", "CLM-12")
async def test_a_claim_that_rolled_back_leaves_the_run_queued_and_claimable(parts: Parts) -> None:
    """One transaction: the delivery that cannot be claimed takes the Run's status back with it."""
    run_id = await parts.submit()
    async with parts.refusing("runs_rundelivery", "new.state = 'claimed'"):
        with pytest.raises(psycopg.Error, match="not today"):
            await parts.perform(run_id)
    assert await parts.standing(run_id) == ("queued", "published")
    assert (await parts.run(run_id))["started_at"] is None
    assert await parts.perform(run_id) == {"outcome": "done"}


@pytest.mark.contract("TOP-2", "CLM-5")
async def test_lanes_carry_one_run_after_the_other_and_the_broker_keeps_only_jobs(build: Build) -> None:
    """One job and one invocation for each Run; the broker's tables hold nothing of the Run's truth."""
    entries = Entries()
    parts = await build(pair(entries, entries), solo(echo))
    async with parts.lanes():
        run_id = await parts.submit("pair")
        await eventually(lambda: len(parts.moves) == 2)
        again = await parts.submit("solo")
        await eventually(lambda: len(parts.moves) == 4)
    assert entries.nodes == ["first", "second"]
    jobs = await parts.jobs()
    assert {job["kwargs"]["run_id"] for job in jobs.values()} == {str(run_id), str(again)}
    assert all(set(job["kwargs"]) == {"run_id", "seq"} for job in jobs.values())
    await parts.rows("truncate saq_jobs")
    assert [await parts.standing(each) for each in (run_id, again)] == [("done", "settled")] * 2
