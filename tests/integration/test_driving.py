"""The node loop: one task drives the graph and speaks for it; a durable Run checkpoints after each node."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, RootModel

from runs import seams
from runs.errors import NodeFailed
from runs.patterns import Context, Finish, Goto, Pattern, Wait
from tests.support.hops import Entries, checkpoint, pair
from tests.support.vessel_parts import Build, Ctx, Latch, Note, Parts, Report, Tally, cancelled, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]

HOSTILE = ["a\x00b", "\ud800", float("nan"), float("inf"), {"deep": [float("-inf")]}]


async def kinds(parts: Parts, run_id: Any) -> list[tuple[str, Any]]:
    await parts.bus.settle(run_id)
    return [(kind, data.get("phase") or data.get("status")) for _, kind, data in await parts.steps(run_id)]


@pytest.mark.contract("EVT-1")
async def test_a_runs_story_is_told_by_its_ghoul_alone_and_in_order(build: Build) -> None:
    """Admission says that it is queued; publication and a skipped duplicate say nothing."""
    parts = await build(pair(echo, echo))
    run_id = await parts.submit("pair")
    assert await kinds(parts, run_id) == [("status", "queued")]
    await parts.perform(run_id)
    told = [
        ("status", "queued"),
        ("status", "running"),
        ("node", "entered"),
        ("node", "left"),
        ("node", "entered"),
        ("node", "left"),
        ("done", "done"),
    ]
    assert await kinds(parts, run_id) == told
    await parts.perform(run_id)
    assert await kinds(parts, run_id) == told
    assert [seq for seq, _, _ in await parts.steps(run_id)] == list(range(len(told)))


@pytest.mark.contract("EVT-1", "EVT-14")
async def test_what_outlives_its_node_is_not_heard_any_more(build: Build) -> None:
    """A task and a thread that the node left behind: neither speaks into the next node nor after the end."""
    latch, spoken = Latch(), threading.Event()
    left: list[Any] = []

    async def talk(ctx: Ctx) -> None:
        await latch()
        ctx.log("too late")
        ctx.progress(1, 1)
        ctx.fragment("late", {})
        ctx.token("late")
        thread = threading.Thread(target=lambda: (ctx.log("too late from a thread"), spoken.set()))
        thread.start()
        await eventually(spoken.is_set)
        thread.join()

    async def first(ctx: Ctx) -> str:
        ctx.log("in time")
        left.append(asyncio.create_task(talk(ctx)))
        await latch.arrived()
        return ""

    async def second(ctx: Ctx) -> str:
        latch.release.set()
        await left[0]
        await asyncio.sleep(0)
        return ""

    parts = await build(pair(first, second))
    run_id = await parts.carried("pair")
    told = [kind for kind, _ in await kinds(parts, run_id)]
    assert told == ["status", "status", "node", "log", "node", "node", "node", "done"]


@pytest.mark.contract("EVT-6", "EVT-7", "EVT-8")
async def test_s232_tokens_are_heard_and_not_stored_and_all_else_is_stored_under_its_own_number(build: Build) -> None:
    async def body(ctx: Ctx) -> str:
        for n in range(3):
            ctx.token(f"t{n}")
            ctx.log(f"l{n}")
        return "text"

    parts = await build(solo(body))
    run_id = await parts.submit()
    heard: list[Any] = []
    async with parts.bus.subscribe(run_id, None) as reader:
        await parts.perform(run_id)
        async with asyncio.timeout(5):
            heard.extend([event async for event in reader])
    live = [(event.seq, str(event.kind)) for event in heard if hasattr(event, "kind")]
    assert [kind for _, kind in live].count("token") == 3
    assert [seq for seq, _ in live] == list(range(len(live)))
    stored = [(seq, kind) for seq, kind, _ in await parts.steps(run_id)]
    assert stored == [(seq, kind) for seq, kind in live if kind != "token"]


@pytest.mark.contract("BYD-4", "EVT-7")
async def test_a_durable_run_is_checkpointed_before_each_node_it_goes_on_to(build: Build) -> None:
    seen: list[Any] = []
    parts: Parts

    async def look(ctx: Ctx) -> str:
        seen.append(await parts.snapshots(ctx.run.id))
        ctx.state.visited.append(ctx.run.node)
        return ""

    parts = await build(pair(look, look))
    run_id = await parts.carried("pair")
    assert seen[0] is None
    assert seen[1] == checkpoint(run_id, "second", visited=["first"])
    assert await parts.snapshots(run_id) is None


@pytest.mark.contract("BYD-4")
async def test_a_run_that_is_not_durable_writes_no_checkpoint(build: Build) -> None:
    seen: list[Any] = []
    parts: Parts

    async def look(ctx: Ctx) -> str:
        seen.append(await parts.snapshots(ctx.run.id))
        return ""

    parts = await build(pair(look, look, durable=False))
    run_id = await parts.carried("pair")
    assert seen == [None, None]
    assert (await parts.run(run_id))["status"] == "done"


@pytest.mark.contract("BYD-4")
async def test_a_return_continues_with_the_state_and_the_visit_that_were_kept(build: Build) -> None:
    seen: list[Any] = []

    async def body(ctx: Ctx) -> str:
        seen.append((ctx.run.node, ctx.run.visit, ctx.run.hop, ctx.state.visited))
        return ctx.input.text

    parts = await build(pair(echo, body))
    run_id = await parts.submit("pair")
    await parts.park_and_return(run_id, checkpoint(run_id, "second", visit=7, visited=["x"]))
    assert await parts.perform(run_id, 1) == {"outcome": "done"}
    assert seen == [("second", 7, 1, ["x"])]
    assert (await parts.run(run_id))["output"]["text"] == "hello"


@pytest.mark.contract("BYD-4")
async def test_a_checkpoint_that_carries_the_end_settles_the_run_without_a_node(build: Build) -> None:
    entries = Entries()
    parts = await build(solo(entries))
    run_id = await parts.submit()
    await parts.park_and_return(run_id, [{"kind": "end", "state": {}, "result": {"text": "kept", "value": None}}])
    assert await parts.perform(run_id, 1) == {"outcome": "done"}
    assert (await parts.run(run_id))["output"] == {"text": "kept", "value": None}
    assert entries.nodes == []


@pytest.mark.contract("BYD-4", "SET-3")
async def test_a_checkpoint_of_a_hop_that_lost_its_run_is_not_written(build: Build) -> None:
    latch = Latch()
    entries = Entries()

    async def wait(ctx: Ctx) -> str:
        await latch()
        ctx.state.visited.append("stale")
        return ""

    parts = await build(pair(wait, entries))
    run_id = await parts.submit("pair")
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    await parts.park_and_return(run_id, checkpoint(run_id, "second", visited=["ours"]))
    latch.release.set()
    assert (await task)["outcome"] == "lost"
    assert await parts.snapshots(run_id) == checkpoint(run_id, "second", visited=["ours"])
    assert entries.nodes == []


@pytest.mark.contract("SET-2")
@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("where", ["state", "output"])
async def test_a_value_that_cannot_be_stored_fails_the_node_that_returns_it(
    build: Build, where: str, value: Any
) -> None:
    async def state(ctx: Ctx) -> str:
        if where == "state":
            ctx.state.value = value
        return ""

    async def output(_: Ctx) -> Report:
        return Report(value=value)

    parts = await build(pair(state, output))
    run_id = await parts.carried("pair")
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"]) == ("failed", "invalid")
    assert run["error_message"].startswith(f"The {where} ")
    assert run["error_node"] == ("first" if where == "state" else "second")
    assert await parts.ends(run_id) == ["failed"]


@pytest.mark.contract("SET-2")
@pytest.mark.parametrize("where", ["state", "output"])
async def test_a_value_over_the_limit_fails_the_node_and_one_at_the_limit_is_kept(build: Build, where: str) -> None:
    size = 0

    async def state(ctx: Ctx) -> str:
        ctx.state.value = "x" * size if where == "state" else None
        return ""

    async def output(_: Ctx) -> Report:
        return Report(text="x" * size if where == "output" else "")

    parts = await build(pair(state, output), limit=1024)
    frame = len('{"value":"","visited":[]}') if where == "state" else len('{"text":"","value":null}')
    size = 1024 - frame
    run_id = await parts.carried("pair")
    assert (await parts.run(run_id))["status"] == "done"
    size += 1
    run_id = await parts.carried("pair")
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"]) == ("failed", "too_large")
    assert f"The {where} is 1,025 bytes" in run["error_message"]


@pytest.mark.contract("EVT-6")
async def test_messages_that_cannot_be_stored_are_escaped_or_replaced_and_never_fail_the_node(build: Build) -> None:
    async def body(ctx: Ctx) -> str:
        for value in HOSTILE:
            ctx.log(f"{value}", level="info", value=value)
            ctx.token(str(value))
            ctx.fragment("part", value)
            ctx.progress(1, 1, str(value))
        ctx.log("x" * 5000)
        ctx.fragment("large", "x" * 5000)
        return "fine"

    parts = await build(solo(body), limit=4096)
    run_id = await parts.carried()
    assert (await parts.run(run_id))["status"] == "done"
    steps = await parts.steps(run_id)
    logs = [data for _, kind, data in steps if kind == "log"]
    fragments = [data for _, kind, data in steps if kind == "fragment"]
    assert logs[0]["message"] == "a\\u0000b"
    assert logs[0]["fields"] == {"value": "a\\u0000b"}
    assert logs[1]["message"] == "\\ud800"
    assert logs[-1] == {
        "message": "The event is 5,029 bytes as JSON; at most 4,096 bytes are allowed.",
        "level": "warning",
        "refused": True,
    }
    assert [data["data"] for data in fragments] == [None] * (len(HOSTILE) + 1)
    assert all("cannot be stored" in data["refused"] for data in fragments[:-1])
    assert "4,096 bytes are allowed" in fragments[-1]["refused"]
    assert len([kind for _, kind, _ in steps if kind == "progress"]) == len(HOSTILE)


class Rude(Exception):
    def __str__(self) -> str:
        raise ValueError("no text of mine")


@pytest.mark.contract("SET-2", "SET-12")
@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ValueError("no"), "node_failed", "ValueError: no"),
        (ValueError("nul \x00 half \ud800"), "node_failed", "ValueError: nul \\u0000 half \\ud800"),
        (ValueError("x" * 100_000), "node_failed", "ValueError: xxx"),
        (ExceptionGroup("both", [ValueError("a"), OSError("b")]), "node_failed", "ExceptionGroup: both"),
        (SystemExit(2), "node_failed", "SystemExit: 2"),
        (asyncio.CancelledError(), "node_failed", "Node 'only' was cancelled by its own code."),
        (TimeoutError("theirs"), "node_failed", "TimeoutError: theirs"),
        (StopAsyncIteration(), "node_failed", ""),
        (RecursionError("deep"), "node_failed", "RecursionError: deep"),
        (Rude(), "node_failed", "Rude"),
    ],
)
async def test_whatever_a_node_raises_fails_its_run_and_nothing_else(
    build: Build, error: BaseException, code: str, says: str
) -> None:
    """S069"""

    async def body(_: Ctx) -> str:
        raise error

    parts = await build(solo(body))
    run_id = await parts.submit()
    assert await parts.perform(run_id) == {"outcome": "failed"}
    run = await parts.run(run_id)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert (run["error_code"], run["error_node"]) == (code, "only")
    assert says in run["error_message"]
    assert len(run["error_message"]) <= 8000
    assert await parts.ends(run_id) == ["failed"]
    failures = [data for _, _, data in await parts.steps(run_id) if data.get("phase") == "failed"]
    assert len(failures) == 1
    assert "trace" in failures[0]


@pytest.mark.contract("SET-2")
@pytest.mark.parametrize("journaled", [False, True])
async def test_a_thread_that_calls_for_the_exit_ends_its_node_and_not_the_vessel(build: Build, journaled: bool) -> None:
    async def body(ctx: Ctx) -> str:
        await (ctx.step("leave", sys.exit, 3) if journaled else ctx.run_sync(sys.exit, 3))
        return ""

    parts = await build(solo(body), solo(echo, "after"))
    run_id = await parts.carried()
    run = await parts.run(run_id)
    assert (run["status"], run["error_message"]) == ("failed", "SystemExit: 3")
    assert await parts.perform(await parts.submit("after")) == {"outcome": "done"}


@pytest.mark.contract("SET-2")
async def test_an_authors_own_failure_keeps_its_code_in_bounds_and_in_storable_text(build: Build) -> None:
    async def body(ctx: Ctx) -> str:
        raise NodeFailed(f"bad \x00 {'y' * 20_000}", code=f"own_\x00{'z' * 200}")

    parts = await build(solo(body))
    run_id = await parts.carried()
    run = await parts.run(run_id)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert run["error_code"].startswith("own_\\u0000zz")
    assert len(run["error_code"]) == 50
    assert run["error_message"].startswith("bad \\u0000 yyy")
    (end,) = [data for _, kind, data in await parts.steps(run_id) if kind == "done"]
    assert end["error"]["code"] == run["error_code"]


@pytest.mark.contract("SET-2")
async def test_a_node_over_its_time_is_cancelled_and_fails_with_its_name(build: Build) -> None:
    ended: list[str] = []

    async def hang(_: Ctx) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")
        return ""

    parts = await build(solo(hang, timeout=0.02))
    run_id = await parts.submit()
    assert await parts.perform(run_id) == {"outcome": "failed"}
    run = await parts.run(run_id)
    assert (run["error_code"], run["error_node"]) == ("node_timeout", "only")
    assert run["error_message"] == "Node 'only' took longer than 0.02 s."
    assert ended == ["ended"]


class Nap(Wait[Literal["second"]]):
    kind: ClassVar[str] = "nap"

    def request(self) -> dict[str, Any]:
        return {}


@pytest.mark.contract("SET-2")
async def test_a_wait_of_a_kind_that_is_not_here_fails_with_a_sentence(build: Build) -> None:
    pattern = Pattern("naps", input=Note, state=Tally, output=Report)

    @pattern.start
    async def first(ctx: Context[Note, Tally]) -> Nap:
        return Nap(then="second")

    @pattern.node
    async def second(ctx: Context[Note, Tally]) -> Finish[Report]:
        return Finish(Report())

    parts = await build(pattern)
    run_id = await parts.carried("naps")
    run = await parts.run(run_id)
    assert run["status"] == "failed"
    assert "nap" in run["error_message"]


@pytest.mark.contract("SET-2")
async def test_a_way_that_was_not_declared_is_not_taken(build: Build) -> None:
    entries = Entries()
    pattern = Pattern("strays", input=Note, state=Tally, output=Report)

    @pattern.start
    async def first(ctx: Context[Note, Tally]) -> Goto[Literal["second"]]:
        return Finish(Report())  # pyright: ignore[reportReturnType] - what is proved

    @pattern.node
    async def second(ctx: Context[Note, Tally]) -> Finish[Report]:
        await entries(ctx)
        return Finish(Report())

    parts = await build(pattern)
    run_id = await parts.carried("strays")
    assert (await parts.run(run_id))["error_code"] == "undeclared_outcome"
    assert entries.nodes == []


class Maybe(RootModel[int | None]):
    """An input that may be the JSON null."""


class Empty(BaseModel):
    """Nothing is kept."""


@pytest.mark.contract("ADM-3", "CLM-1")
@pytest.mark.parametrize("value", [None, 0, 7])
async def test_any_json_value_may_be_input_and_output_null_as_well(build: Build, value: Any) -> None:
    pattern = Pattern("maybe", input=Maybe, state=Empty, output=Maybe)
    seen: list[Any] = []

    @pattern.start
    async def only(ctx: Context[Maybe, Empty]) -> Finish[Maybe]:
        seen.append(ctx.input.root)
        return Finish(Maybe(ctx.input.root))

    parts = await build(pattern)
    run_id = await parts.carried("maybe", input=value)
    run = await parts.run(run_id)
    assert (run["status"], run["input"], run["output"]) == ("done", value, value)
    assert seen == [value]


@pytest.mark.contract("SET-10")
async def test_a_node_that_swallows_its_cancellation_does_not_make_the_hop_go_on_unheard(build: Build) -> None:
    """The worker was cancelled; the node finished all the same, and that end is settled before the worker leaves."""
    latch = Latch()

    async def deaf(_: Ctx) -> str:
        try:
            await latch()
        except asyncio.CancelledError:
            return "finished"
        return ""

    parts = await build(solo(deaf))
    run_id = await parts.submit()
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    task.cancel()
    assert await task == {"outcome": "done"}
    assert await parts.standing(run_id) == ("done", "settled")
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("SET-10", "CLM-12")
async def test_a_hop_cancelled_between_two_nodes_is_settled(build: Build) -> None:
    latch, entries = Latch(), Entries()
    parts = await build(pair(entries, entries))
    run_id = await parts.submit("pair")
    remove = seams.install("drive.checkpointed", latch)
    try:
        task = asyncio.create_task(parts.perform(run_id))
        await latch.arrived()
        task.cancel()
        assert await cancelled(task) is None
    finally:
        remove()
    run = await parts.run(run_id)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert run["error_code"] == "worker_cancelled"
    assert entries.nodes == ["first"]
    archived = await parts.rows("select snapshots from runs_checkpointarchive where run_id = %s", run_id)
    assert [row["snapshots"][0]["node"] for row in archived] == ["second"]
