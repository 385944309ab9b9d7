"""WebSockets through the router and the gate of the real application, as the host drives them."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator

from runs.errors import Degraded
from runs.paging import Cursor
from runs.stream import feed as feed_module
from runs.stream import run as stream_module
from runs.stream.table import RUNS
from tests.support.logged import tracebacks
from tests.support.vessel import Backpressure, Door, all_heard, closed, heard, running_vessel
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@contextmanager
def runs_table(**changes: Any) -> Generator[None]:
    """The feed of all Runs with other ways to read, until the block ends; it is frozen for everybody else."""
    before = {name: getattr(RUNS, name) for name in changes}
    for name, value in changes.items():
        object.__setattr__(RUNS, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(RUNS, name, value)


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with running_vessel(vessel_url, monkeypatch) as opened:
        yield opened


@asynccontextmanager
async def connected(door: Door, path: str, **options: Any) -> AsyncGenerator[WebsocketCommunicator]:
    socket = door.socket(path, **options)
    accepted, _ = await socket.connect(timeout=10)
    assert accepted
    try:
        yield socket
    finally:
        if not socket.future.done():
            await socket.send_input({"type": "websocket.disconnect", "code": 1001})
        async with asyncio.timeout(10):
            await socket.wait()


async def begun(door: Door, value: Any = None) -> uuid.UUID:
    run = await door.life.submit("talk", value)
    async with asyncio.timeout(5):
        await door.stage.entered.wait()
    return run


async def over(door: Door, run: uuid.UUID) -> None:
    async def done() -> bool:
        return await door.status(run) in {"done", "failed"} and door.vessel.bus.head(run) is None

    await eventually(done)


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [f"{one['type']} {one['kind']}" if one["type"] == "event" else one["type"] for one in messages]


# One Run


@pytest.mark.contract("EVT-19", "BYD-12")
async def test_both_edges_tell_the_same_with_the_same_cursors(door: Door) -> None:
    run = await begun(door)
    async with connected(door, f"/ws/runs/{run}/") as socket, door.stream(f"/runs/{run}/events") as reader:
        await eventually(lambda: door.vessel.bus.stats().subscribers == 2)
        door.stage.log("a")
        door.stage.tokens(3)
        door.stage.finish()
        told, code = await all_heard(socket)
        assert await reader.rest() == told
    assert code == 1000
    assert kinds(told)[-2:] == ["event done", "end"]
    assert told[-1] == {"type": "end", "status": "done"}
    event = next(one for one in told if one.get("kind") == "log")
    assert set(event) == {"type", "run", "seq", "cursor", "kind", "node", "data", "meta", "at"}
    assert event["run"] == str(run)


@pytest.mark.contract("BYD-12")
async def test_a_cursor_of_one_edge_goes_on_at_the_other(door: Door) -> None:
    run = await begun(door)
    door.stage.log("a", "b")
    async with door.stream(f"/runs/{run}/events") as reader:
        while (first := await reader.next()).get("data", {}).get("message") != "a":
            pass
    async with connected(door, f"/ws/runs/{run}/?cursor={first['cursor']}") as socket:
        assert (await heard(socket))["data"]["message"] == "b"


@pytest.mark.contract("EVT-19", "EVT-20")
async def test_a_terminal_run_is_one_resync_and_the_end_and_a_normal_close(door: Door) -> None:
    """S233."""
    run = await door.life.submit("quick", {"n": 1})
    await over(door, run)
    async with connected(door, f"/ws/runs/{run}/") as socket:
        told, code = await all_heard(socket)
    assert (kinds(told), code) == (["resync", "end"], 1000)
    assert set(told[0]) == {"type", "cursor", "snapshot"}
    assert set(told[0]["snapshot"]) == {"run", "head", "consents", "jobs"}
    assert told[1] == {"type": "end", "status": "done"}


@pytest.mark.contract("BYD-12")
async def test_history_comes_first_over_websocket_too(door: Door) -> None:
    run = await door.life.submit("quick", {"n": 1})
    await over(door, run)
    async with connected(door, f"/ws/runs/{run}/?history=1") as socket:
        told, code = await all_heard(socket)
    assert kinds(told)[-3:] == ["event done", "resync", "end"]
    assert [one["seq"] for one in told if one["type"] == "event"] == list(range(len(told) - 2))
    assert code == 1000


async def test_who_may_not_is_told_by_the_code(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    run = await door.life.submit("quick")
    writer = await door.sigil("writer", scopes=("runs:submit",))
    foreign = await door.sigil("other", tenant="lab")
    for path, token, code in [
        (f"/ws/runs/{run}/", "nonsense", 4401),
        (f"/ws/runs/{run}/", writer, 4403),
        ("/ws/runs/", writer, 4403),
        (f"/ws/runs/{run}/", foreign, 4404),
        (f"/ws/runs/{uuid.uuid4()}/", None, 4404),
        ("/ws/runs/not-an-id/", None, 4404),
        ("/ws/elsewhere/", None, 4404),
        ("/ws/", None, 4404),
        (f"/ws/runs/{run}/?cursor=nonsense", None, 4400),
        (f"/ws/runs/{run}/?cursor=%00", None, 4400),
        ("/ws/runs/?cursor=nonsense", None, 4400),
        ("/ws/runs/?cursor=%00", None, 4400),
        (f"/ws/runs/?cursor={'a' * 9000}", None, 4400),
        (f"/ws/runs/{run}/?cursor=%ff%fe", None, 4400),
        ("/ws/runs/%00/", None, 4404),
        (f"/ws/runs/{run}%00/", None, 4404),
    ]:
        async with connected(door, path, token=token) as socket:
            assert (path, (await closed(socket))[0]) == (path, code)
    async with connected(door, f"/ws/runs/{run}/?cursor=nonsense") as socket:
        assert (await closed(socket))[1] == "This is not a cursor that was given out by the stream."
    assert tracebacks(caplog) == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert door.vessel.bus.stats().subscribers == 0


async def test_a_browser_gets_the_subprotocol_that_it_offered_and_not_its_token(door: Door) -> None:
    run = await door.life.submit("quick")
    socket = door.socket(f"/ws/runs/{run}/")
    socket.scope["subprotocols"] = ["lychd.v1", f"bearer.{door.token}"]
    socket.scope["headers"] = [(b"host", b"localhost")]
    assert await socket.connect(timeout=10) == (True, "lychd.v1")
    await socket.disconnect()


async def test_a_client_that_leaves_leaves_the_bus_and_what_it_says_is_not_answered(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    run = await begun(door)
    async with connected(door, f"/ws/runs/{run}/") as socket:
        await heard(socket)
        for text in ('{"type": "hello"}', "{", "[" * 10_000 + "]" * 10_000, "\0"):
            await socket.send_to(text_data=text)
        await socket.send_to(bytes_data=b"\0")
        door.stage.log("a")
        assert (await heard(socket))["type"] == "event"
        assert door.vessel.bus.stats().subscribers == 1
    assert door.vessel.bus.stats().subscribers == 0
    assert tracebacks(caplog) == []


@pytest.mark.contract("EVT-4")
async def test_a_stalled_reader_keeps_nobody_waiting_and_takes_up_at_the_head(door: Door) -> None:
    run = await begun(door)
    line = Backpressure()
    async with connected(door, f"/ws/runs/{run}/", wait=line) as stalled, connected(door, f"/ws/runs/{run}/") as quick:
        await heard(stalled)
        line.free.clear()
        door.stage.log(*(str(n) for n in range(200)))
        while (message := await heard(quick)).get("data", {}).get("message") != "199":
            assert message["type"] == "event"
        door.stage.log(*(str(n) for n in range(1000)))
        await eventually(lambda: (head := door.vessel.bus.head(run)) is not None and head.seq >= 1200)
        # What it was sent before, and nothing since: it costs its place.
        assert stalled.output_queue.qsize() < 10
        line.free.set()
        while (await heard(stalled))["type"] != "resync":
            pass
        door.stage.log("after")
        assert (await heard(stalled))["data"]["message"] == "after"


@pytest.mark.contract("EVT-5")
async def test_who_is_overtaken_by_the_end_gets_one_resync_and_the_end(door: Door) -> None:
    run = await begun(door)
    line = Backpressure()
    async with connected(door, f"/ws/runs/{run}/", wait=line) as stalled:
        await heard(stalled)
        line.free.clear()
        door.stage.log("the last that is taken")
        async with asyncio.timeout(5):
            await line.waiting.wait()
        door.stage.log(*(str(n) for n in range(1000)))
        door.stage.finish()

        async def ended() -> bool:
            return await door.status(run) == "done" and not door.vessel.bus.is_open(run)

        await eventually(ended)
        line.free.set()
        told, code = await all_heard(stalled)
    assert (kinds(told)[-2:], kinds(told).count("resync"), code) == (["resync", "end"], 1, 1000)
    assert told[-2]["snapshot"]["run"]["status"] == told[-1]["status"] == "done"
    # Nothing that the resync replaces comes before it but what was on its way already.
    assert len(told) < 10


@pytest.mark.contract("EVT-2", "EVT-4")
async def test_a_hundred_readers_of_a_busy_run_lose_nothing_without_a_resync(door: Door) -> None:
    run = await begun(door)
    sockets = [door.socket(f"/ws/runs/{run}/") for _ in range(100)]
    for socket in sockets:
        await socket.connect(timeout=10)
    for n in range(30):
        door.stage.log(*(f"{n}.{m}" for m in range(20)))
    door.stage.finish()
    found = await asyncio.gather(*(all_heard(socket) for socket in sockets))
    for told, code in found:
        assert (told[-1]["type"], code) == ("end", 1000)
        expected = 0
        for one in told[:-1]:
            if one["type"] == "event":
                assert one["seq"] == expected
                expected += 1
            else:
                assert one["type"] == "resync"
                expected = one["snapshot"]["head"] + 1
    await asyncio.gather(*(socket.wait() for socket in sockets))


async def test_a_stop_ends_the_sockets_with_a_word_that_it_comes_back(door: Door) -> None:
    run = await begun(door)
    async with connected(door, f"/ws/runs/{run}/") as one, connected(door, "/ws/runs/") as all_runs:
        await heard(one)
        await heard(all_runs)
        door.stage.finish()
        # The bus ends first, so that readers do not use up the time of the Runs.
        stopping = asyncio.create_task(door.life.stop())
        told, code = await all_heard(one)
        assert code in {1012, 1000}
        assert (code == 1000) == (bool(told) and told[-1]["type"] == "end")
        assert (await all_heard(all_runs))[1] == 1012
        await stopping


async def test_a_database_that_is_away_is_try_again_later(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: Any) -> Any:
        raise Degraded("The database cannot be asked.")

    monkeypatch.setattr(stream_module, "standing", away)
    monkeypatch.setattr(feed_module, "clock", away)
    for path in (f"/ws/runs/{uuid.uuid4()}/", "/ws/runs/"):
        async with connected(door, path) as socket:
            assert (await closed(socket))[0] == 1013
    assert tracebacks(caplog) == []


# All Runs


async def runs_told(socket: WebsocketCommunicator, *wanted: tuple[uuid.UUID, str]) -> list[dict[str, Any]]:
    """Messages up to the one that completes what is wanted."""
    left, told = set(wanted), []
    while left:
        message = await heard(socket)
        told.append(message)
        left.discard((uuid.UUID(message["id"]), message["status"]))
    return told


async def test_the_feed_begins_with_the_newest_and_goes_on_with_what_changes(door: Door) -> None:
    before = await door.life.submit("quick")
    await over(door, before)
    async with connected(door, "/ws/runs/") as socket:
        first = await heard(socket)
        assert (first["type"], set(first["snapshot"])) == ("resync", {"runs"})
        assert [run["id"] for run in first["snapshot"]["runs"]] == [str(before)]
        run = await begun(door)
        told = await runs_told(socket, (run, "running"))
        assert set(told[-1]) == {
            "type", "cursor", "id", "pattern", "status", "source", "hop", "created_at", "updated_at", "finished_at",
        }  # fmt: skip
        assert told[-1]["type"] == "run"
        assert told[-1]["pattern"] == {"key": "talk", "revision": "1"}
        door.stage.finish()
        await runs_told(socket, (run, "done"))


async def test_the_feed_tells_what_other_surfaces_and_processes_changed(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 0.05)
    run = await begun(door)
    async with connected(door, "/ws/runs/") as socket:
        await heard(socket)
        await door.eyes.rows("update runs_run set status = 'cancelling', updated_at = now() where id = %s", run)
        await runs_told(socket, (run, "cancelling"))


async def test_the_feed_shows_a_change_that_was_committed_late(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 0.05)
    run = await begun(door)
    async with connected(door, "/ws/runs/") as socket:
        await heard(socket)
        late = door.eyes.connection
        await late.execute("begin")
        await late.execute("update runs_run set source = 'late', updated_at = now() where id = %s", (run,))
        other = await door.life.submit("quick")
        await runs_told(socket, (other, "done"))
        await late.execute("commit")
        told = await runs_told(socket, (run, "running"))
        assert told[-1]["source"] == "late"


async def test_the_feed_is_of_one_tenant(door: Door) -> None:
    foreign = await door.sigil("other", tenant="lab")
    async with connected(door, "/ws/runs/", token=foreign) as socket, door.client(foreign) as client:
        assert (await heard(socket))["snapshot"] == {"runs": []}
        mine = await door.life.submit("quick")
        await over(door, mine)
        theirs = (await client.post("/runs", json={"pattern": "quick", "input": {}})).json()["id"]
        told = await runs_told(socket, (uuid.UUID(theirs), "done"))
    assert {one["id"] for one in told} == {theirs}


async def test_the_feed_goes_on_behind_its_cursor(door: Door) -> None:
    old = await door.life.submit("quick")
    await over(door, old)
    await door.eyes.rows("update runs_run set updated_at = updated_at - interval '1 hour' where id = %s", old)
    seen = await door.life.submit("quick")
    await over(door, seen)
    async with connected(door, "/ws/runs/") as socket:
        cursor = (await heard(socket))["cursor"]
    missed = await door.life.submit("quick")
    await over(door, missed)
    async with connected(door, f"/ws/runs/?cursor={cursor}") as socket:
        told = await runs_told(socket, (missed, "done"))
        assert str(old) not in {one["id"] for one in told}
        assert all(one["type"] == "run" for one in told)
        fresh = await door.life.submit("quick")
        await runs_told(socket, (fresh, "done"))


@pytest.mark.parametrize("year", ["0001", "9999"])
async def test_a_cursor_may_name_any_time(door: Door, year: str) -> None:
    from datetime import UTC, datetime

    cursor = Cursor(datetime(int(year), 6, 1, tzinfo=UTC), uuid.uuid4()).encode()
    run = await door.life.submit("quick")
    async with connected(door, f"/ws/runs/?cursor={cursor}") as socket:
        await door.life.submit("quick")
        assert (await heard(socket))["type"] == "run"
    assert run


async def test_too_much_missed_is_a_resync(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "NEWEST", 2)
    with runs_table(page=3):
        await _missed_too_much(door)


async def _missed_too_much(door: Door) -> None:
    made = [await door.life.submit("quick") for _ in range(4)]
    for run in made:
        await over(door, run)
    async with connected(door, f"/ws/runs/?cursor={feed_module.BEGINNING.encode()}") as socket:
        first = await heard(socket)
        assert first["type"] == "resync"
        assert len(first["snapshot"]["runs"]) == 2


async def test_a_feed_reader_that_takes_nothing_gets_the_newest_when_it_does(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "REPLAY", 5)
    line = Backpressure()
    async with connected(door, "/ws/runs/", wait=line) as socket:
        await heard(socket)
        line.free.clear()
        made = [await door.life.submit("quick") for _ in range(12)]
        async with connected(door, "/ws/runs/") as other:
            for run in made:
                await over(door, run)
            await heard(other)
            last = await door.life.submit("quick")
            seen: set[str] = set()
            while str(last) not in seen:
                message = await heard(other)
                seen |= {message["id"]} if message["type"] == "run" else {r["id"] for r in message["snapshot"]["runs"]}
        # What it took before it stopped, at most two messages; either may be a resync itself.
        async with asyncio.timeout(5):
            await line.waiting.wait()
        assert socket.output_queue.qsize() <= 2
        while not socket.output_queue.empty():
            await heard(socket)
        line.free.set()
        while (message := await heard(socket))["type"] != "resync":
            pass
        assert {str(run) for run in made} <= {run["id"] for run in message["snapshot"]["runs"]}


async def test_readers_of_a_tenant_share_one_look_and_the_last_one_ends_it(door: Door) -> None:
    def feeds() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("feed ")]

    async with connected(door, "/ws/runs/") as one:
        await heard(one)
        async with connected(door, "/ws/runs/") as two:
            await heard(two)
            assert feeds() == ["feed of runs default"]
        assert feeds() == ["feed of runs default"]
        run = await door.life.submit("quick")
        await runs_told(one, (run, "done"))
    assert feeds() == []
    assert door.vessel.bus.stats().subscribers == 0


async def test_the_feed_outlives_a_database_that_was_away(door: Door) -> None:
    look, failures = RUNS.changes_after, 3

    async def flaky(*args: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise Degraded("The database cannot be asked.")
        return await look(*args)

    async with connected(door, "/ws/runs/") as socket:
        await heard(socket)
        with runs_table(changes_after=flaky):
            run = await door.life.submit("quick")
            await runs_told(socket, (run, "done"))
    assert failures == 0


async def test_messages_are_json_text_in_utf_8(door: Door) -> None:
    run = await begun(door)
    async with connected(door, f"/ws/runs/{run}/") as socket:
        door.stage.log("ü\n\u2028 \ud800 \0")
        while '"kind":"log"' not in (text := str(await socket.receive_from(timeout=10))):
            pass
    text.encode()
    assert "\n" not in text
    assert json.loads(text)["data"]["message"].startswith("ü\n\u2028")
