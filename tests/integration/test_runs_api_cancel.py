"""Cancelling over REST: who may, what is answered, and that the Run tells the truth at every moment."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from lychd import lifespan
from runs.api import schemas
from runs.broker.probe import Probe
from runs.errors import Unknown
from runs.ledger.cancel import Election, elect
from runs.ledger.ledger import ScriptFactory
from tests.support.stubborn import Stubborn, stubborn
from tests.support.vessel import Door, Stage, patterns, running_vessel
from tests.support.vessels import living, watching
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with running_vessel(vessel_url, monkeypatch) as opened:
        yield opened


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch) -> Stubborn:
    return stubborn(monkeypatch)


def problem(response: httpx2.Response, status: int, code: str) -> Any:
    told = response.json()
    assert (response.status_code, told["code"]) == (status, code), told
    return told


async def working(door: Door) -> uuid.UUID:
    """A Run whose node waits for the test."""
    run = await door.life.submit("talk", {"n": 1})
    await asyncio.wait_for(door.stage.entered.wait(), 10)
    return run


async def cancel(door: Door, run: uuid.UUID, token: str | None = None) -> httpx2.Response:
    async with door.client(token) as client:
        return await client.post(f"/runs/{run}/cancel")


async def look(door: Door, run: uuid.UUID) -> Any:
    async with door.client() as client:
        return (await client.get(f"/runs/{run}")).json()


async def becomes(door: Door, run: uuid.UUID, status: str) -> Any:
    async def reached() -> Any:
        found = await look(door, run)
        return found if found["status"] == status else None

    return await eventually(reached, within=15)


async def steps(door: Door, run: uuid.UUID) -> list[dict[str, Any]]:
    """Stored statuses and the end, once everything is stored."""

    async def over() -> bool:
        return door.vessel.bus.head(run) is None

    await eventually(over)
    found = await door.eyes.rows("select kind, data from runs_step where run_id = %s order by seq", run)
    return [data for kind, data in found if kind in {"status", "done"}]


@pytest.mark.contract("CAN-2", "CAN-4")
async def test_a_running_run_is_202_cancelling_until_its_worker_has_let_go_and_then_cancelled(
    door: Door, authority: Stubborn
) -> None:
    authority.refuses = False
    authority.hold.clear()
    run = await working(door)
    response = await cancel(door, run)
    told = response.json()
    schemas.Run.model_validate(told)
    assert (response.status_code, told["status"], told["cancel"]["by"]) == (202, "cancelling", "tester")
    assert (told["cancel"]["at"][-1], told["containment"], told["finished_at"]) == ("Z", None, None)

    await eventually(lambda: authority.asked)
    assert (await look(door, run))["status"] == "cancelling"
    authority.hold.set()
    ended = await becomes(door, run, "cancelled")
    assert ended["finished_at"] is not None
    assert ended["cancel"] == told["cancel"]
    said = await steps(door, run)
    assert [one["status"] for one in said] == ["queued", "running", "cancelling", "cancelled"]
    assert said[2]["by"] == "tester"


@pytest.mark.contract("CAN-5")
async def test_what_cannot_be_stopped_is_said_on_the_run_and_to_its_readers_and_cancelling_again_goes_on(
    door: Door, authority: Stubborn
) -> None:
    run = await working(door)
    async with door.stream(f"/runs/{run}/events") as sse:
        assert (await cancel(door, run)).status_code == 202

        async def stuck() -> Any:
            return (await look(door, run))["containment"]

        reason = await eventually(stuck, within=15)
        assert reason == "Not contained: consent: ConnectionError: the authority is away."
        while (message := await sse.next()).get("data", {}).get("containment") is None:
            assert message["type"] in {"event", "resync"}
        assert message["data"] == {"status": "cancelling", "hop": 0, "by": "tester", "containment": reason}

        authority.refuses = False
        again = await cancel(door, run)
        assert (again.status_code, again.json()["status"] in {"cancelling", "cancelled"}) == (202, True)
        rest = await sse.rest()
    assert rest[-1] == {"type": "end", "status": "cancelled"}
    assert (await becomes(door, run, "cancelled"))["containment"] is None


@pytest.mark.contract("CAN-11")
async def test_a_run_that_has_ended_is_200_as_it_was(door: Door) -> None:
    run = await door.life.submit("quick", {"n": 1})
    done = await becomes(door, run, "done")
    response = await cancel(door, run)
    assert (response.status_code, response.json()) == (200, done)
    assert done["cancel"] is None


@pytest.mark.contract("CAN-8")
async def test_cancelling_what_is_cancelled_is_200_and_sweeps_again(door: Door, authority: Stubborn) -> None:
    authority.refuses = False
    run = await working(door)
    await cancel(door, run)
    ended = await becomes(door, run, "cancelled")
    await eventually(lambda: not door.vessel.canceller.working)
    swept = authority.asked
    response = await cancel(door, run)
    assert (response.status_code, response.json()) == (200, ended)
    await eventually(lambda: authority.asked == swept + 1)


async def test_only_who_may_cancel_can_and_only_in_the_own_tenant(door: Door) -> None:
    run = await working(door)
    submitter = await door.sigil("submitter", scopes=("runs:submit", "runs:read"))
    foreign = await door.sigil("foreign", tenant="lab")
    assert "runs:cancel" in problem(await cancel(door, run, submitter), 403, "forbidden")["detail"]
    stranger = problem(await cancel(door, run, foreign), 404, "not_found")
    unknown = problem(await cancel(door, uuid.uuid4()), 404, "not_found")
    assert stranger["detail"] == unknown["detail"]
    assert await door.status(run) == "running"
    async with door.client() as client:
        assert (await client.get(f"/runs/{run}/cancel")).status_code == 405
    assert await door.status(run) == "running"


@pytest.mark.contract("CAN-12")
async def test_a_caller_that_leaves_interrupts_nothing(door: Door, authority: Stubborn) -> None:
    authority.refuses = False
    authority.hold.clear()
    run = await working(door)
    await cancel(door, run)
    await eventually(lambda: authority.asked)
    # The request is long over: whoever asked is gone, and the work is nobody's child.
    authority.hold.set()
    await becomes(door, run, "cancelled")


async def test_an_unknown_outcome_is_503_and_says_so(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await working(door)

    async def silent(*_: Any) -> Any:
        raise Unknown

    monkeypatch.setattr(type(door.vessel.ledger), "script", silent)
    problem(await cancel(door, run), 503, "unknown_outcome")
    monkeypatch.undo()
    assert await door.status(run) == "running"
    assert (await cancel(door, run)).status_code == 202
    await becomes(door, run, "cancelled")


async def test_a_vessel_that_does_not_hold_the_database_any_more_says_so_and_not_that_there_is_no_run(
    door: Door,
) -> None:
    run = await working(door)
    boot, other = door.vessel.boot_id, uuid.uuid4()
    await door.eyes.rows(
        "insert into runs_boot (id, host, pid, profile, version, url, started_at, report) "
        "values (%s, 'elsewhere', 1, 'durable', '0', '', now(), '{}')",
        other,
    )
    await door.eyes.rows("update runs_vesselslot set boot_id = %s", other)
    problem(await cancel(door, run), 503, "degraded")
    assert await door.status(run) == "running"
    await door.eyes.rows("update runs_vesselslot set boot_id = %s", boot)


@pytest.mark.contract("CAN-7")
async def test_what_another_surface_elected_is_told_like_our_own_and_ends_with_its_evidence(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Run has no channel any more, as after a restart, when the ledger's notice arrives (ruling 30)."""
    held = asyncio.Event()
    abort = Probe.abort

    async def later(*args: Any) -> Any:
        await held.wait()
        return await abort(*args)

    monkeypatch.setattr(Probe, "abort", later)
    run = await working(door)
    await door.vessel.bus.settle(run)
    door.vessel.bus.discard(run)
    await door.vessel.ledger.script(ScriptFactory(elect, Election(run, "anna")))

    async def told() -> Any:
        return await door.eyes.one(
            "select data from runs_step where run_id = %s and data->>'status' = 'cancelling'", run
        )

    assert (await eventually(told))["by"] == "anna"
    held.set()
    await becomes(door, run, "cancelled")
    assert [one["status"] for one in await steps(door, run)][-2:] == ["cancelling", "cancelled"]


@pytest.mark.contract("SET-9", "BYD-6")
async def test_a_run_that_failed_but_is_not_contained_says_so_until_it_is(door: Door, authority: Stubborn) -> None:
    run = await working(door)
    async with door.stream(f"/runs/{run}/events") as sse:
        door.stage.fail()

        async def uncertain() -> Any:
            found = await look(door, run)
            return found if found["containment"] else None

        found = await eventually(uncertain, within=15)
        assert (found["status"], found["error"], found["cancel"]) == ("running", None, None)
        while (message := await sse.next()).get("data", {}).get("containment") is None:
            assert message["type"] in {"event", "resync"}
        assert message["data"] == {"status": "running", "hop": 0, "containment": found["containment"]}
        authority.refuses = False
        ended = await becomes(door, run, "failed")
        assert (await sse.rest())[-1] == {"type": "end", "status": "failed"}
    assert (ended["containment"], ended["error"]["message"]) == (None, "RuntimeError: as the test asked")


@pytest.mark.contract("CAN-5")
async def test_a_stop_does_not_wait_for_an_authority_for_ever_and_the_next_start_goes_on(
    vessel_url: str, monkeypatch: pytest.MonkeyPatch, authority: Stubborn
) -> None:
    monkeypatch.setattr(lifespan, "CANCEL_STOP_SECONDS", 0.05)
    authority.refuses = False
    authority.hold.clear()
    async with running_vessel(vessel_url, monkeypatch) as first:
        run = await working(first)
        await cancel(first, run)
        await eventually(lambda: authority.asked)
        # That no task is left of it is proved when the Vessel is left.
    authority.hold.set()
    async with living(vessel_url, patterns=patterns(Stage()), monkeypatch=monkeypatch), watching(vessel_url) as eyes:
        assert (await eyes.run(run))[0] == "cancelled"
        told = "select data->>'status' from runs_step where run_id = %s and kind in ('status', 'done') order by seq"
        assert [status for (status,) in await eyes.rows(told, run)] == ["queued", "running", "cancelling", "cancelled"]


async def test_quarantined_runs_can_be_asked_for(door: Door) -> None:
    one, other = [await door.life.submit("quick", {"n": n}) for n in range(2)]
    await becomes(door, one, "done")
    await becomes(door, other, "done")
    await door.eyes.rows("update runs_run set quarantined_at = now(), quarantine_reason = 'odd' where id = %s", one)
    async with door.client() as client:
        there = (await client.get("/runs?quarantined=true")).json()["items"]
        free = (await client.get("/runs?quarantined=false")).json()["items"]
    assert ([run["id"] for run in there], [run["id"] for run in free]) == ([str(one)], [str(other)])
    assert there[0]["quarantine"]["reason"] == "odd"
