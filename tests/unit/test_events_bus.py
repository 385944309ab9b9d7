"""The bus: replay, resync, one terminal event, channels that come and go."""
# pyright: reportPrivateUsage=false
# Leaks and memory show only inside.

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from typing import Any

import pytest

from runs.events.bus import End, Event, Kind, Resync, RunChange, RunEventBus, Subscription
from runs.events.cursor import Cursor
from tests.support.waiting import eventually

RUN = uuid.uuid4()


def a_bus(**options: Any) -> RunEventBus:
    return RunEventBus(evidence=None, **options)


def an_open_bus(next_seq: int = 0, **options: Any) -> RunEventBus:
    bus = a_bus(**options)
    bus.open(RUN, tenant="default", next_seq=next_seq)
    return bus


def tokens(bus: RunEventBus, count: int) -> None:
    for n in range(count):
        assert bus.emit(RUN, Kind.TOKEN, data={"text": str(n)})


def the_head(bus: RunEventBus) -> Cursor:
    head = bus.head(RUN)
    assert head is not None
    return head


async def take(stream: Subscription, count: int) -> list[Event | Resync | End]:
    async with asyncio.timeout(5):
        return [await anext(stream) for _ in range(count)]


async def rest(stream: Subscription) -> list[Event | Resync | End]:
    async with asyncio.timeout(5):
        return [item async for item in stream]


def seqs(items: list[Event | Resync | End]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Event)]


@pytest.mark.contract("EVT-2", "BYD-12")
async def test_a_reader_within_the_replay_misses_nothing() -> None:
    bus = an_open_bus()
    tokens(bus, 256)
    async with bus.subscribe(RUN, None) as stream:
        assert seqs(await take(stream, 256)) == list(range(256))
    async with bus.subscribe(RUN, Cursor(the_head(bus).epoch, 250)) as stream:
        bus.finish(RUN, "done")
        items = await rest(stream)
    assert seqs(items) == [251, 252, 253, 254, 255, 256]
    assert items[-1] == End("done")


@pytest.mark.contract("EVT-2", "EVT-3", "EVT-5")
@pytest.mark.parametrize("from_cursor", [True, False])
async def test_who_asks_for_evicted_events_gets_one_resync_at_the_head(from_cursor: bool) -> None:
    bus = an_open_bus()
    tokens(bus, 400)
    head = the_head(bus)
    async with bus.subscribe(RUN, Cursor(head.epoch, 0) if from_cursor else None) as stream:
        assert await take(stream, 1) == [Resync(head)]
        assert head.seq == 399
        tokens(bus, 1)
        bus.finish(RUN, "done")
        items = await rest(stream)
    assert [(item.seq, item.kind) for item in items if isinstance(item, Event)] == [(400, "token"), (401, "done")]
    assert items[-1] == End("done")


@pytest.mark.contract("EVT-3")
@pytest.mark.parametrize("seq", [-1, 5, 99])
@pytest.mark.parametrize("epoch", ["own", "foreign"])
async def test_a_cursor_from_ahead_or_from_another_generation_gets_a_resync_never_silence(epoch: str, seq: int) -> None:
    bus = an_open_bus()
    own = the_head(bus).epoch
    cursor = Cursor(own if epoch == "own" else "feed", seq)
    async with bus.subscribe(RUN, cursor) as stream:
        if cursor == Cursor(own, -1):
            tokens(bus, 1)
            assert seqs(await take(stream, 1)) == [0]
        else:
            assert await take(stream, 1) == [Resync(Cursor(own, -1))]
            tokens(bus, 1)
            assert seqs(await take(stream, 1)) == [0]


@pytest.mark.contract("EVT-3", "EVT-7")
async def test_a_channel_that_goes_on_after_a_restart_tells_a_new_reader_that_there_is_a_past() -> None:
    bus = an_open_bus(next_seq=8)
    async with bus.subscribe(RUN, None) as stream:
        assert await take(stream, 1) == [Resync(the_head(bus))]
        event = bus.emit(RUN, Kind.LOG)
        assert event is not None
        assert event.seq == 8
        assert seqs(await take(stream, 1)) == [8]


@pytest.mark.contract("EVT-2", "EVT-4")
async def test_a_stalled_readers_backlog_is_replaced_by_one_resync_then_it_is_live_again() -> None:
    bus = an_open_bus()
    async with bus.subscribe(RUN, None) as stream:
        tokens(bus, 300)
        assert await take(stream, 1) == [Resync(the_head(bus))]
        tokens(bus, 2)
        assert seqs(await take(stream, 2)) == [300, 301]
        assert bus.stats().dropped_resyncs == 1


@pytest.mark.contract("EVT-4")
async def test_one_slow_reader_costs_the_others_nothing() -> None:
    bus = an_open_bus(backlog=10)
    async with bus.subscribe(RUN, None) as slow, bus.subscribe(RUN, None) as quick:
        seen: list[int] = []
        for _ in range(30):
            tokens(bus, 1)
            seen += seqs(await take(quick, 1))
        assert seen == list(range(30))
        assert await take(slow, 1) == [Resync(the_head(bus))]


@pytest.mark.contract("EVT-5")
async def test_overflow_by_the_terminal_event_ends_the_stream_after_the_resync() -> None:
    bus = an_open_bus()
    async with bus.subscribe(RUN, None) as stream:
        tokens(bus, 256)
        bus.finish(RUN, "failed")
        assert await rest(stream) == [Resync(the_head(bus)), End("failed")]


@pytest.mark.contract("EVT-2")
async def test_large_events_leave_the_replay_earlier_than_many_small_ones() -> None:
    bus = an_open_bus(replay_size=100_000)
    for _ in range(20):
        bus.emit(RUN, Kind.FRAGMENT, data={"text": "x" * 10_000})
    epoch = the_head(bus).epoch
    async with bus.subscribe(RUN, Cursor(epoch, 0)) as stream:
        assert isinstance((await take(stream, 1))[0], Resync)
    async with bus.subscribe(RUN, Cursor(epoch, 15)) as stream:
        assert seqs(await take(stream, 4)) == [16, 17, 18, 19]


@pytest.mark.contract("EVT-11")
async def test_nobody_can_change_what_others_see() -> None:
    bus = an_open_bus()
    data, meta = {"list": [1]}, {"deep": {"a": 1}}
    async with bus.subscribe(RUN, None) as first, bus.subscribe(RUN, None) as second:
        emitted = bus.emit(RUN, Kind.LOG, data=data, meta=meta)
        assert emitted is not None
        data["list"].append(2)
        meta["deep"]["a"] = 2
        (seen,) = await take(first, 1)
        assert isinstance(seen, Event)
        seen.data["list"].append(3)
        seen.meta["deep"]["a"] = 3
        seen.to_json()["data"]["list"].append(4)
        (other,) = await take(second, 1)
        (replayed,) = await take(bus.subscribe(RUN, None), 1)
        for event in (emitted, seen, other, replayed):
            assert isinstance(event, Event)
            assert event.data == {"list": [1]}
            assert event.meta == {"deep": {"a": 1}}
        with pytest.raises(AttributeError):
            seen.seq = 5  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.contract("EVT-14", "SET-6")
async def test_a_channel_takes_one_terminal_event_and_nothing_after_it() -> None:
    bus = an_open_bus()
    done = bus.finish(RUN, "done", data={"status": "lies", "output": 1})
    assert done is not None
    assert done.data == {"status": "done", "output": 1}
    assert bus.finish(RUN, "failed") is None
    assert bus.emit(RUN, Kind.LOG) is None
    assert the_head(bus).seq == done.seq == 0
    assert not bus.is_open(RUN)
    with pytest.raises(ValueError, match="finish"):
        bus.emit(RUN, Kind.DONE)


@pytest.mark.contract("EVT-14")
async def test_a_closed_channel_waits_for_its_readers_and_then_goes() -> None:
    bus = an_open_bus()
    tokens(bus, 1)
    async with bus.subscribe(RUN, None) as stream:
        bus.finish(RUN, "done")
        bus.close(RUN)
        assert bus.head(RUN) is not None
        late = bus.subscribe(RUN, None)
        assert seqs(await rest(late)) == [0, 1]
        assert bus.head(RUN) is not None
        assert (await rest(stream))[-1] == End("done")
    assert bus.head(RUN) is None
    assert bus.stats().channels == 0


@pytest.mark.contract("EVT-14")
async def test_a_closed_channel_without_readers_goes_at_once() -> None:
    bus = an_open_bus()
    bus.finish(RUN, "done")
    bus.close(RUN)
    assert bus.stats().channels == 0


@pytest.mark.contract("EVT-14")
async def test_a_reader_who_never_reads_holds_a_closed_channel_no_longer_than_the_grace() -> None:
    bus = an_open_bus(grace=0.01)
    async with bus.subscribe(RUN, None) as stream:
        bus.finish(RUN, "done")
        bus.close(RUN)
        await eventually(lambda: bus.head(RUN) is None)
        assert (await rest(stream))[-1] == End("done")


@pytest.mark.contract("EVT-15")
async def test_reading_an_unknown_run_is_an_empty_stream_and_mints_nothing() -> None:
    bus = a_bus()
    assert await rest(bus.subscribe(RUN, None)) == []
    assert await rest(bus.subscribe(RUN, Cursor("ab", 3))) == []
    assert bus.stats().channels == bus.stats().subscribers == 0
    assert bus.emit(RUN, Kind.LOG) is None
    assert bus.finish(RUN, "done") is None


@pytest.mark.contract("EVT-16")
async def test_a_new_generation_lets_the_readers_of_the_old_one_finish_normally() -> None:
    bus = an_open_bus()
    tokens(bus, 2)
    old = bus.subscribe(RUN, None)
    bus.finish(RUN, "failed")
    epoch = the_head(bus).epoch
    bus.open(RUN, tenant="default", next_seq=7)
    assert bus.is_open(RUN)
    assert the_head(bus).epoch != epoch
    bus.emit(RUN, Kind.LOG)
    items = await rest(old)
    assert seqs(items) == [0, 1, 2]
    assert items[-1] == End("failed")


@pytest.mark.contract("EVT-16")
async def test_a_discarded_channel_ends_its_waiting_readers() -> None:
    bus = an_open_bus()
    stream = bus.subscribe(RUN, None)
    waiting = asyncio.create_task(rest(stream))
    await asyncio.sleep(0)
    bus.discard(RUN)
    assert await waiting == []
    assert bus.stats().subscribers == 0


async def test_opening_an_open_channel_changes_nothing() -> None:
    bus = an_open_bus()
    tokens(bus, 3)
    head = the_head(bus)
    bus.open(RUN, tenant="default", next_seq=50)
    assert bus.head(RUN) == head


async def test_a_reader_who_gives_up_waiting_goes_on_at_the_same_place_and_leaves_nothing_behind() -> None:
    bus = an_open_bus()
    async with bus.subscribe(RUN, None) as stream:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(stream)
        channel = bus._channels[RUN]
        assert not channel._waiters
        tokens(bus, 1)
        assert seqs(await take(stream, 1)) == [0]


async def test_closing_a_stream_ends_the_task_that_waits_in_it() -> None:
    bus = an_open_bus()
    stream, other = bus.subscribe(RUN, None), bus.subscribe(RUN, None)
    waiting = asyncio.create_task(rest(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    assert await waiting == []
    assert bus.stats().subscribers == 1
    tokens(bus, 1)
    assert seqs(await take(other, 1)) == [0]


@pytest.mark.contract("BYD-12")
async def test_a_folded_channel_goes_on_with_the_same_cursor() -> None:
    bus = an_open_bus()
    tokens(bus, 3)
    head = the_head(bus)
    bus.fold(RUN)
    assert bus.stats().folded == 1
    assert bus.head(RUN) == head
    at_head, behind = bus.subscribe(RUN, head), bus.subscribe(RUN, Cursor(head.epoch, 0))
    newcomer = bus.subscribe(RUN, None)
    event = bus.emit(RUN, Kind.LOG)
    assert event is not None
    assert event.seq == 3
    assert event.tokens_before == 3
    assert seqs(await take(at_head, 1)) == [3]
    assert isinstance((await take(behind, 1))[0], Resync)
    assert isinstance((await take(newcomer, 1))[0], Resync)
    assert bus.stats().folded == 0


async def test_a_channel_that_is_read_folds_when_its_last_reader_leaves() -> None:
    bus = an_open_bus()
    stream = bus.subscribe(RUN, None)
    tokens(bus, 2)
    bus.fold(RUN)
    assert seqs(await take(stream, 2)) == [0, 1]
    stream.close()
    assert isinstance((await take(bus.subscribe(RUN, None), 1))[0], Resync)


async def test_a_folded_channel_costs_less_than_a_kilobyte() -> None:
    bus = a_bus()
    runs = [uuid.uuid4() for _ in range(100)]
    for run in runs:
        bus.open(run, tenant="default")
        bus.emit(run, Kind.STATUS, data={"status": "queued"})
        bus.fold(run)
    channel = bus._channels[runs[0]]
    fields = [name for kind in type(channel).__mro__ for name in getattr(kind, "__slots__", ())]
    parts = [getattr(channel, name) for name in fields]
    assert not any(isinstance(part, list | dict | set) or hasattr(part, "append") for part in parts)
    assert sys.getsizeof(channel) + sum(sys.getsizeof(part) for part in parts) < 1024


async def test_what_json_or_postgresql_cannot_hold_is_made_readable_and_the_event_stays_one_line_of_valid_utf8() -> (
    None
):
    bus = an_open_bus()
    loop: dict[str, Any] = {}
    loop["self"] = loop
    for data in ({"a": "\0"}, {"a": "\ud800"}, {"a": float("nan")}, {"a": {1}}, {"a": object()}, loop, {"é\n": "\r\n"}):
        event = bus.emit(RUN, Kind.LOG, node='a"b', data=data)
        assert event is not None
        for text in (event.text, event.data_json):
            text.encode()
            assert "\\u0000" not in text.replace("\\\\", "")
            assert "\n" not in text
            assert "\r" not in text
        assert json.loads(event.text) == event.to_json()


async def test_an_event_reads_as_the_interface_says() -> None:
    bus = an_open_bus()
    event = bus.emit(RUN, Kind.PROGRESS, node="scan", data={"done": 3}, meta={"unit": "files"})
    assert event is not None
    shown = event.to_json()
    assert list(shown) == ["run", "seq", "cursor", "kind", "node", "data", "meta", "at"]
    assert shown["cursor"] == f"{the_head(bus).epoch}-0"
    assert shown["at"].endswith("Z")
    assert (shown["kind"], shown["node"], shown["data"]) == ("progress", "scan", {"done": 3})


async def test_changes_of_all_runs_reach_readers_and_slow_ones_are_resynced() -> None:
    bus = a_bus(backlog=4)
    change = RunChange(RUN, "default", "running", "inventory@1", facts={"hop": 1})
    bus.announce(change)
    async with bus.changes() as quick, bus.subscribe_all() as slow:
        for _ in range(6):
            bus.announce(change)
            assert await anext(quick) is change
        assert isinstance(await anext(slow), Resync)
        bus.announce(change)
        assert await anext(slow) is change
    assert change.to_json()["status"] == "running"
    assert bus.stats().subscribers == 0


async def test_closing_the_bus_ends_every_stream_while_runs_still_emit() -> None:
    bus = an_open_bus()
    reading = [asyncio.create_task(rest(bus.subscribe(RUN, None))) for _ in range(3)]
    changes = bus.changes()
    unread = bus.subscribe(RUN, None)
    tokens(bus, 1)
    await asyncio.sleep(0)
    await bus.aclose()
    assert [seqs(items) for items in await asyncio.gather(*reading)] == [[0]] * 3
    assert await rest(unread) == []
    assert [change async for change in changes] == []
    assert await rest(bus.subscribe(RUN, None)) == []
    assert bus.emit(RUN, Kind.LOG) is not None
    assert bus.finish(RUN, "done") is not None
    bus.close(RUN)
    assert bus.stats().channels == bus.stats().subscribers == 0
