"""`ctx.step`: done once, remembered under a stable key, tried again and limited in time as its author asked."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from runs import seams
from runs.driver.steps import StepTimeout
from runs.errors import Invalid, LychdError, NodeFailed, TooLarge
from runs.patterns import Context, Finish, Goto, Pattern, RetryPolicy
from tests.support.hops import checkpoint, pair
from tests.support.lossy_wire import LossyWire
from tests.support.vessel_parts import Build, Ctx, Latch, Note, Parts, Report, Tally, cancelled, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


class Calls:
    """A step's function that counts; its result tells which call it was."""

    def __init__(self, *errors: Exception) -> None:
        self.made: list[Any] = []
        self._errors = list(errors)

    async def __call__(self, *args: Any) -> dict[str, Any]:
        self.made.append(args)
        if self._errors:
            raise self._errors.pop(0)
        return {"call": len(self.made), "args": list(args)}


class Place(BaseModel):
    name: str
    at: tuple[int, int]


async def failed(parts: Parts, run_id: uuid.UUID) -> tuple[str, str]:
    run = await parts.run(run_id)
    assert run["status"] == "failed"
    return run["error_code"], run["error_message"]


async def transitions(parts: Parts, run_id: uuid.UUID) -> list[dict[str, Any]]:
    await parts.bus.settle(run_id)
    return [data for _, kind, data in await parts.steps(run_id) if kind == "transition"]


@pytest.mark.contract("BYD-4")
async def test_a_step_is_recorded_under_visit_name_and_occurrence_until_the_run_has_ended(build: Build) -> None:
    calls, seen = Calls(), list[Any]()
    parts: Parts

    async def body(ctx: Ctx) -> str:
        seen.append([await ctx.step("fetch", calls, 1), await ctx.step("fetch", calls, 2), await ctx.step("b", calls)])
        seen.append(await parts.journal(ctx.run.id))
        return ""

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert [result["call"] for result in seen[0]] == [1, 2, 3]
    assert [row[:3] for row in seen[1]] == [(0, "fetch", 0), (0, "fetch", 1), (0, "b", 0)]
    assert [row[3]["args"] for row in seen[1]] == [[1], [2], []]
    assert await parts.journal(run_id) == []
    assert [(word["step"], word["phase"], word["attempts"]) for word in await transitions(parts, run_id)] == [
        ("fetch", "recorded", 1),
        ("fetch", "recorded", 1),
        ("b", "recorded", 1),
    ]


@pytest.mark.contract("BYD-4", "CLM-10")
async def test_a_node_that_runs_again_is_given_what_was_recorded_and_goes_on_from_there(build: Build) -> None:
    """The hop that was left behind, cut off in its third step, can record nothing any more."""
    calls, latch, seen, keys = Calls(), Latch(), list[Any](), list[Any]()

    async def late() -> str:
        await latch()
        return "late"

    async def body(ctx: Ctx) -> str:
        keys.append([ctx.effect_key("fetch"), ctx.effect_key("fetch", 1)])
        done = [await ctx.step("fetch", calls, "a"), await ctx.step("fetch", calls, "b")]
        seen.append(done)
        keys.append([ctx.effect_key("fetch", 0), ctx.effect_key("fetch", 1)])
        return await ctx.step("wait", late)

    parts = await build(pair(echo, body))
    run_id = await parts.submit("pair")
    first = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    await parts.park_and_return(run_id, checkpoint(run_id, "second"))
    second = asyncio.create_task(parts.perform(run_id, 1))
    await eventually(lambda: latch.passes == 2)
    latch.release.set()
    assert (await second, (await first)["outcome"]) == ({"outcome": "done"}, "lost")
    assert calls.made == [("a",), ("b",)]
    assert seen[0] == seen[1]
    assert len({tuple(each) for each in keys}) == 1
    assert (await parts.run(run_id))["output"] == {"text": "late", "value": None}
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("BYD-4")
async def test_the_same_name_in_two_nodes_and_in_two_visits_is_never_the_same_step(build: Build) -> None:
    calls = Calls()
    pattern = Pattern("loop", input=Note, state=Tally, output=Report)

    @pattern.start
    async def again(ctx: Context[Note, Tally]) -> Goto[Literal["again"]] | Goto[Literal["last"]]:
        result = await ctx.step("fetch", calls, "same")
        ctx.state.visited.append(str(result["call"]))
        return Goto("again") if len(ctx.state.visited) < 3 else Goto("last")

    @pattern.node
    async def last(ctx: Context[Note, Tally]) -> Finish[Report]:
        result = await ctx.step("fetch", calls, "same")
        return Finish(Report(text="".join([*ctx.state.visited, str(result["call"])])))

    parts = await build(pattern)
    run_id = await parts.carried("loop")
    assert (await parts.run(run_id))["output"]["text"] == "1234"


@pytest.mark.contract("BYD-4")
async def test_a_recorded_step_with_other_arguments_fails_loudly_and_is_not_called(build: Build) -> None:
    calls, given = Calls(), "first"
    latch = Latch()

    async def body(ctx: Ctx) -> str:
        await ctx.step("fetch", calls, given)
        await latch()
        return ""

    parts = await build(pair(echo, body))
    run_id = await parts.submit("pair")
    first = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    await parts.park_and_return(run_id, checkpoint(run_id, "second"))
    given = "second"
    assert await parts.perform(run_id, 1) == {"outcome": "failed"}
    code, message = await failed(parts, run_id)
    assert code == "step_mismatch"
    assert "'fetch'" in message
    assert calls.made == [("first",)]
    latch.release.set()
    await first


@pytest.mark.contract("BYD-4")
async def test_a_record_that_does_not_fit_its_type_any_more_fails_the_node(build: Build) -> None:
    latch, kind = Latch(), list[type[Any]]([dict])

    async def body(ctx: Ctx) -> str:
        await ctx.step("fetch", Calls(), returns=kind[0])
        await latch()
        return ""

    parts = await build(pair(echo, body))
    run_id = await parts.submit("pair")
    first = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    await parts.park_and_return(run_id, checkpoint(run_id, "second"))
    kind[0] = Place
    assert await parts.perform(run_id, 1) == {"outcome": "failed"}
    assert (await failed(parts, run_id))[0] == "invalid"
    latch.release.set()
    await first


@pytest.mark.contract("BYD-4")
async def test_what_a_step_returns_is_what_its_record_reads_as(build: Build) -> None:
    """Live and replayed results are of one type: the annotation's, or what `returns` names."""
    seen: list[Any] = []

    async def typed() -> Place:
        return Place(name="x", at=(1, 2))

    def plain(n: int) -> set[int]:
        return {n}

    async def body(ctx: Ctx) -> str:
        seen.append(await ctx.step("typed", typed))
        seen.append(await ctx.step("set", plain, 3))
        seen.append(await ctx.step("partial", partial(plain, 4)))
        seen.append(await ctx.step("named", partial(plain, 5), returns=set[int]))  # pyright: ignore[reportArgumentType]
        seen.append(await ctx.step("lambda", lambda: typed()))  # noqa: PLW0108 - it is what is proved
        seen.append(await ctx.step("none", lambda: None))
        return ""

    parts = await build(solo(body))
    await parts.carried()
    place = Place(name="x", at=(1, 2))
    assert seen == [place, {3}, [4], {5}, {"name": "x", "at": [1, 2]}, None]


@pytest.mark.contract("BYD-4")
async def test_a_step_that_returns_nothing_is_recorded_like_any_other(build: Build) -> None:
    calls, latch = list[int](), Latch()

    async def effect() -> None:
        calls.append(1)

    async def body(ctx: Ctx) -> str:
        assert await ctx.step("effect", effect) is None
        await latch()
        return ""

    parts = await build(pair(echo, body))
    run_id = await parts.submit("pair")
    first = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    assert await parts.journal(run_id) == [(1, "effect", 0, None)]
    await parts.park_and_return(run_id, checkpoint(run_id, "second"))
    second = asyncio.create_task(parts.perform(run_id, 1))
    await eventually(lambda: latch.passes == 2)
    first.cancel()
    await asyncio.wait({first})
    latch.release.set()
    assert await second == {"outcome": "done"}
    assert calls == [1]


@pytest.mark.contract("BYD-4")
async def test_steps_that_run_at_the_same_time_are_each_recorded_once(build: Build) -> None:
    calls = Calls()
    results: list[Any] = []

    async def body(ctx: Ctx) -> str:
        results.extend(await asyncio.gather(*(ctx.step("fetch", calls, n) for n in range(20))))
        return ""

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert (await parts.run(run_id))["status"] == "done"
    assert sorted(result["args"][0] for result in results) == list(range(20))
    assert [result["args"] for result in results] == [[n] for n in range(20)]


@pytest.mark.contract("BYD-4")
async def test_a_step_is_tried_again_on_the_errors_that_its_policy_names(build: Build) -> None:
    calls = Calls(ConnectionError("reset\x00"), OSError("again"))
    policy = RetryPolicy(attempts=3, first_delay=0, on=[OSError])

    async def body(ctx: Ctx) -> str:
        return str((await ctx.step("fetch", calls, 7, retry=policy))["call"])

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert (await parts.run(run_id))["output"]["text"] == "3"
    assert calls.made == [(7,)] * 3
    words = await transitions(parts, run_id)
    assert [(word["phase"], word.get("attempt"), word.get("attempts")) for word in words] == [
        ("retry", 1, None),
        ("retry", 2, None),
        ("recorded", None, 3),
    ]
    assert words[0]["error"] == "ConnectionError: reset\\u0000"


@pytest.mark.contract("BYD-4")
@pytest.mark.parametrize(
    ("errors", "policy", "made"),
    [
        ([ValueError("no")], RetryPolicy(attempts=3, first_delay=0, on=[OSError]), 1),
        ([ValueError("no")] * 3, RetryPolicy(attempts=2, first_delay=0), 2),
        ([OSError("x"), ValueError("no")], RetryPolicy(attempts=5, first_delay=0, on=[OSError]), 2),
        ([ValueError("no")], None, 1),
    ],
)
async def test_a_step_that_may_not_be_tried_again_fails_with_its_own_error(
    build: Build, errors: list[Exception], policy: RetryPolicy | None, made: int
) -> None:
    calls = Calls(*errors)
    caught: list[Exception] = []

    async def body(ctx: Ctx) -> str:
        try:
            await (ctx.step("fetch", calls) if policy is None else ctx.step("fetch", calls, retry=policy))
        except ValueError as error:
            caught.append(error)
            raise
        return ""

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert await failed(parts, run_id) == ("node_failed", "ValueError: no")
    assert len(calls.made) == made
    assert len(caught) == 1


@pytest.mark.contract("BYD-4")
async def test_a_node_may_catch_a_steps_error_and_the_next_of_that_name_is_another_step(build: Build) -> None:
    calls = Calls(ValueError("no"))

    async def body(ctx: Ctx) -> str:
        try:
            await ctx.step("fetch", calls)
        except ValueError:
            pass
        return str((await ctx.step("fetch", calls))["call"])

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert (await parts.run(run_id))["output"]["text"] == "2"


@pytest.mark.contract("BYD-4")
@pytest.mark.parametrize("limit", [0.02, timedelta(milliseconds=20)])
async def test_each_attempt_has_its_time_limit_and_a_late_one_is_a_timeout_that_may_be_retried(
    build: Build, limit: Any
) -> None:
    ended: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async def body(ctx: Ctx) -> str:
        with pytest.raises(TimeoutError) as late:
            await ctx.step("hang", hang, timeout=limit, retry=RetryPolicy(attempts=3, first_delay=0, on=[TimeoutError]))
        assert isinstance(late.value, StepTimeout)
        await ctx.step("hang", hang, timeout=limit)
        return ""

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert await failed(parts, run_id) == ("step_timeout", "Step 'hang' took longer than 0.02 s.")
    assert ended == ["ended"] * 4


@pytest.mark.contract("BYD-4")
async def test_a_timeout_of_the_functions_own_is_its_own_error(build: Build) -> None:
    async def body(ctx: Ctx) -> str:
        with pytest.raises(TimeoutError) as own:
            await ctx.step("fetch", Calls(TimeoutError("theirs")), timeout=30)
        return type(own.value).__name__

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert (await parts.run(run_id))["output"]["text"] == "TimeoutError"


@pytest.mark.contract("BYD-4")
async def test_a_thread_over_its_time_is_waited_for_not_told_to_stop_and_then_reported_late(build: Build) -> None:
    begun, go = threading.Event(), threading.Event()
    told: list[bool] = []
    parts: Parts

    def work(ctx: Ctx) -> None:
        begun.set()
        go.wait(10)
        told.append(ctx.cancelled)

    async def body(ctx: Ctx) -> str:
        asyncio.get_running_loop().call_later(0.1, go.set)
        with pytest.raises(StepTimeout):
            await ctx.step("work", partial(work, ctx), timeout=0.01)
        assert parts.threads.live == 0
        return str(ctx.cancelled)

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert (await parts.run(run_id))["output"]["text"] == "False"
    assert told == [False]


@pytest.mark.contract("BYD-4", "SET-10")
@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_a_cancelled_hop_tells_its_thread_and_waits_for_it_however_often_it_is_cancelled(
    build: Build, timeout: float | None
) -> None:
    begun, told, leave = threading.Event(), threading.Event(), threading.Event()

    def work(stopped: Callable[[], bool]) -> str:
        begun.set()
        while not stopped():
            leave.wait(0.005)
        told.set()
        leave.wait(10)
        return "too late"

    async def body(ctx: Ctx) -> str:
        return await ctx.step("work", partial(work, lambda: ctx.cancelled), timeout=timeout)

    parts = await build(solo(body))
    run_id = await parts.submit()
    task = asyncio.create_task(parts.perform(run_id))
    await eventually(begun.is_set)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    await eventually(told.is_set)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    assert parts.threads.live == 1
    assert (await parts.run(run_id))["status"] == "running"
    leave.set()
    assert await cancelled(task) is None
    assert parts.threads.live == 0
    assert (await failed(parts, run_id))[0] == "worker_cancelled"
    assert await parts.journal(run_id) == []


@pytest.mark.contract("BYD-4")
async def test_a_cancelled_step_that_had_not_finished_records_nothing(build: Build) -> None:
    latch = Latch()

    async def body(ctx: Ctx) -> str:
        await ctx.step("before", Calls())
        await ctx.step("wait", latch)
        return ""

    parts = await build(solo(body))
    run_id = await parts.submit()
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    assert [row[1] for row in await parts.journal(run_id)] == ["before"]
    async with parts.refusing("runs_checkpoint", "true"), parts.refusing("runs_journalentry", "tg_op = 'DELETE'"):
        task.cancel()
        assert await cancelled(task) is None
        assert [row[1] for row in await parts.journal(run_id)] == ["before"]
    assert (await failed(parts, run_id))[0] == "worker_cancelled"


@pytest.mark.contract("BYD-4")
@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ("x" * 3000, TooLarge, "step result is 3,002 bytes"),
        ("a\x00b", Invalid, "step result cannot be stored"),
        ("\ud800", Invalid, "step result cannot be stored"),
        (float("nan"), Invalid, "step result cannot be stored"),
        ({"deep": [float("inf")]}, Invalid, "step result cannot be stored"),
        (object(), Invalid, "step result cannot be written as JSON"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_node_clearly_and_is_not_tried_again(
    build: Build, value: Any, kind: type[LychdError], says: str
) -> None:
    calls = 0

    async def make() -> Any:
        nonlocal calls
        calls += 1
        return value

    async def body(ctx: Ctx) -> str:
        with pytest.raises(kind, match=says):
            await ctx.step("make", make, retry=RetryPolicy(attempts=5, first_delay=0))
        assert await parts.journal(ctx.run.id) == []
        await ctx.step("make", make)
        return ""

    parts = await build(solo(body), limit=2048)
    run_id = await parts.carried()
    assert says in (await failed(parts, run_id))[1]
    assert calls == 2


@pytest.mark.contract("BYD-4")
async def test_a_result_of_exactly_the_limit_is_recorded(build: Build) -> None:
    async def body(ctx: Ctx) -> str:
        return str(len(await ctx.step("make", lambda: "x" * 2046)))

    parts = await build(solo(body), limit=2048)
    run_id = await parts.carried()
    assert (await parts.run(run_id))["output"]["text"] == "2046"


@pytest.mark.contract("BYD-4")
@pytest.mark.parametrize("name", ["", "x" * 101])
async def test_a_step_needs_a_name_of_at_most_a_hundred_characters(build: Build, name: str) -> None:
    calls = Calls()

    async def body(ctx: Ctx) -> str:
        await ctx.step(name, calls)
        return ""

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert (await failed(parts, run_id))[0] == "invalid"
    assert calls.made == []


@pytest.mark.contract("BYD-4")
@pytest.mark.parametrize("argument", [object(), float("nan"), "\ud800"])
async def test_arguments_are_part_of_the_identity_and_must_be_json(build: Build, argument: Any) -> None:
    calls = Calls()

    async def body(ctx: Ctx) -> str:
        await ctx.step("fetch", calls, argument)
        return ""

    parts = await build(solo(body))
    run_id = await parts.carried()
    assert (await failed(parts, run_id))[0] == "invalid"
    assert calls.made == []


@pytest.mark.contract("BYD-4", "CLM-12")
async def test_a_record_whose_answer_was_lost_is_read_back_and_the_function_not_called_again(
    build: Build, dsn: str
) -> None:
    calls = Calls()
    async with LossyWire(dsn) as wire:

        async def body(ctx: Ctx) -> str:
            await ctx.step("warm", calls)
            wire.lose_answers("lychd ledger journal")
            result = await ctx.step("fetch", calls)
            return str((result["call"], len(await parts.journal(ctx.run.id))))

        parts = await build(solo(body), through=wire.dsn)
        run_id = await parts.carried()
        assert wire.lost == 1
        assert (await parts.run(run_id))["output"]["text"] == "(2, 2)"


@pytest.mark.contract("BYD-4", "SET-3")
async def test_a_hop_that_lost_its_run_in_a_step_stops_there_and_writes_nothing_more(build: Build) -> None:
    latch, after = Latch(), list[str]()

    async def body(ctx: Ctx) -> str:
        try:
            await ctx.step("wait", latch)
        except NodeFailed:
            after.append("told")
            raise
        after.append("went on")
        return ""

    parts = await build(pair(echo, body))
    run_id = await parts.submit("pair")
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    await parts.park_and_return(run_id, checkpoint(run_id, "second"))
    before = (await parts.run(run_id), await parts.delivery(run_id, 1))
    latch.release.set()
    assert (await task)["outcome"] == "lost"
    assert after == ["told"]
    assert (await parts.run(run_id), await parts.delivery(run_id, 1)) == before
    assert await parts.journal(run_id) == []
    assert await parts.ends(run_id) == []


@pytest.mark.contract("BYD-4")
async def test_a_crash_between_two_nodes_calls_no_step_of_the_first_again(build: Build) -> None:
    """The checkpoint is after the first node: its steps are behind it, the second node's steps are its own."""
    calls, latch = Calls(), Latch()

    async def body(ctx: Ctx) -> str:
        return str((await ctx.step("fetch", calls, ctx.run.node))["call"])

    parts = await build(pair(body, body))
    run_id = await parts.submit("pair")
    remove = seams.install("drive.checkpointed", latch)
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    remove()
    snapshots = await parts.snapshots(run_id)
    await parts.park_and_return(run_id, snapshots)
    assert await parts.perform(run_id, 1) == {"outcome": "done"}
    assert calls.made == [("first",), ("second",)]
    task.cancel()
    await asyncio.wait({task})
