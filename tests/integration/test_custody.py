"""Custody under fire: what is stuck starves nobody, what was written is told, what lives is left alone (BYD-6, RLY)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Literal

import pytest

from runs import seams
from runs.containment import ContainmentUncertain
from runs.errors import Unknown
from runs.ledger.claim import CLAIM, Claim
from runs.ledger.outcomes import Won
from runs.ledger.settle import Settlement
from runs.patterns import Context, Finish, Goto, Pattern
from runs.patterns.pattern import AnyPattern
from runs.recovery import custody as relays
from runs.recovery.custody import CancelRelay, CustodyRelay, Patience
from tests.support.delegates import AwaitJob, Delegates, Faulty, job_of, job_table
from tests.support.lossy_wire import LossyWire
from tests.support.vessel_parts import Build, Ctx, Latch, Note, Parts, Report, Tally, cancelled, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


def away() -> BaseException:
    return RuntimeError("the runtime is away")


async def broken(_: Ctx) -> str:
    raise ValueError("it broke")


def delegating() -> AnyPattern:
    """Hands out two jobs, one after the other."""
    pattern = Pattern("delegating", input=Note, state=Tally, output=Report)

    @pattern.start()
    async def first(ctx: Context[Note, Tally]) -> AwaitJob[Literal["second"]]:
        return AwaitJob(then="second")

    @pattern.node()
    async def second(ctx: Context[Note, Tally]) -> AwaitJob[Literal["last"]]:
        return AwaitJob(then="last")

    @pattern.node()
    async def last(ctx: Context[Note, Tally]) -> Finish[Report]:
        return Finish(Report(text="both"))

    return pattern


def walk(*, safe: bool) -> AnyPattern:
    """Two nodes; the second may run again or not."""
    pattern = Pattern("walk", input=Note, state=Tally, output=Report)

    @pattern.start()
    async def one(ctx: Context[Note, Tally]) -> Goto[Literal["two"]]:
        return Goto("two")

    @pattern.node(replay_safe=safe)
    async def two(ctx: Context[Note, Tally]) -> Finish[Report]:
        return Finish(Report(text="both"))

    return pattern


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def custody_relay(parts: Parts, clock: Clock | None = None) -> CustodyRelay:
    return CustodyRelay(
        parts.reads,
        parts.engine,
        parts.dead,
        parts.ghoul.custody,
        parts.boot_id,
        settle_seconds=0.0,
        patience=Patience(clock or Clock()),
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tries of a containment follow each other at once."""
    monkeypatch.setattr("runs.containment.delays", lambda: iter([0.0] * 10))


@pytest.mark.contract("BYD-6")
async def test_a_pause_doubles_up_to_its_bound_and_is_forgotten_with_its_run() -> None:
    clock, run_id = Clock(), uuid.uuid4()
    patience = Patience(clock)
    pauses: list[float] = []
    for _ in range(9):
        patience.failed(run_id)
        before = clock.now
        while not patience.is_due(run_id):
            clock.now += 0.5
        pauses.append(clock.now - before)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    patience.failed(run_id)
    patience.keep_only(set())
    assert patience.is_due(run_id)


@pytest.mark.contract("RLY-3", "RLY-4", "BYD-6")
async def test_hops_that_cannot_be_contained_keep_no_newer_one_from_its_end(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "PAGE", 2)
    stuck: set[uuid.UUID] = set()

    async def halt(run_id: uuid.UUID) -> None:
        if run_id in stuck:
            raise RuntimeError("no answer")

    parts = await build(solo(broken), waits=[Delegates(halt)])
    await job_table(parts)
    for _ in range(3):
        run_id = await parts.submit()
        stuck.add(run_id)
        with pytest.raises(ContainmentUncertain):
            await parts.perform(run_id)
    newest = await parts.submit()
    await parts.ledger.run(CLAIM, Claim(newest, 0, uuid.uuid4(), parts.boot_id))
    relay = custody_relay(parts)
    for _ in range(2):
        await relay.tick()
    assert (await parts.run(newest))["status"] == "failed"
    assert {(await parts.run(run_id))["status"] for run_id in stuck} == {"running"}


@pytest.mark.contract("BYD-6", "SET-9")
@pytest.mark.parametrize("written", [False, True], ids=["not written", "written without an answer"])
async def test_an_end_that_the_database_did_not_answer_is_written_and_told_once(
    build: Build, dsn: str, written: bool
) -> None:
    latch = Latch()

    async def wait(_: Ctx) -> str:
        await latch()
        return "finished"

    roads = ("lychd ledger settle", "lychd ledger slow")
    async with LossyWire(dsn) as wire:
        parts = await build(solo(wait), through=wire.dsn, patience=0.1)
        run_id = await parts.submit()
        task = asyncio.create_task(parts.perform(run_id))
        await latch.arrived()
        for name in roads:
            wire.cut(name)
        latch.release.set()
        with pytest.raises(Unknown):
            await task
        for name in roads:
            wire.mend(name)
        if written:
            # As the server leaves it that carried out the statement after we gave it up.
            await parts.rows(
                "update runs_run set status = 'done', output = '{\"text\": \"finished\"}', finished_at = now()"
                " where id = %s",
                run_id,
            )
            await parts.rows(
                "update runs_rundelivery set state = 'settled', settled_at = now() where run_id = %s", run_id
            )
        assert parts.bus.is_open(run_id)
        relay = custody_relay(parts)
        for _ in range(2):
            await relay.tick()
        run = await parts.run(run_id)
        assert (run["status"], run["output"]["text"]) == ("done", "finished")
        assert await parts.ends(run_id) == ["done"]
        assert [status for moved, status in parts.moves if moved == run_id] == ["running", "done"]
        assert not parts.bus.is_open(run_id)
        assert parts.ghoul.custody.outcomes == {}


@pytest.mark.contract("BYD-6")
@pytest.mark.parametrize("at", ["claim.committed", "drive.checkpointed", "settle.committed"])
async def test_a_hop_with_a_living_worker_is_never_touched(build: Build, at: str) -> None:
    parts = await build(walk(safe=True))
    run_id = await parts.submit("walk")
    latch = Latch()
    remove = seams.install(at, latch)
    carrying = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    remove()
    before = await parts.run(run_id), await parts.delivery(run_id)
    relay = custody_relay(parts)
    await relay.tick()
    assert (await parts.run(run_id), await parts.delivery(run_id)) == before
    assert (relay.ended, relay.errors) == (0, 0)
    latch.release.set()
    assert await carrying == {"outcome": "done"}
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("RLY-4", "BYD-6")
async def test_a_checkpoint_that_cannot_be_read_fails_its_own_run_and_keeps_no_other(build: Build) -> None:
    parts = await build(walk(safe=True))
    broken_one, other = await parts.submit("walk"), await parts.submit("walk")
    wait = '{"kind": "consent", "owner": "nobody"}'
    for run_id in (broken_one, other):
        claim = Claim(run_id, 0, uuid.uuid4(), parts.boot_id)
        assert isinstance(await parts.ledger.run(CLAIM, claim), Won)
        await parts.rows(
            "insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at, updated_at)"
            " values (%s, 'default', 0, %s, jsonb_build_array(jsonb_build_object('kind', 'node', 'status', 'created',"
            " 'node', 'two', 'visit', 1, 'hop', 0, 'state', '{}'::jsonb, 'wait', %s::jsonb)), now(), now())",
            run_id,
            claim.claim_id,
            wait if run_id == broken_one else "null",
        )
    await custody_relay(parts).tick()
    assert (await parts.run(broken_one))["error_code"] == "ghoul_lost"
    assert (await parts.run(other))["status"] == "queued"


@pytest.mark.contract("CAN-5", "RLY-3")
async def test_cancellations_that_are_stuck_keep_no_newer_one_from_its_end(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "PAGE", 2)
    monkeypatch.setattr(relays, "PAGE_OF_CLAIMED", 2)
    stuck: set[uuid.UUID] = set()

    async def halt(run_id: uuid.UUID) -> None:
        if run_id in stuck or not open_now.is_set():
            raise RuntimeError("no answer")

    open_now = asyncio.Event()
    parts = await build(waits=[Delegates(halt)])
    await job_table(parts)
    run_ids = [await parts.submit() for _ in range(5)]
    stuck.update(run_ids[:4])
    for run_id in run_ids:
        with pytest.raises(ContainmentUncertain):
            await parts.canceller.cancel(run_id, "olga")
    open_now.set()
    relay = CancelRelay(parts.reads, parts.engine, parts.canceller, settle_seconds=0.0, patience=Patience(Clock()))
    for _ in range(3):
        await relay.tick()
    assert [(await parts.run(run_id))["status"] for run_id in run_ids] == ["cancelling"] * 4 + ["cancelled"]


@pytest.mark.contract("CAN-4", "SET-12")
async def test_a_cancellation_whose_last_answer_was_lost_is_told_once(build: Build, dsn: str) -> None:
    async with LossyWire(dsn) as wire:
        parts = await build(through=wire.dsn, patience=0.1)
        run_id = await parts.submit()

        async def lose(_: str) -> None:
            wire.cut("lychd ledger slow")

        remove = seams.install("cancel.contained", lose)
        with pytest.raises(Unknown):
            await parts.canceller.cancel(run_id, "olga")
        remove()
        wire.mend("lychd ledger slow")
        # As the server leaves it that carried out the statement after we gave it up.
        await parts.rows("update runs_run set status = 'cancelled', finished_at = now() where id = %s", run_id)
        await parts.rows("update runs_rundelivery set state = 'settled', settled_at = now() where run_id = %s", run_id)
        relay = CancelRelay(parts.reads, parts.engine, parts.canceller, settle_seconds=0.0)
        for _ in range(2):
            await relay.tick()
        assert await parts.ends(run_id) == ["cancelled"]
        assert [status for moved, status in parts.moves if moved == run_id] == ["cancelling", "cancelled"]
        assert parts.canceller.untold == set()


@pytest.mark.contract("CAN-18", "CAN-10")
async def test_the_worker_of_the_hop_before_may_be_on_its_last_steps(build: Build) -> None:
    """It parked, and still looks at its wait: that is no uncertainty, only a moment."""
    delegates = Delegates()
    parts = await build(delegating(), waits=[delegates])
    await job_table(parts)
    run_id = await parts.submit("delegating")
    latch = Latch()
    remove = seams.install("park.look", latch)
    carrying = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    remove()
    job = await job_of(parts, run_id)
    await parts.rows("update test_job set status = 'succeeded' where id = %s", job["id"])
    kind = parts.waits.get("delegate")
    assert kind is not None
    assert await parts.engine.resume(kind, run_id, job["id"])
    aborted = Latch()
    unseam = seams.install("cancel.elected", aborted)
    cancelling = asyncio.create_task(parts.canceller.cancel(run_id, "olga"))
    await aborted.arrived()
    unseam()
    aborted.release.set()
    await eventually(lambda: parts.canceller.working)
    assert parts.ghoul.custody.live(run_id)
    latch.release.set()
    await carrying
    assert await cancelling == "cancelled"
    assert await parts.standing(run_id, 1) == ("cancelled", "settled")


@pytest.mark.contract("BYD-6", "CAN-2")
async def test_an_outcome_in_custody_gives_way_to_a_cancellation(build: Build) -> None:
    parts = await build(solo(broken), waits=[Delegates(Faulty(3, away))])
    await job_table(parts)
    run_id = await parts.submit()
    with pytest.raises(ContainmentUncertain):
        await parts.perform(run_id)
    assert [type(kept) for kept in parts.ghoul.custody.outcomes.values()] == [Settlement]
    assert await parts.canceller.cancel(run_id, "olga") == "cancelled"
    await custody_relay(parts).tick()
    assert parts.ghoul.custody.outcomes == {}
    assert await parts.ends(run_id) == ["cancelled"]


@pytest.mark.contract("SET-8", "CAN-12")
async def test_a_worker_that_is_cancelled_while_it_contains_goes_on_to_its_end(build: Build) -> None:
    latch = Latch()
    parts = await build(solo(broken), solo(echo, "other"), waits=[Delegates(latch)])
    await job_table(parts)
    run_id = await parts.submit()
    carrying = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    carrying.cancel()
    latch.release.set()
    assert await cancelled(carrying) is None
    assert await parts.standing(run_id) == ("failed", "settled")
    assert (await parts.run(run_id))["error_message"] == "ValueError: it broke"
