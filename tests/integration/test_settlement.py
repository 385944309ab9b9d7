"""The end of a hop: committed first, by its claimant alone, then cleaned up, told once, and closed, in this order."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import psycopg
import pytest

from runs import seams
from runs.errors import Corrupt, Unknown
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost, Reason
from runs.ledger.settle import SETTLE, Settlement
from tests.support.hops import Entries, checkpoint, pair
from tests.support.lossy_wire import LossyWire
from tests.support.vessel_parts import Build, Ctx, Latch, Parts, cancelled, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def broken(_: Ctx) -> str:
    raise ValueError("no")


def record(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that end a Run, in order, with the Run's stored status as each one begins."""
    calls: list[str] = []
    bus, ledger = parts.bus, parts.ledger
    finish, settle, close, run = bus.finish, bus.settle, bus.close, ledger.run

    async def noted(name: str) -> None:
        (status,) = [row["status"] for row in await parts.rows("select status from runs_run")]
        (state,) = [row["state"] for row in await parts.rows("select state from runs_rundelivery")]
        kept = (await parts.rows("select count(*) as n from runs_checkpoint"))[0]["n"]
        told = (await parts.rows("select count(*) as n from runs_step where kind = 'done'"))[0]["n"]
        calls.append(f"{name}: {status}, hop {state}, {kept} checkpoints, {told} ends")

    def edge(which: Any, request: Any) -> Any:
        if which.name not in {"settle", "discard_checkpoint"}:
            return run(which, request)

        async def after() -> Any:
            await noted(which.name)
            return await run(which, request)

        return after()

    def told(*args: Any, **kwargs: Any) -> Any:
        calls.append("terminal event")
        return finish(*args, **kwargs)

    async def drained(run_id: Any) -> None:
        await settle(run_id)
        await noted("drained")

    def closed(run_id: Any) -> None:
        calls.append("closed")
        close(run_id)

    monkeypatch.setattr(ledger, "run", edge)
    monkeypatch.setattr(bus, "finish", told)
    monkeypatch.setattr(bus, "settle", drained)
    monkeypatch.setattr(bus, "close", closed)
    return calls


@pytest.mark.contract("SET-2", "EVT-8")
@pytest.mark.parametrize("status", ["done", "failed"])
async def test_s070_the_order_of_an_end(build: Build, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    parts = await build(pair(echo, echo if status == "done" else broken))
    run_id = await parts.submit("pair")
    calls = record(parts, monkeypatch)
    assert await parts.perform(run_id) == {"outcome": status}
    assert calls == [
        "settle: running, hop claimed, 1 checkpoints, 0 ends",
        f"discard_checkpoint: {status}, hop settled, 1 checkpoints, 0 ends",
        "terminal event",
        f"drained: {status}, hop settled, 0 checkpoints, 1 ends",
        "closed",
    ]


@pytest.mark.contract("SET-1", "SET-6", "EVT-8")
async def test_s060_a_worker_cancelled_after_its_commit_still_cleans_up_and_tells_once(build: Build) -> None:
    latch = Latch()
    parts = await build(pair(echo, echo))
    run_id = await parts.submit("pair")
    remove = seams.install("settle.committed", latch)
    try:
        task = asyncio.create_task(parts.perform(run_id))
        await latch.arrived()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        assert await parts.standing(run_id) == ("done", "settled")
        latch.release.set()
        assert await cancelled(task) is None
    finally:
        remove()
    assert await parts.standing(run_id) == ("done", "settled")
    assert (await parts.run(run_id))["error_code"] is None
    assert await parts.snapshots(run_id) is None
    assert await parts.ends(run_id) == ["done"]
    assert not parts.bus.is_open(run_id)


@pytest.mark.contract("SET-1")
async def test_a_worker_cancelled_while_its_settlement_waits_for_the_row_settles_all_the_same(build: Build) -> None:
    latch = Latch()

    async def wait(_: Ctx) -> str:
        await latch()
        return "finished"

    parts = await build(solo(wait))
    run_id = await parts.submit()
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    async with parts.held_row(run_id):
        latch.release.set()
        await eventually(lambda: parts.waits_for_lock("lychd ledger slow"))
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
    assert await cancelled(task) is None
    assert await parts.standing(run_id) == ("done", "settled")
    assert (await parts.run(run_id))["output"]["text"] == "finished"
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("SET-10", "SET-6")
async def test_s054_a_worker_that_is_ended_in_mid_graph_settles_failed_and_goes_on_being_cancelled(
    build: Build,
) -> None:
    latch = Latch()

    async def wait(_: Ctx) -> str:
        await latch()
        return ""

    parts = await build(solo(wait))
    run_id = await parts.submit()
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert await cancelled(task) is None
    run = await parts.run(run_id)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert (run["error_code"], run["error_node"]) == ("worker_cancelled", None)
    assert run["error_message"] == "The worker was cancelled while it carried this Run."
    assert await parts.ends(run_id) == ["failed"]


@pytest.mark.contract("SET-3", "SET-4")
@pytest.mark.parametrize("how", ["returns", "raises", "is cancelled"])
async def test_s063_a_late_end_of_an_older_hop_touches_nothing_of_the_next_one(build: Build, how: str) -> None:
    """Lost against a nonterminal Run: that is heard, and nothing else happens."""
    old, new = Latch(), Latch()

    async def body(ctx: Ctx) -> str:
        if ctx.run.hop == 1:
            await new()
            return "ours"
        await old()
        if how == "raises":
            raise ValueError("late")
        return "late"

    parts = await build(pair(echo, body))
    run_id = await parts.submit("pair")
    first = asyncio.create_task(parts.perform(run_id))
    await old.arrived()
    await parts.park_and_return(run_id, checkpoint(run_id, "second", visited=["ours"]))
    second = asyncio.create_task(parts.perform(run_id, 1))
    await new.arrived()

    async def truth() -> Any:
        rows = [await parts.run(run_id), await parts.delivery(run_id, 0), await parts.delivery(run_id, 1)]
        return rows, await parts.snapshots(run_id), await parts.rows("select * from runs_checkpointarchive")

    before = await truth()
    if how == "is cancelled":
        first.cancel()
    old.release.set()
    await asyncio.wait({first})
    error = await cancelled(first) if how == "is cancelled" else first.exception()
    assert isinstance(error, Corrupt) or (how == "is cancelled" and error is None)
    assert await truth() == before
    assert await parts.ends(run_id) == []
    assert parts.bus.is_open(run_id)
    new.release.set()
    assert await second == {"outcome": "done"}
    assert (await parts.run(run_id))["output"]["text"] == "ours"
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("SET-4", "SET-6")
@pytest.mark.parametrize("status", ["done", "failed", "cancelled", "cancelling"])
@pytest.mark.parametrize("fails", [False, True])
async def test_an_end_that_meets_one_that_somebody_else_wrote_is_benign_and_tells_nothing(
    build: Build, status: str, fails: bool
) -> None:
    latch = Latch()

    async def wait(_: Ctx) -> str:
        await latch()
        if fails:
            raise ValueError("late")
        return "late"

    parts = await build(solo(wait))
    run_id = await parts.submit()
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    await parts.rows(
        "update runs_run set status = %s, finished_at = case when %s <> 'cancelling' then now() end,"
        " error_code = case when %s = 'failed' then 'theirs' end,"
        " error_message = case when %s = 'failed' then 'theirs' end where id = %s",
        *[status] * 4,
        run_id,
    )
    before = (await parts.run(run_id), await parts.delivery(run_id))
    latch.release.set()
    assert (await task)["outcome"] == "lost"
    assert (await parts.run(run_id), await parts.delivery(run_id)) == before
    assert await parts.ends(run_id) == []


@pytest.mark.contract("SET-4")
@pytest.mark.parametrize("change", ["queued again", "claimed by another", "gone"])
async def test_an_end_that_is_lost_against_an_unfinished_or_missing_run_is_heard(build: Build, change: str) -> None:
    latch = Latch()

    async def wait(_: Ctx) -> str:
        await latch()
        return "late"

    parts = await build(solo(wait))
    run_id = await parts.submit()
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    if change == "queued again":
        await parts.park_and_return(run_id, None)
    elif change == "claimed by another":
        await parts.rows("update runs_rundelivery set claim_id = gen_random_uuid() where run_id = %s", run_id)
    else:
        await parts.bus.settle(run_id)
        await parts.rows("delete from runs_step where run_id = %s", run_id)
        await parts.rows("delete from runs_rundelivery where run_id = %s", run_id)
        await parts.rows("delete from runs_run where id = %s", run_id)
    latch.release.set()
    with pytest.raises(Corrupt, match=str(run_id)):
        await task


@pytest.mark.contract("SET-4", "SET-1")
@pytest.mark.parametrize("status", ["done", "failed"])
async def test_a_settlement_whose_answer_was_lost_is_ours_all_the_same_and_told_once(
    build: Build, dsn: str, status: str
) -> None:
    async with LossyWire(dsn) as wire:
        parts = await build(solo(echo), solo(broken, "broken"), through=wire.dsn)
        await parts.carried()
        run_id = await parts.submit("solo" if status == "done" else "broken")
        wire.lose_answers("lychd ledger settle")
        assert await parts.perform(run_id) == {"outcome": status}
        assert wire.lost == 1
        assert await parts.standing(run_id) == (status, "settled")
        assert await parts.ends(run_id) == [status]


@pytest.mark.contract("SET-9")
async def test_a_settlement_that_the_database_never_answered_leaves_the_run_to_recovery(build: Build, dsn: str) -> None:
    """No guess: the Run keeps its status, nothing terminal is told, and the worker raises."""
    latch = Latch()

    async def wait(_: Ctx) -> str:
        await latch()
        return "finished"

    async with LossyWire(dsn) as wire:
        parts = await build(solo(wait), through=wire.dsn, patience=0.1)
        run_id = await parts.submit()
        task = asyncio.create_task(parts.perform(run_id))
        await latch.arrived()
        for name in ("lychd ledger settle", "lychd ledger slow"):
            wire.cut(name)
        latch.release.set()
        with pytest.raises(Unknown):
            await task
        assert await parts.standing(run_id) == ("running", "claimed")
        assert await parts.ends(run_id) == []
        for name in ("lychd ledger settle", "lychd ledger slow"):
            wire.mend(name)
        run = await parts.run(run_id)
        claim = (await parts.delivery(run_id))["claim_id"]
        await parts.ledger.run(SETTLE, Settlement(run["id"], 0, claim, "done", output_json='{"text":"finished"}'))
        assert await parts.standing(run_id) == ("done", "settled")


@pytest.mark.contract("SET-5")
@pytest.mark.parametrize("status", ["done", "failed"])
async def test_s062_a_checkpoint_that_cannot_be_deleted_hides_no_end(build: Build, status: str) -> None:
    parts = await build(pair(echo, echo if status == "done" else broken))
    run_id = await parts.submit("pair")
    async with parts.refusing("runs_checkpoint", "tg_op = 'DELETE'"):
        assert await parts.perform(run_id) == {"outcome": status}
        assert await parts.standing(run_id) == (status, "settled")
        assert await parts.snapshots(run_id) is not None
    assert await parts.ends(run_id) == [status]
    assert not parts.bus.is_open(run_id)
    assert parts.moves[-1] == (run_id, status)


@pytest.mark.contract("SET-5", "EVT-9", "EVT-12")
@pytest.mark.parametrize("status", ["done", "failed"])
async def test_s067_a_terminal_event_that_cannot_be_written_changes_no_status_and_drops_the_channel(
    build: Build, status: str
) -> None:
    parts = await build(solo(echo if status == "done" else broken))
    run_id = await parts.submit()
    async with parts.refusing("runs_step", "new.kind = 'done'"):
        assert await parts.perform(run_id) == {"outcome": status}
        assert await parts.standing(run_id) == (status, "settled")
    assert await parts.ends(run_id) == []
    assert parts.bus.head(run_id) is None
    assert await parts.snapshots(run_id) is None


@pytest.mark.contract("SET-5", "EVT-9")
async def test_evidence_that_cannot_be_written_at_all_stops_no_run(build: Build) -> None:
    entries = Entries()
    parts = await build(pair(entries, entries))
    async with parts.refusing("runs_step", "true"):
        run_id = await parts.carried("pair")
    assert await parts.standing(run_id) == ("done", "settled")
    assert entries.nodes == ["first", "second"]


@pytest.mark.contract("SET-1", "SET-5")
async def test_a_settlement_that_the_database_refuses_fails_the_run_and_says_so(build: Build) -> None:
    parts = await build()
    run_id = await parts.submit()
    async with parts.refusing("runs_run", "new.status = 'done'", "the output is not wanted"):
        assert await parts.perform(run_id) == {"outcome": "failed"}
    run = await parts.run(run_id)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert (run["error_code"], run["output"]) == ("refused_by_database", None)
    assert "the output is not wanted" in run["error_message"]
    assert await parts.ends(run_id) == ["failed"]


@pytest.mark.contract("SET-1", "SET-9")
async def test_a_database_that_refuses_every_end_is_heard_and_the_run_stays_as_it_is(build: Build) -> None:
    parts = await build()
    run_id = await parts.submit()
    async with parts.refusing("runs_run", "new.status in ('done', 'failed')"):
        with pytest.raises(psycopg.Error, match="not today"):
            await parts.perform(run_id)
    assert await parts.standing(run_id) == ("running", "claimed")
    assert await parts.ends(run_id) == []


@pytest.mark.contract("SET-1", "SET-3")
async def test_of_many_settlements_of_one_hop_at_once_the_claimants_first_word_stays(build: Build) -> None:
    """Over two connections, so that they are not put in order by one coalescer."""
    latch = Latch()

    async def wait(_: Ctx) -> str:
        await latch()
        return ""

    parts = await build(solo(wait))
    run_id = await parts.submit()
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    claim = (await parts.delivery(run_id))["claim_id"]
    other = Ledger(parts.dsn)
    try:
        asked = [
            Settlement(run_id, 0, claim, "done", output_json='{"text":"1"}'),
            Settlement(run_id, 0, claim, "failed", error_code="x", error_message="x"),
        ] * 5
        async with parts.held_row(run_id):
            calls = [
                asyncio.ensure_future((parts.ledger, other)[n % 2].run(SETTLE, request))
                for n, request in enumerate(asked)
            ]
            await eventually(lambda: parts.waits_for_lock("lychd ledger slow"))
        outcomes = await asyncio.gather(*calls)
    finally:
        await other.close()
    status = (await parts.run(run_id))["status"]
    first = [outcome for outcome in outcomes if not isinstance(outcome, Lost) and not outcome.again]
    assert len(first) == 1
    for request, outcome in zip(asked, outcomes, strict=True):
        if request.status != status:
            assert isinstance(outcome, Lost)
            assert outcome.reason is Reason.TERMINAL
    latch.release.set()
    await asyncio.wait({task})


@pytest.mark.contract("SET-11", "SET-6")
@pytest.mark.parametrize(("fails", "reply"), [(False, {"text": "hello"}), (True, {"error": "node_failed"})])
async def test_the_end_of_a_run_is_the_reply_of_its_turn(build: Build, fails: bool, reply: dict[str, Any]) -> None:
    parts = await build(solo(broken if fails else echo))
    run_id = await parts.submit(session=uuid.uuid4())
    await parts.perform(run_id)
    (turn,) = await parts.rows("select status, reply from runs_sessionturn where run_id = %s", run_id)
    assert turn["status"] == ("failed" if fails else "done")
    assert reply.items() <= turn["reply"].items()


@pytest.mark.contract("SET-12", "SET-6")
async def test_readers_of_a_run_hear_one_end_whichever_way_it_ends(build: Build) -> None:
    parts = await build(solo(echo), solo(broken, "broken"))
    for key, status in (("solo", "done"), ("broken", "failed")):
        run_id = await parts.submit(key)
        reader = parts.bus.subscribe(run_id, None)
        heard: list[Any] = []

        async def read(reader: Any = reader, heard: list[Any] = heard) -> None:
            async with reader:
                heard.extend([event async for event in reader])

        reading = asyncio.create_task(read())
        await parts.perform(run_id)
        async with asyncio.timeout(5):
            await reading
        ends = [event.data["status"] for event in heard if getattr(event, "kind", None) == "done"]
        assert ends == [status]
