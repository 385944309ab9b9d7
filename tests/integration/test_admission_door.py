"""The door of admissions: what is written, what is refused before anything is written, and the bounds."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from runs import ids
from runs.engine import HopRef
from runs.errors import Forbidden, Invalid, LychdError, NotAdmitting, PatternNotFound, TooLarge, TooMany
from runs.patterns import Manifest
from runs.routing import QUEUES, Router, Rule
from tests.support.vessel_parts import MIB, Build, Parts, a_caller, asks, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


@pytest.mark.contract("ADM-1", "ADM-2", "ADM-3", "ADM-4", "ADM-13", "ADM-41", "CLM-1", "CLM-13", "CLM-14")
async def test_a_submission_becomes_a_queued_run_one_published_hop_and_one_job(parts: Parts) -> None:
    """S001"""
    caller = a_caller(sources=frozenset({"bridge"}), scopes=frozenset({"runs:submit", "runs:read"}))
    submitted = await parts.engine.submit(caller, asks(source="bridge"))
    run = await parts.run(submitted.run_id)
    assert not submitted.replayed
    assert submitted.run_id.version == 7
    assert (run["status"], run["queue_name"], run["priority"], run["enqueue_seq"]) == ("queued", "runs", 70, 0)
    assert (run["source"], run["surface"], run["tenant"], run["road"]) == ("bridge", "rest", "default", "vessel")
    assert (run["sigil_name"], run["scopes"]) == ("tester", ["runs:read", "runs:submit"])
    assert run["intent"]["priority"] is None
    assert run["intent"]["source"] == "bridge"
    assert Manifest.from_json(run["manifest"]).digest == run["pattern_digest"]
    delivery = await parts.delivery(submitted.run_id)
    assert (delivery["state"], delivery["queue_name"], delivery["priority"]) == ("published", "runs", 70)
    assert (delivery["publish_attempts"], delivery["resume"], delivery["last_error"]) == (1, False, None)
    jobs = await parts.jobs()
    assert list(jobs) == [f"run:{submitted.run_id}:0"]
    (job,) = jobs.values()
    assert (job["priority"], job["retries"], job["timeout"], job["heartbeat"]) == (30, 0, 0, 120)
    assert job["kwargs"] == {"run_id": str(submitted.run_id), "seq": 0}


@pytest.mark.contract("ADM-40", "ADM-41")
async def test_the_more_urgent_source_stands_before_the_other_and_rows_keep_our_numbers(parts: Parts) -> None:
    """S002"""
    later = await parts.submit()
    caller = a_caller(sources=frozenset({"bridge"}))
    sooner = (await parts.engine.submit(caller, asks(source="bridge"))).run_id
    jobs = await parts.jobs()
    assert (jobs[f"run:{sooner}:0"]["priority"], jobs[f"run:{later}:0"]["priority"]) == (30, 50)
    assert ((await parts.run(sooner))["priority"], (await parts.run(later))["priority"]) == (70, 50)
    order: list[uuid.UUID] = []

    async with parts.lanes(runs=1):
        await eventually(lambda: len(parts.moves) == 4)
    order = [run_id for run_id, status in parts.moves if status == "running"]
    assert order == [sooner, later]


@pytest.mark.contract("ADM-2")
async def test_rules_choose_the_lane_and_what_was_chosen_is_stored(build: Build) -> None:
    parts = await build(router=Router([Rule("rites", 20, pattern="solo")], QUEUES))
    run_id = await parts.submit()
    assert (await parts.run(run_id))["queue_name"] == "rites"
    assert (await parts.delivery(run_id))["queue_name"] == "rites"
    assert (await parts.jobs())[f"run:{run_id}:0"]["priority"] == 80


BAD: dict[str, tuple[dict[str, Any], type[LychdError]]] = {
    "priority 101": ({"priority": 101}, Invalid),
    "priority -1": ({"priority": -1}, Invalid),
    "priority true": ({"priority": True}, Invalid),
    "priority of a float": ({"priority": 3.5}, Invalid),
    "priority of text": ({"priority": "5"}, Invalid),
    "unknown pattern": ({"pattern": "solx"}, PatternNotFound),
    "pattern with NUL": ({"pattern": "so\0lo"}, Invalid),
    "input that does not fit": ({"input": {"text": 7}}, Invalid),
    "input of another kind": ({"input": [1]}, Invalid),
    "input with NUL": ({"input": {"text": "a\0b"}}, Invalid),
    "input with half a surrogate pair": ({"input": {"text": "\ud800"}}, Invalid),
    "input with NaN": ({"input": {"text": "", "number": float("nan")}}, Invalid),
    "input with Infinity": ({"input": {"text": "", "number": float("inf")}}, Invalid),
    "input over 1 MiB": ({"input": {"text": "x" * (MIB + 1)}}, TooLarge),
    "an empty key": ({"key": ""}, Invalid),
    "a key that is too long": ({"key": "k" * 201}, Invalid),
    "a key with a line break": ({"key": "a\nb"}, Invalid),
    "a fence without a session": ({"fence_session": True}, Invalid),
    "a source that the Sigil may not name": ({"source": "bridge"}, Forbidden),
    "a source with NUL": ({"source": "\0"}, Invalid),
}


@pytest.mark.contract("ADM-40")
@pytest.mark.parametrize("name", BAD)
async def test_a_bad_request_is_refused_with_a_sentence_before_any_row(parts: Parts, name: str) -> None:
    """S003 and the limits"""
    changes, error = BAD[name]
    pattern = changes.pop("pattern", "solo") if "pattern" in changes else "solo"
    with pytest.raises(error) as refused:
        await parts.engine.submit(a_caller(), asks(pattern, **changes))
    assert refused.value.detail.endswith((".", "?"))
    assert "\0" not in refused.value.detail
    assert await parts.runs_stored() == 0
    assert not await parts.jobs()
    assert (parts.limits.queued, sum(parts.limits.live.values())) == (0, 0)


async def test_deep_nesting_is_refused_and_not_followed(parts: Parts) -> None:
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(Invalid, match="nested"):
        await parts.engine.submit(a_caller(), asks(input={"text": deep}))
    assert await parts.runs_stored() == 0


@pytest.mark.parametrize("size", [MIB - 30, MIB])
async def test_an_input_up_to_its_limit_is_admitted(build: Build, size: int) -> None:
    parts = await build()
    text = "x" * (size - len('{"number":0,"text":""}'))
    run_id = await parts.submit(input={"text": text, "number": 0})
    assert len((await parts.run(run_id))["input"]["text"]) == len(text)


@pytest.mark.contract("ADM-3")
async def test_an_id_in_the_input_is_never_the_runs_id(build: Build) -> None:
    """S004: the ledger mints; there is no way for a caller to name an id."""
    parts = await build()
    mine = ids.mint()
    run_id = await parts.submit(input={"text": str(mine)})
    assert run_id != mine
    assert (await parts.run(run_id))["input"]["text"] == str(mine)


async def test_nothing_is_admitted_while_the_vessel_does_not_admit(parts: Parts) -> None:
    parts.engine.admitting = False
    with pytest.raises(NotAdmitting):
        await parts.submit()
    assert await parts.runs_stored() == 0


async def test_a_vessel_that_lost_the_database_to_another_admits_nothing(build: Build) -> None:
    """Ruling 13: the slot names the boot that may write."""
    old = await build()
    new = await build()
    with pytest.raises(NotAdmitting):
        await old.submit()
    with pytest.raises(NotAdmitting):
        await old.submit(session=uuid.uuid4())
    assert await new.runs_stored() == 0
    assert old.limits.queued == 0
    run_id = await new.submit()
    assert (await old.perform(run_id))["outcome"] == "skipped"
    assert await new.standing(run_id) == ("queued", "published")


async def test_too_many_queued_runs_are_answered_with_a_time_to_come_back(build: Build) -> None:
    """Ruling 21"""
    parts = await build(max_queued=2)
    first = await parts.submit()
    await parts.submit()
    with pytest.raises(TooMany) as refused:
        await parts.submit()
    assert refused.value.status == 429
    assert refused.value.retry_after > 0
    assert await parts.runs_stored() == 2
    await parts.perform(first)
    await parts.submit()


async def test_a_tenants_unfinished_runs_are_bounded_and_hold_up_no_other_tenant(build: Build) -> None:
    """Ruling 21"""
    parts = await build(max_live=1)
    first = await parts.submit()
    with pytest.raises(TooMany, match="tenant"):
        await parts.submit()
    await parts.engine.submit(a_caller(tenant="other"), asks())
    await parts.perform(first)
    await parts.submit()


async def test_a_refused_submission_takes_no_place(build: Build) -> None:
    """Ruling 21: neither a replay, nor a fence, nor a failed retention leaves a count behind."""
    parts = await build(max_queued=2)

    async def fails(_: uuid.UUID) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await parts.engine.submit(a_caller(), asks(), fails)
    assert (parts.limits.queued, parts.limits.live["default"]) == (0, 0)
    session = uuid.uuid4()
    await parts.submit(key="k", session=session, fence_session=True)
    for _ in range(5):
        await parts.submit(key="k", session=session, fence_session=True)
        with pytest.raises(LychdError):
            await parts.submit(session=session, fence_session=True)
    assert (parts.limits.queued, parts.limits.live["default"]) == (1, 1)


async def test_many_submissions_at_once_are_each_their_own_run(parts: Parts) -> None:
    """Ruling 1: one statement carries many, and each has its own outcome."""
    found = await asyncio.gather(*(parts.submit(input={"text": str(n)}) for n in range(100)))
    assert len(set(found)) == 100
    stored = await parts.rows(
        "select r.id, r.input, d.state from runs_run r join runs_rundelivery d on d.run_id = r.id"
    )
    assert {row["id"]: row["input"]["text"] for row in stored} == {run_id: str(n) for n, run_id in enumerate(found)}
    assert {row["state"] for row in stored} == {"published"}
    assert len(await parts.jobs()) == 100
    assert next(use.statements for use in parts.ledger.uses() if use.name == "admit") < 50


@pytest.mark.contract("ADM-42")
async def test_a_hot_run_waits_for_the_cold_one_that_runs(build: Build) -> None:
    """S235"""
    go, entered = asyncio.Event(), asyncio.Event()

    async def waits(ctx: Any) -> str:
        if ctx.input.text == "cold":
            entered.set()
            await go.wait()
        return ctx.input.text

    parts = await build(solo(waits))
    async with parts.lanes(runs=1):
        cold = await parts.submit(input={"text": "cold"}, priority=20)
        await asyncio.wait_for(entered.wait(), 5)
        hot = await parts.submit(input={"text": "hot"}, priority=100)
        assert await parts.standing(hot) == ("queued", "published")
        assert await parts.standing(cold) == ("running", "claimed")
        go.set()
        await eventually(lambda: len(parts.moves) == 4)
    assert [run_id for run_id, status in parts.moves if status == "done"] == [cold, hot]


@pytest.mark.contract("ADM-16")
async def test_a_held_or_absent_hop_cannot_be_published_and_a_taken_one_is_left_alone(parts: Parts) -> None:
    kept = asyncio.Event()

    async def keep(_: uuid.UUID) -> None:
        await kept.wait()

    task = asyncio.create_task(parts.engine.submit(a_caller(), asks(), keep))
    run_id = await eventually(lambda: _only(parts))
    with pytest.raises(LychdError, match="held"):
        await parts.engine.publish(HopRef(run_id, 0, "runs", 50))
    with pytest.raises(LychdError):
        await parts.engine.publish(HopRef(run_id, 1, "runs", 50))
    with pytest.raises(LychdError):
        await parts.engine.publish(HopRef(uuid.uuid4(), 0, "runs", 50))
    kept.set()
    await task
    await parts.perform(run_id)
    before = await parts.delivery(run_id)
    await parts.engine.publish(HopRef(run_id, 0, "runs", 50))
    assert await parts.delivery(run_id) == before


async def _only(parts: Parts) -> uuid.UUID | None:
    found = await parts.rows("select id from runs_run")
    return found[0]["id"] if found else None


async def test_an_author_whose_validator_breaks_refuses_the_input_and_not_the_vessel(build: Build) -> None:
    from pydantic import BaseModel, field_validator

    from runs.patterns import Context, Finish, Pattern

    class Odd(BaseModel):
        text: str = ""

        @field_validator("text")
        @classmethod
        def _breaks(cls, value: str) -> str:
            raise KeyError(value)

    pattern = Pattern("odd", input=Odd, state=Odd, output=Odd)

    @pattern.start
    async def only(ctx: Context[Odd, Odd]) -> Finish[Odd]:
        return Finish(ctx.input)

    del only
    parts = await build(pattern, solo(echo))
    with pytest.raises(Invalid, match="KeyError"):
        await parts.submit("odd")
    assert await parts.runs_stored() == 0
    assert parts.limits.queued == 0
