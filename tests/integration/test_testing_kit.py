"""The test kit for authors: Runs on a whole Vessel, told as they were, and failures that say what happened."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from lychd.testing.kit import VesselKit, running
from runs.errors import Invalid, PatternNotFound, TooLarge
from runs.models import Run
from runs.patterns import AnyPattern, Context, Finish, Goto, Pattern, RetryPolicy

pytest_plugins = ["tests.support.kit_fixtures"]

released = threading.Event()


class Asked(BaseModel):
    times: int = 1
    way: Literal["on", "fail", "hold"] = "on"


class Kept(BaseModel):
    round: int = 0


class Told(BaseModel):
    rounds: int
    scopes: list[str]


loops = Pattern("loops", input=Asked, state=Kept, output=Told)


@loops.start
async def turn(ctx: Context[Asked, Kept]) -> Goto[Literal["turn", "end"]]:
    ctx.state.round += 1
    ctx.log("turning", round=ctx.state.round)
    ctx.progress(ctx.state.round, ctx.input.times)
    failures = iter([OSError("not yet")] if ctx.state.round == 1 else [])

    def work(number: int) -> int:
        for error in failures:
            raise error
        return number * 10

    kept = await ctx.step("work", work, ctx.state.round, retry=RetryPolicy(attempts=2, first_delay=0), returns=int)
    ctx.fragment("kept", kept)
    return Goto("turn" if ctx.state.round < ctx.input.times else "end")


@loops.node
async def end(ctx: Context[Asked, Kept]) -> Finish[Told]:
    if ctx.input.way == "fail":
        raise RuntimeError("as asked")
    if ctx.input.way == "hold":
        await ctx.step("before", _one)
        await ctx.run_sync(_held, ctx)
    return Finish(Told(rounds=ctx.state.round, scopes=sorted(ctx.run.scopes)))


def _one() -> int:
    return 1


def _held(ctx: Context[Asked, Kept]) -> None:
    while not ctx.cancelled and not released.wait(0.01):
        pass


@pytest.fixture
def vessel_patterns() -> list[AnyPattern]:
    released.clear()
    return [loops]


async def test_a_record_tells_the_way_of_a_run(vessel: VesselKit) -> None:
    run = await vessel.run(loops, Asked(times=3), scopes=["runs:submit"])
    assert run.status == "done"
    assert run.nodes == ["turn", "turn", "turn", "end"]
    assert run.input == {"times": 3, "way": "on"}
    assert run.output == {"rounds": 3, "scopes": ["runs:submit"]}
    assert run.error is None
    assert run.logs == ["turning"] * 3
    assert run.progress[-1] == {"done": 3, "total": 3, "message": None}
    assert run.fragments("kept") == [10, 20, 30]
    assert run.fragments("other") == []
    assert [(step.node, step.name, step.attempts) for step in run.done_steps] == [
        ("turn", "work", 2),
        ("turn", "work", 1),
        ("turn", "work", 1),
    ]
    assert run.journal == ()
    assert run.told("done")[0]["status"] == "done"


async def test_a_run_that_fails_where_success_was_expected_fails_the_test_with_its_steps(vessel: VesselKit) -> None:
    with pytest.raises(AssertionError) as failed:
        await vessel.run("loops", {"way": "fail"})
    message = str(failed.value)
    assert message.startswith("The Run ended as failed, not as done.")
    assert "node_failed in node end: RuntimeError: as asked" in message
    assert '"phase": "retry"' in message
    assert 'raise RuntimeError("as asked")' in message, "the traceback is missing"


async def test_a_failure_that_is_expected_is_a_record(vessel: VesselKit) -> None:
    run = await vessel.run("loops", {"way": "fail"}, ends="failed")
    assert run.error is not None
    assert (run.error.code, run.error.node, run.error.message) == ("node_failed", "end", "RuntimeError: as asked")
    assert run.output is None
    with pytest.raises(AssertionError, match="ended as done, not as failed"):
        await vessel.run("loops", ends="failed")


async def test_a_run_that_does_not_end_in_time_fails_the_test_with_its_steps_so_far(vessel: VesselKit) -> None:
    with pytest.raises(AssertionError, match=r"did not end within 0.5 s(.|\n)*: running\n(.|\n)*turning"):
        await vessel.run("loops", {"way": "hold"}, within=0.5)
    # The Vessel stops with the thread still at work: it is told to, and waited for.


async def test_the_journal_of_a_run_under_way_is_told(
    vessel: VesselKit,
    submit: Callable[..., Awaitable[uuid.UUID]],
    eventually: Callable[..., Awaitable[Any]],
) -> None:
    run_id = await submit(loops, {"way": "hold"})

    async def before() -> Any:
        return next((one for one in (await vessel.record(run_id)).journal if one.name == "before"), None)

    entry = await eventually(before)
    assert (entry.visit, entry.occurrence, entry.result) == (1, 0, 1)
    released.set()
    assert (await vessel.ended(run_id)).status == "done"


async def test_a_refused_submission_raises_what_a_client_would_be_told(vessel: VesselKit) -> None:
    with pytest.raises(Invalid):
        await vessel.submit("loops", {"times": "many"})
    with pytest.raises(PatternNotFound, match="did you mean 'loops'"):
        await vessel.submit("loop")
    with pytest.raises(AssertionError, match="There is no Run"):
        await vessel.record(uuid.uuid4())


async def test_each_test_begins_on_empty_tables(vessel: VesselKit) -> None:
    assert await Run.objects.acount() == 0
    await vessel.run("loops")
    assert await Run.objects.acount() == 1


async def test_each_test_begins_on_empty_tables_whichever_came_first(vessel: VesselKit) -> None:
    await test_each_test_begins_on_empty_tables(vessel)


async def test_nothing_is_left_of_a_vessel_that_was_stopped(transactional_db: None) -> None:
    before = asyncio.all_tasks()
    async with running([loops]) as kit:
        await kit.submit("loops", {"way": "hold"})
    assert asyncio.all_tasks() == before
    assert kit.vessel.threads.live == 0
    async with running([loops]) as another:
        assert (await another.run("loops")).status == "done"


class TestOtherSettings:
    @pytest.fixture
    def vessel_settings(self) -> dict[str, Any]:
        return {"max_payload": 1024}

    async def test_settings_can_be_changed_for_a_test(self, vessel: VesselKit) -> None:
        with pytest.raises(TooLarge):
            await vessel.submit("loops", {"times": 1, "x": "y" * 2000})


class TestInstalledApps:
    @pytest.fixture
    def vessel_patterns(self) -> None:
        return None

    async def test_by_default_the_patterns_of_all_installed_apps_are_there(self, vessel: VesselKit) -> None:
        run = await vessel.run("inventory", {"root": "docs/how-to"}, within=60)
        assert run.nodes == ["scan", "compare", "report"]
        assert run.output["files"] >= 1
