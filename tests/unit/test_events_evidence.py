"""The evidence writer against a scripted store, and repair of terminal evidence through the bus."""
# pyright: reportPrivateUsage=false
# That nothing is remembered too long shows only inside.

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from runs.errors import Conflict, EvidenceFailed, EvidenceMismatch, Unknown
from runs.events.bus import End, Event, Kind, Repaired, RunEventBus, TerminalTruth
from runs.events.evidence import Appended, EvidenceWriter, StepRow
from tests.support.waiting import eventually

RUN, OTHER, THIRD = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()


class ScriptedStore:
    """Keeps Steps as PostgreSQL would, with one number and one terminal Step a Run; fails as a test tells it to."""

    def __init__(self) -> None:
        self.steps: dict[tuple[UUID, int], StepRow] = {}
        self.order: list[tuple[UUID, int]] = []
        self.calls: list[list[tuple[UUID, int]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.away = False
        self.loses_answers = 0
        self.poison: Callable[[StepRow], bool] = lambda row: False
        self.breaks_connection: Callable[[StepRow], bool] = lambda row: False
        self.gone: set[UUID] = set()

    async def append(self, rows: Sequence[StepRow], /) -> Sequence[str]:
        self.calls.append([(row.run_id, row.seq) for row in rows])
        await self.open.wait()
        if self.away or any(self.breaks_connection(row) for row in rows):
            raise Unknown
        if any(self.poison(row) for row in rows):
            raise ValueError("unsupported Unicode escape sequence\nDETAIL: secret")
        words = [self._one(row) for row in rows]
        if self.loses_answers:
            self.loses_answers -= 1
            raise Unknown
        return words

    def _one(self, row: StepRow) -> str:
        key = (row.run_id, row.seq)
        if row.run_id in self.gone:
            return Appended.NO_RUN
        if key in self.steps:
            return Appended.ALREADY if self.steps[key].id == row.id else Appended.CONFLICT
        if row.kind == "done" and self.terminal(row.run_id) is not None:
            return Appended.CONFLICT
        self.steps[key] = row
        self.order.append(key)
        return "written"

    def seqs(self, run: UUID) -> list[int]:
        return [seq for of, seq in self.order if of == run]

    def terminal(self, run: UUID) -> StepRow | None:
        return next((row for (of, _), row in self.steps.items() if of == run and row.kind == "done"), None)

    async def truth(self, run: UUID, status: str = "done") -> TerminalTruth:
        stored = self.terminal(run)
        return TerminalTruth(
            status,
            max(self.seqs(run), default=-1) + 1,
            stored=None if stored is None else stored.data["status"],
        )


class Desk:
    """A bus with its writer and store, and three open Runs."""

    def __init__(self, **options: Any) -> None:
        self.store = ScriptedStore()
        self.writer = EvidenceWriter(self.store, first_delay=0.001, **options)
        self.writer.start()
        self.bus = RunEventBus(evidence=self.writer)
        for run in (RUN, OTHER, THIRD):
            self.bus.open(run, tenant="default")

    def emit(self, run: UUID = RUN, count: int = 1, **data: Any) -> None:
        for _ in range(count):
            assert self.bus.emit(run, Kind.LOG, data=data)

    async def repair(self, run: UUID = RUN, status: str = "done") -> Repaired:
        return await self.bus.repair_terminal(run, lambda: self.store.truth(run, status))

    async def failure(self, run: UUID = RUN) -> EvidenceFailed:
        async with asyncio.timeout(5):
            with pytest.raises(EvidenceFailed) as caught:
                await self.bus.settle(run)
        return caught.value

    async def settle(self, *runs: UUID) -> None:
        async with asyncio.timeout(5):
            for run in runs or (RUN,):
                await self.bus.settle(run)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.store.open.set()
    desk.store.away = False
    async with asyncio.timeout(5):
        await desk.bus.join()
        await desk.writer.drain()
        await desk.writer.stop()


@pytest.mark.contract("EVT-6", "EVT-7")
async def test_steps_hold_all_but_tokens_in_order_with_the_channels_numbers(desk: Desk) -> None:
    desk.bus.discard(RUN)
    desk.bus.open(RUN, tenant="acme", next_seq=8)
    for kind in (Kind.NODE, Kind.TOKEN, Kind.TOKEN, Kind.LOG, Kind.TOKEN):
        desk.bus.emit(RUN, kind, node="n", data={"a": 1}, meta={"b": 2})
    desk.bus.finish(RUN, "done")
    await desk.settle()
    assert desk.store.seqs(RUN) == [8, 11, 13]
    rows = [desk.store.steps[RUN, seq] for seq in (8, 11, 13)]
    assert [(row.kind, row.tokens_before) for row in rows] == [("node", 0), ("log", 2), ("done", 1)]
    assert (rows[0].tenant, rows[0].node, rows[0].data, rows[0].meta) == ("acme", "n", {"a": 1}, {"b": 2})


@pytest.mark.contract("EVT-11")
async def test_a_step_shows_what_was_emitted_whatever_becomes_of_the_objects(desk: Desk) -> None:
    desk.store.open.clear()
    meta = {"list": [1]}
    event = desk.bus.emit(RUN, Kind.LOG, meta=meta)
    assert event is not None
    meta["list"].append(2)
    event.meta["list"].append(3)
    desk.store.open.set()
    await desk.settle()
    desk.store.steps[RUN, 0].meta["list"].append(4)
    assert desk.store.steps[RUN, 0].meta == {"list": [1]}


@pytest.mark.contract("EVT-6")
async def test_events_that_arrive_during_a_write_go_together_in_the_next(desk: Desk) -> None:
    desk.store.open.clear()
    desk.emit(RUN)
    await eventually(lambda: desk.store.calls)
    for _ in range(10):
        desk.emit(OTHER)
        desk.emit(THIRD)
        desk.emit(RUN)
    desk.store.open.set()
    await desk.settle(RUN, OTHER, THIRD)
    assert [len(call) for call in desk.store.calls] == [1, 30]
    assert desk.store.seqs(RUN) == list(range(11))
    assert desk.store.seqs(OTHER) == desk.store.seqs(THIRD) == list(range(10))
    assert desk.writer.stats().written == 31
    assert desk.writer._lanes == {}


@pytest.mark.contract("EVT-8")
async def test_the_barrier_opens_only_after_the_terminal_step_exists(desk: Desk) -> None:
    desk.store.open.clear()
    desk.bus.finish(RUN, "done")
    waiting = asyncio.create_task(desk.bus.settle(RUN))
    await eventually(lambda: desk.store.calls)
    assert not waiting.done()
    desk.store.open.set()
    await waiting
    assert desk.store.terminal(RUN) is not None


async def test_a_run_without_waiting_evidence_has_an_open_barrier(desk: Desk) -> None:
    await desk.settle()
    await desk.settle(uuid.uuid4())


@pytest.mark.contract("EVT-10")
async def test_all_waiters_of_a_failed_generation_see_the_same_failure_until_a_retry(desk: Desk) -> None:
    desk.store.open.clear()
    desk.store.poison = lambda row: row.data == {"bad": True}
    desk.emit(bad=True)
    waiters = [asyncio.create_task(desk.failure()) for _ in range(2)]
    await eventually(lambda: desk.store.calls)
    with pytest.raises(Conflict):
        desk.writer.retry(RUN)
    desk.store.open.set()
    first, second = await asyncio.gather(*waiters)
    assert first is second is await desk.failure() is desk.writer.failure(RUN)
    assert "secret" not in str(first)
    desk.writer.retry(RUN)
    desk.emit()
    await desk.settle()
    assert desk.store.seqs(RUN) == [1]


@pytest.mark.contract("EVT-9")
async def test_a_lost_step_does_not_keep_later_ones_from_being_written(desk: Desk) -> None:
    desk.store.poison = lambda row: row.data == {"bad": True}
    desk.emit(bad=True)
    await desk.failure()
    desk.emit()
    desk.bus.finish(RUN, "done")
    assert (await desk.failure()).facts["seq"] == 0
    assert desk.store.seqs(RUN) == [1, 2]


@pytest.mark.contract("EVT-18")
async def test_a_cancelled_waiter_does_not_cancel_the_writer(desk: Desk) -> None:
    desk.store.open.clear()
    desk.emit()
    waiters = [asyncio.create_task(desk.bus.settle(RUN)) for _ in range(2)]
    await eventually(lambda: desk.store.calls)
    waiters[0].cancel()
    await asyncio.wait({waiters[0]})
    desk.store.open.set()
    await waiters[1]
    assert desk.store.seqs(RUN) == [0]


@pytest.mark.contract("EVT-14")
async def test_nothing_after_the_terminal_event_is_stored(desk: Desk) -> None:
    desk.bus.finish(RUN, "done")
    desk.bus.emit(RUN, Kind.LOG)
    desk.bus.finish(RUN, "failed")
    await desk.settle()
    assert desk.store.seqs(RUN) == [0]


@pytest.mark.contract("EVT-8")
async def test_a_run_that_ends_goes_ahead_of_other_runs_but_not_of_its_own_events() -> None:
    desk = Desk(batch=8)
    desk.store.open.clear()
    desk.emit(OTHER)
    await eventually(lambda: desk.store.calls)
    desk.emit(OTHER, 100)
    desk.emit(RUN, 20)
    desk.bus.finish(RUN, "done")
    desk.store.open.set()
    await desk.settle(RUN, OTHER)
    assert desk.store.seqs(RUN) == list(range(21))
    assert desk.store.order.index((RUN, 20)) < 30
    assert desk.store.seqs(OTHER) == list(range(101))


async def test_batches_are_bounded_in_size_and_a_larger_event_goes_alone() -> None:
    desk = Desk(size=1000)
    desk.store.open.clear()
    desk.emit(THIRD)
    await eventually(lambda: desk.store.calls)
    for text in ("x" * 400, "x" * 400, "x" * 400, "x" * 5000, "x"):
        desk.emit(RUN, text=text)
    desk.store.open.set()
    await desk.settle(RUN, THIRD)
    assert [len(call) for call in desk.store.calls] == [1, 2, 1, 1, 1]
    assert desk.store.seqs(RUN) == [0, 1, 2, 3, 4]


@pytest.mark.contract("EVT-9")
async def test_one_bad_event_costs_its_own_step_and_no_other_runs(desk: Desk) -> None:
    desk.store.open.clear()
    desk.emit(THIRD)
    await eventually(lambda: desk.store.calls)
    desk.store.poison = lambda row: row.data == {"bad": True}
    desk.emit(OTHER, 40)
    desk.emit(RUN, 3)
    desk.emit(RUN, bad=True)
    desk.emit(RUN, 3)
    desk.emit(THIRD, 40)
    desk.store.open.set()
    await desk.settle(OTHER, THIRD)
    assert (await desk.failure()).facts["seq"] == 3
    assert desk.store.seqs(RUN) == [0, 1, 2, 4, 5, 6]
    assert desk.store.seqs(OTHER) == list(range(40))
    assert desk.store.seqs(THIRD) == list(range(41))
    assert desk.writer.stats().lost == 1


@pytest.mark.contract("EVT-6", "EVT-9")
async def test_a_lost_answer_is_tried_again_with_the_same_ids_and_counts_as_written(desk: Desk) -> None:
    desk.store.loses_answers = 2
    desk.emit(RUN, 3)
    desk.emit(OTHER, 2)
    await desk.settle(RUN, OTHER)
    assert desk.store.seqs(RUN) == [0, 1, 2]
    assert desk.writer.stats().lost == 0


@pytest.mark.contract("EVT-9")
async def test_a_place_that_another_event_holds_is_that_runs_failure_alone(desk: Desk) -> None:
    desk.emit(RUN)
    await desk.settle()
    desk.bus.discard(RUN)
    desk.bus.open(RUN, tenant="default", next_seq=0)
    desk.emit(RUN)
    desk.emit(OTHER)
    desk.store.gone.add(THIRD)
    desk.emit(THIRD)
    await desk.settle(OTHER)
    assert "another event" in str(await desk.failure())
    assert "gone" in str(await desk.failure(THIRD))


@pytest.mark.contract("EVT-9")
async def test_evidence_waits_for_a_database_that_comes_back(desk: Desk) -> None:
    desk.store.away = True
    desk.emit(RUN, 5)
    desk.emit(OTHER, 5)
    await eventually(lambda: len(desk.store.calls) > 6)
    desk.emit(RUN)
    desk.bus.finish(OTHER, "done")
    desk.store.away = False
    await desk.settle(RUN, OTHER)
    assert desk.store.seqs(RUN) == desk.store.seqs(OTHER) == list(range(6))


@pytest.mark.contract("EVT-9")
async def test_a_database_that_stays_away_is_said_at_the_barrier() -> None:
    desk = Desk(patience=0.05)
    desk.store.away = True
    desk.emit(RUN, 3)
    assert "did not answer" in str(await desk.failure())
    assert desk.writer.stats().lost == 3
    assert desk.writer.stats().waiting == 0


@pytest.mark.contract("EVT-9")
@pytest.mark.parametrize("alone", [True, False])
async def test_an_event_that_breaks_the_connection_each_time_delays_nobody(desk: Desk, alone: bool) -> None:
    desk.store.breaks_connection = lambda row: row.data == {"bad": True}
    if alone:
        desk.emit(RUN, bad=True)
        await eventually(lambda: len(desk.store.calls) > 3)
    else:
        desk.emit(RUN, 2)
        desk.emit(RUN, bad=True)
        desk.emit(RUN, 2)
    desk.emit(OTHER, 20)
    desk.emit(THIRD, 20)
    await desk.settle(OTHER, THIRD)
    failure = await desk.failure()
    assert failure.facts["seq"] == (0 if alone else 2)
    assert desk.store.seqs(RUN) == ([] if alone else [0, 1, 3, 4])
    assert desk.store.seqs(OTHER) == desk.store.seqs(THIRD) == list(range(20))


async def test_what_does_not_fit_the_backlog_is_said_to_be_lost_but_the_terminal_step_is_not() -> None:
    desk = Desk(run_backlog=5)
    desk.store.open.clear()
    desk.emit(RUN)
    await eventually(lambda: desk.store.calls)
    desk.emit(RUN, 8)
    desk.emit(OTHER, 5)
    desk.bus.finish(RUN, "done")
    desk.store.open.set()
    assert (await desk.failure()).facts["seq"] == 6
    assert desk.store.seqs(RUN) == [0, 1, 2, 3, 4, 5, 9]
    await desk.settle(OTHER)


async def test_stopping_with_work_left_tells_every_waiter_and_leaves_no_task(desk: Desk) -> None:
    desk.store.open.clear()
    desk.emit(RUN)
    await eventually(lambda: desk.store.calls)
    desk.emit(OTHER, 3)
    waiters = [asyncio.create_task(desk.failure(run)) for run in (RUN, OTHER)]
    await asyncio.sleep(0)
    await desk.writer.stop()
    assert all("stopped" in str(failure) for failure in await asyncio.gather(*waiters))
    desk.emit(THIRD)
    assert "stopped" in str(await desk.failure(THIRD))
    assert desk.writer.stats().waiting == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "evidence writer"]


async def test_stopping_before_the_writer_took_its_first_step_tells_the_waiter(desk: Desk) -> None:
    desk.emit(RUN)
    await desk.writer.stop()
    assert "stopped" in str(await desk.failure())
    desk.writer.start()
    desk.emit(OTHER)
    await desk.settle(OTHER)


async def test_failures_that_nobody_repairs_are_not_remembered_for_ever(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.events.evidence._MOST_LATCHES", 10)
    desk.store.poison = lambda row: True
    for _ in range(30):
        run = uuid.uuid4()
        desk.bus.open(run, tenant="default")
        desk.emit(run)
    await desk.writer.drain()
    assert len(desk.writer._lanes) == desk.writer.stats().latched == 10


@pytest.mark.contract("EVT-9", "EVT-12")
async def test_a_failed_terminal_step_is_written_once_by_a_later_repair(desk: Desk) -> None:
    desk.emit(RUN, 2)
    await desk.settle()
    desk.store.poison = lambda row: row.kind == "done"
    desk.bus.finish(RUN, "done")
    await desk.failure()
    reader = desk.bus.subscribe(RUN, None)
    with pytest.raises(EvidenceFailed):
        await desk.repair()
    assert desk.bus.head(RUN) is None
    desk.store.poison = lambda row: False
    assert await desk.repair() is Repaired.WRITTEN
    assert await desk.repair() is Repaired.NOTHING
    assert desk.store.seqs(RUN) == [0, 1, 2]
    assert [item async for item in reader][-1] == End("done")
    assert desk.bus.head(RUN) is None
    await desk.settle()


@pytest.mark.contract("EVT-7", "EVT-12")
@pytest.mark.parametrize("stored", [0, 3])
async def test_repair_in_a_fresh_process_goes_on_after_the_stored_steps(desk: Desk, stored: int) -> None:
    desk.emit(RUN, stored)
    await desk.settle()
    fresh = RunEventBus(evidence=EvidenceWriter(desk.store))
    assert await fresh.repair_terminal(RUN, lambda: desk.store.truth(RUN, "failed")) is Repaired.WRITTEN
    assert desk.store.seqs(RUN) == list(range(stored + 1))
    step = desk.store.terminal(RUN)
    assert step is not None
    assert (step.seq, step.data) == (stored, {"status": "failed"})


@pytest.mark.contract("EVT-13")
async def test_concurrent_repairs_share_one_write_and_survive_a_cancelled_leader(desk: Desk) -> None:
    desk.bus.discard(RUN)
    desk.store.open.clear()
    leader = asyncio.create_task(desk.repair())
    follower = asyncio.create_task(desk.repair())
    await eventually(lambda: desk.store.calls)
    leader.cancel()
    await asyncio.wait({leader})
    assert leader.cancelled()
    latecomer = asyncio.create_task(desk.repair())
    await asyncio.sleep(0)
    desk.store.open.set()
    assert await follower is await latecomer is Repaired.WRITTEN
    assert desk.store.calls == [[(RUN, 0)]]


@pytest.mark.contract("EVT-13")
async def test_a_repair_whose_callers_all_left_still_ends(desk: Desk) -> None:
    desk.bus.discard(RUN)
    desk.store.open.clear()
    only = asyncio.create_task(desk.repair())
    await eventually(lambda: desk.store.calls)
    only.cancel()
    await asyncio.wait({only})
    desk.store.open.set()
    await desk.bus.join()
    assert desk.store.terminal(RUN) is not None


@pytest.mark.contract("EVT-16")
async def test_repair_replaces_a_closed_channel_that_a_reader_still_holds(desk: Desk) -> None:
    desk.emit(RUN)
    await desk.settle()
    desk.store.poison = lambda row: row.kind == "done"
    desk.bus.finish(RUN, "done")
    await desk.failure()
    reader = desk.bus.subscribe(RUN, None)
    desk.bus.close(RUN)
    old = desk.bus.head(RUN)
    desk.store.poison = lambda row: False
    assert await desk.repair() is Repaired.WRITTEN
    items = [item async for item in reader]
    assert [item.seq for item in items if isinstance(item, Event)] == [0, 1]
    assert items[-1] == End("done")
    step = desk.store.terminal(RUN)
    assert step is not None
    assert old is not None
    assert step.epoch != old.epoch


@pytest.mark.contract("EVT-17")
async def test_evidence_that_contradicts_the_run_is_an_error_and_is_left_alone(desk: Desk) -> None:
    desk.bus.finish(RUN, "failed")
    await desk.settle()
    before = dict(desk.store.steps)
    with pytest.raises(EvidenceMismatch):
        await desk.repair(status="done")
    assert desk.store.steps == before
    assert await desk.repair(status="failed") is Repaired.NOTHING
    assert desk.store.steps == before


@pytest.mark.contract("EVT-12", "SET-6")
async def test_repair_waits_for_the_terminal_step_that_is_on_its_way(desk: Desk) -> None:
    desk.store.open.clear()
    desk.bus.finish(RUN, "done")
    repair = asyncio.create_task(desk.repair())
    await eventually(lambda: desk.store.calls)
    desk.store.open.set()
    assert await repair is Repaired.NOTHING
    assert desk.store.seqs(RUN) == [0]


@pytest.mark.contract("EVT-12", "SET-6")
async def test_repair_looks_again_when_the_terminal_event_came_while_it_asked(desk: Desk) -> None:
    answers: list[TerminalTruth] = []

    async def slow_truth() -> TerminalTruth:
        answers.append(await desk.store.truth(RUN))
        if len(answers) == 1:
            desk.bus.finish(RUN, "done")
            await desk.bus.settle(RUN)
        return answers[-1]

    assert await desk.bus.repair_terminal(RUN, slow_truth) is Repaired.NOTHING
    assert len(answers) == 2
    assert desk.store.seqs(RUN) == [0]


@pytest.mark.contract("SET-6")
async def test_repair_ends_a_live_channel_so_that_its_readers_see_the_end_once(desk: Desk) -> None:
    desk.emit(RUN)
    async with desk.bus.subscribe(RUN, None) as reader:
        assert await desk.repair() is Repaired.WRITTEN
        assert desk.bus.finish(RUN, "done") is None
        kinds = [item.kind if isinstance(item, Event) else item async for item in reader]
    assert kinds == ["log", "done", End("done")]


@pytest.mark.contract("EVT-12")
async def test_a_run_that_has_not_ended_is_not_repaired(desk: Desk) -> None:
    async def not_ended() -> None:
        return None

    assert await desk.bus.repair_terminal(RUN, not_ended) is Repaired.NOT_TERMINAL
    assert desk.bus.is_open(RUN)
    assert desk.store.calls == []


async def test_without_a_writer_the_barrier_is_open_and_repair_tells_readers_only() -> None:
    bus = RunEventBus(evidence=None)
    bus.open(RUN, tenant="default")
    await bus.settle(RUN)

    async def truth() -> TerminalTruth:
        return TerminalTruth("done", 0)

    async with bus.subscribe(RUN, None) as reader:
        assert await bus.repair_terminal(RUN, truth) is Repaired.WRITTEN
        assert [item async for item in reader][-1] == End("done")
