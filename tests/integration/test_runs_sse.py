"""The event stream over HTTP: what comes, in which order, when it ends, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runs import sse
from runs.errors import Degraded
from runs.events import cursor as cursors
from runs.stream import run as stream_module
from tests.support.vessel import Backpressure, Door, Sse, running_vessel
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with running_vessel(vessel_url, monkeypatch) as opened:
        yield opened


async def begun(door: Door, value: Any = None) -> uuid.UUID:
    run = await door.life.submit("talk", value)
    async with asyncio.timeout(5):
        await door.stage.entered.wait()
    return run


async def over(door: Door, run: uuid.UUID) -> None:
    """The Run has ended, its evidence is stored and its channel gone."""

    async def done() -> bool:
        return await door.status(run) in {"done", "failed"} and door.vessel.bus.head(run) is None

    await eventually(done)


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [f"{one['type']} {one['kind']}" if one["type"] == "event" else one["type"] for one in messages]


def lines(messages: list[dict[str, Any]]) -> list[str]:
    return [one["data"]["message"] for one in messages if one.get("kind") == "log"]


def quiet_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Streams look and speak after so much silence."""
    defaults = dict(stream_module.RunStream.__init__.__kwdefaults__ or {})
    monkeypatch.setattr(stream_module.RunStream.__init__, "__kwdefaults__", {**defaults, "silence": seconds})


async def until_line(reader: Sse, text: str) -> dict[str, Any]:
    while (message := await reader.next()).get("kind") != "log" or message["data"]["message"] != text:
        pass
    return message


@pytest.mark.contract("EVT-19")
async def test_a_live_run_is_told_from_its_first_event_to_its_end(door: Door) -> None:
    run = await begun(door)
    door.stage.log("a", "b")
    async with door.stream(f"/runs/{run}/events") as reader:
        await until_line(reader, "b")
        door.stage.tokens(2)
        door.stage.finish()
        await reader.rest()
    assert reader.status == 200
    assert reader.headers["content-type"].startswith("text/event-stream")
    assert reader.headers["cache-control"] == "no-store"
    told = kinds(reader.messages)
    assert told[0] == "event status"
    assert told[-2:] == ["event done", "end"]
    assert told.count("event token") == 2
    assert [one["seq"] for one in reader.messages[:-1]] == list(range(len(reader.messages) - 1))
    assert reader.messages[-1] == {"type": "end", "status": "done"}
    for frame, message in zip([one for one in reader.frames if "data" in one], reader.messages, strict=True):
        assert frame["event"] == message["type"]
        assert frame.get("id") == message.get("cursor")


@pytest.mark.contract("EVT-19", "EVT-20")
async def test_a_terminal_run_is_one_resync_and_the_end(door: Door) -> None:
    """S233."""
    run = await door.life.submit("quick", {"n": 1})
    await over(door, run)
    for header in ({}, {"last_event_id": "0000-3"}):
        async with door.stream(f"/runs/{run}/events", **header) as reader:
            found = await reader.rest()
        assert kinds(found) == ["resync", "end"]
        snapshot = found[0]["snapshot"]
        assert (snapshot["run"]["status"], snapshot["run"]["output"]) == ("done", {"n": 2})
        assert (snapshot["consents"], snapshot["jobs"]) == ([], [])
        assert snapshot["head"] == cursors.parse(found[0]["cursor"]).seq
    async with door.client() as client:
        steps = (await client.get(f"/runs/{run}/steps")).json()["items"]
    assert found[0]["cursor"] == steps[-1]["cursor"]
    assert door.vessel.bus.stats().channels == 0


@pytest.mark.contract("EVT-20")
async def test_durable_truth_ends_the_stream_although_the_channel_lags(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_for(monkeypatch, 0.05)
    run = await begun(door)
    async with door.stream(f"/runs/{run}/events") as reader:
        await reader.next()
        # Somebody else ended it, and nothing was emitted here.
        await door.eyes.rows("update runs_run set status = 'cancelled', finished_at = now() where id = %s", run)
        found = await reader.rest()
    assert kinds(found)[-2:] == ["resync", "end"]
    assert found[-1]["status"] == found[-2]["snapshot"]["run"]["status"] == "cancelled"
    assert door.vessel.bus.is_open(run)
    async with door.stream(f"/runs/{run}/events") as late:
        assert kinds(await late.rest()) == ["resync", "end"]


@pytest.mark.contract("EVT-19")
async def test_a_silent_stream_is_kept_alive_with_comments(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream_module.SILENCE_SECONDS == 15.0
    quiet_for(monkeypatch, 0.02)
    run = await begun(door)
    async with door.stream(f"/runs/{run}/events") as reader:
        await eventually(lambda: reader.raw.count(sse.KEEPALIVE) >= 3)
        door.stage.log("still there")
        await until_line(reader, "still there")


@pytest.mark.contract("EVT-3", "EVT-19")
async def test_last_event_id_goes_on_exactly_behind_it_and_counts_more_than_the_address(door: Door) -> None:
    run = await begun(door)
    door.stage.log("a", "b", "c")
    async with door.stream(f"/runs/{run}/events") as reader:
        first = await until_line(reader, "a")
        await until_line(reader, "c")
    async with door.stream(f"/runs/{run}/events?cursor=0000-0", last_event_id=first["cursor"]) as again:
        assert (await again.next())["data"]["message"] == "b"
    async with door.stream(f"/runs/{run}/events?cursor={first['cursor']}") as again:
        assert (await again.next())["data"]["message"] == "b"


@pytest.mark.contract("EVT-3")
@pytest.mark.parametrize("place", ["0000-1", "ahead"])
async def test_a_cursor_outside_the_replay_is_one_resync_and_then_what_follows(door: Door, place: str) -> None:
    """S079."""
    run = await begun(door)
    door.stage.log("before")
    head = await eventually(lambda: door.vessel.bus.head(run))
    cursor = f"{head.epoch}-999999" if place == "ahead" else place
    async with door.stream(f"/runs/{run}/events?cursor={cursor}") as reader:
        resync = await reader.next()
        assert resync["type"] == "resync"
        assert resync["snapshot"]["run"]["status"] == "running"
        door.stage.log("after")
        door.stage.finish()
        found = await reader.rest()
    assert "after" in lines(found)
    assert kinds(found).count("resync") == 0
    seqs = [one["seq"] for one in found if one["type"] == "event"]
    assert seqs == list(range(resync["snapshot"]["head"] + 1, resync["snapshot"]["head"] + 1 + len(seqs)))


@pytest.mark.contract("BYD-12")
async def test_what_a_resync_leaves_out_is_stored_when_it_is_told(door: Door) -> None:
    run = await begun(door)
    door.stage.log(*(str(n) for n in range(400)))
    await eventually(lambda: (head := door.vessel.bus.head(run)) is not None and head.seq >= 400)
    async with door.stream(f"/runs/{run}/events") as reader, door.client() as client:
        resync = await reader.next()
        assert resync["type"] == "resync"
        page = (await client.get(f"/runs/{run}/steps", params={"limit": 500})).json()
        assert page["items"][-1]["seq"] >= resync["snapshot"]["head"] >= 400
        assert page["gaps"] == []


@pytest.mark.contract("BYD-12")
async def test_history_gives_every_stored_step_before_the_resync_and_then_goes_on(door: Door) -> None:
    run = await begun(door)
    door.stage.log(*(str(n) for n in range(600)))
    await eventually(lambda: (head := door.vessel.bus.head(run)) is not None and head.seq >= 600)
    async with door.stream(f"/runs/{run}/events?history=1") as reader:
        while (await reader.next())["type"] != "resync":
            pass
        door.stage.log("live")
        door.stage.finish()
        await reader.rest()
    told = [one for one in reader.messages if one["type"] == "event"]
    assert [one["seq"] for one in told] == list(range(len(told)))
    assert lines(told) == [*(str(n) for n in range(600)), "live"]
    assert kinds(reader.messages).count("resync") == 1
    assert kinds(reader.messages)[-2:] == ["event done", "end"]


@pytest.mark.contract("BYD-12")
async def test_history_of_a_terminal_run_is_all_its_steps_with_gaps_named(door: Door) -> None:
    run = await begun(door)
    door.stage.log("a")
    door.stage.tokens(4)
    door.stage.log("b", "c", "d")
    door.stage.finish()
    await over(door, run)
    await door.eyes.rows("delete from runs_step where run_id = %s and data->>'message' = 'c'", run)
    async with door.stream(f"/runs/{run}/events?history=1") as reader:
        found = await reader.rest()
    assert lines(found) == ["a", "b", "d"]
    assert kinds(found)[-3:] == ["event done", "resync", "end"]
    (gap,) = [one for one in found if one["type"] == "gap"]
    assert gap["from"] == gap["to"]
    # Somebody who comes back with the last Step that he has gets the rest only.
    seen = next(one for one in found if one.get("kind") == "log")
    async with door.stream(f"/runs/{run}/events?history=1", last_event_id=seen["cursor"]) as again:
        rest = await again.rest()
    assert rest == found[found.index(seen) + 1 :]


@pytest.mark.contract("EVT-7", "BYD-12")
async def test_a_run_that_nobody_carries_yet_is_told_and_followed_from_its_next_number(door: Door) -> None:
    door.vessel.claim_gate.close("test", "nothing is claimed")
    run = await door.life.submit("quick", {"n": 1})
    await door.vessel.bus.settle(run)
    door.vessel.bus.discard(run)  # as after a restart
    async with door.stream(f"/runs/{run}/events") as reader, door.stream(f"/runs/{run}/events") as second:
        for one in (reader, second):
            resync = await one.next()
            assert (resync["type"], resync["snapshot"]["run"]["status"]) == ("resync", "queued")
            assert resync["snapshot"]["head"] == 0
        door.vessel.claim_gate.open("test")
        found = await reader.rest()
        assert await second.rest() == found
    assert kinds(found)[-2:] == ["event done", "end"]
    assert found[0]["seq"] == 1
    await over(door, run)
    async with door.client() as client:
        page = (await client.get(f"/runs/{run}/steps")).json()
    assert [step["seq"] for step in page["items"]] == list(range(len(page["items"])))
    assert door.vessel.bus.stats().channels == 0


@pytest.mark.contract("EVT-20")
async def test_a_run_that_ends_elsewhere_while_its_channel_is_opened_leaves_no_channel(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.vessel.claim_gate.close("test", "nothing is claimed")
    run = await door.life.submit("quick")
    await door.vessel.bus.settle(run)
    door.vessel.bus.discard(run)
    looks = 0
    look = stream_module.standing

    async def standing(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:  # after the channel was opened, before it is believed
            await door.eyes.rows(
                "with d as (update runs_rundelivery set state = 'settled', settled_at = now() where run_id = %s) "
                "update runs_run set status = 'cancelled', finished_at = now() where id = %s",
                run,
                run,
            )
        return await look(*args)

    monkeypatch.setattr(stream_module, "standing", standing)
    async with door.stream(f"/runs/{run}/events") as reader:
        assert kinds(await reader.rest()) == ["resync", "end"]
    assert looks >= 3
    assert door.vessel.bus.head(run) is None
    door.vessel.claim_gate.open("test")


async def test_a_channel_that_is_dropped_is_found_again_and_misses_nothing(door: Door) -> None:
    run = await begun(door)
    async with door.stream(f"/runs/{run}/events?history=1") as reader:
        await reader.next()
        door.stage.log("a")
        await until_line(reader, "a")
        await door.vessel.bus.settle(run)
        door.vessel.bus.discard(run)
        while (await reader.next())["type"] != "resync":
            pass
        door.stage.log("b")
        door.stage.finish()
        found = await reader.rest()
    assert lines(found) == ["b"]
    assert found[-1] == {"type": "end", "status": "done"}


@pytest.mark.parametrize("cursor", ["x", "0000", "0000-", "0000--2", "%00", "a" * 400, "0000-1%0A"])
async def test_a_cursor_that_is_none_is_400(door: Door, cursor: str) -> None:
    run = await door.life.submit("quick")
    async with door.stream(f"/runs/{run}/events?cursor={cursor}") as reader:
        await reader.ended.wait()
    assert reader.status == 400
    assert b"bad_cursor" in reader.raw


async def test_a_client_that_leaves_leaves_the_bus(door: Door) -> None:
    run = await begun(door)
    async with door.stream(f"/runs/{run}/events") as reader:
        await reader.next()
        assert door.vessel.bus.stats().subscribers == 1
    assert door.vessel.bus.stats().subscribers == 0


@pytest.mark.parametrize("stalled", [False, True])
async def test_streams_end_when_the_host_begins_to_stop(door: Door, stalled: bool) -> None:
    run = await begun(door)
    line = Backpressure()
    async with door.stream(f"/runs/{run}/events", wait=line) as reader:
        await reader.next()
        if stalled:
            line.free.clear()
            door.stage.log("one", "two", "three")
            async with asyncio.timeout(5):
                await line.waiting.wait()
        door.stopping.set()
        async with asyncio.timeout(5):
            await reader.ended.wait()
    assert kinds(reader.messages)[-1] != "end"
    assert door.vessel.bus.stats().subscribers == 0


async def test_streams_end_when_the_bus_closes(door: Door) -> None:
    run = await begun(door)
    async with door.stream(f"/runs/{run}/events") as reader:
        await reader.next()
        door.stage.finish()
        await door.life.stop()
        await reader.rest()
    assert reader.status == 200


@pytest.mark.contract("EVT-4")
async def test_a_reader_that_takes_nothing_costs_a_place_and_gets_one_resync(door: Door) -> None:
    """S077."""
    run = await begun(door)
    line = Backpressure()
    async with door.stream(f"/runs/{run}/events", wait=line) as reader:
        await reader.next()
        line.free.clear()
        door.stage.log(*(str(n) for n in range(2000)))
        await eventually(lambda: (head := door.vessel.bus.head(run)) is not None and head.seq >= 2000)
        async with asyncio.timeout(5):
            await line.waiting.wait()
        held = len(reader.raw)
        assert held < 5000
        line.free.set()
        while (await reader.next())["type"] != "resync":
            pass
        door.stage.finish()
        found = await reader.rest()
    assert kinds(reader.messages).count("resync") == 1
    assert kinds(found)[-2:] == ["event done", "end"]


async def test_a_database_that_goes_away_ends_the_stream_without_a_traceback(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = await door.life.submit("quick")
    await over(door, run)

    async def away(*_: Any) -> Any:
        raise Degraded("The database cannot be asked.")

    monkeypatch.setattr(stream_module.rows, "run", away)
    async with door.stream(f"/runs/{run}/events") as reader:
        assert await reader.rest() == []
    assert reader.status == 200
    assert not [record for record in caplog.records if record.exc_info]
