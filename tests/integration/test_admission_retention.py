"""What a caller keeps about its Run: held until kept, refused when it cannot be kept, never stranded in silence."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from runs import seams
from runs.errors import Corrupt, LychdError, StrandedAdmission
from runs.ledger.outcomes import Lost, Won
from runs.ledger.release import REFUSE, RELEASE, Refusal, Release
from tests.support.lossy_wire import LossyWire
from tests.support.vessel_parts import Build, Latch, Parts, a_caller, asks, cancelled
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def only(parts: Parts) -> uuid.UUID:
    """The one Run that there is."""

    async def look() -> uuid.UUID | None:
        found = await parts.rows("select id from runs_run")
        return found[0]["id"] if found else None

    return await eventually(look)


@pytest.mark.contract("ADM-4", "ADM-5", "ADM-6")
async def test_the_hook_sees_the_committed_run_held_and_the_broker_empty(parts: Parts) -> None:
    """S005"""
    seen: list[object] = []

    async def keep(run_id: uuid.UUID) -> None:
        seen.extend([run_id, await parts.standing(run_id), await parts.jobs(), parts.bus.is_open(run_id)])

    submitted = await parts.engine.submit(a_caller(), asks(), keep)
    assert seen == [submitted.run_id, ("queued", "held"), {}, False]
    assert await parts.standing(submitted.run_id) == ("queued", "published")
    assert parts.bus.is_open(submitted.run_id)


@pytest.mark.contract("ADM-7", "SET-6", "SET-11", "SET-12")
async def test_a_hook_that_raises_fails_the_run_and_its_error_comes_out(parts: Parts) -> None:
    """S006"""

    async def keep(run_id: uuid.UUID) -> None:
        del run_id
        raise ValueError("the disk\0 is full")

    caller = a_caller(tenant="north")
    with pytest.raises(ValueError, match="disk"):
        await parts.engine.submit(caller, asks(), keep)
    run_id = await only(parts)
    run = await parts.run(run_id)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert run["error_code"] == "retention_failed"
    assert "the disk\\u0000 is full" in run["error_message"]
    assert not await parts.jobs()
    await parts.bus.settle(run_id)
    assert await parts.ends(run_id) == ["failed"]
    assert [row["tenant"] for row in await parts.rows("select tenant from runs_step")] == ["north"]
    assert not parts.bus.is_open(run_id)


@pytest.mark.contract("ADM-8")
@pytest.mark.parametrize("fails", [False, True])
async def test_a_caller_cancelled_in_the_hook_waits_for_it_and_the_admission_is_refused(
    parts: Parts, fails: bool
) -> None:
    """S008"""
    latch, ended = Latch(), False

    async def keep(_: uuid.UUID) -> None:
        nonlocal ended
        await latch()
        ended = True
        if fails:
            raise ValueError("no")

    task = asyncio.create_task(parts.engine.submit(a_caller(), asks(), keep))
    await latch.arrived()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    latch.release.set()
    assert await cancelled(task) is None
    assert ended
    run_id = await only(parts)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert not await parts.jobs()


@pytest.mark.contract("ADM-8", "ADM-12")
@pytest.mark.parametrize("with_session", [False, True])
@pytest.mark.parametrize("held", [False, True])
async def test_a_caller_cancelled_while_the_admission_commits(parts: Parts, held: bool, with_session: bool) -> None:
    """S009: held → refused and the hook is never called; without a hook it stays queued for the relay."""
    called: list[uuid.UUID] = []

    async def keep(run_id: uuid.UUID) -> None:
        called.append(run_id)

    blocked = "lychd ledger scripts" if with_session else "lychd ledger admit"
    asked = asks(session=uuid.uuid4()) if with_session else asks()
    async with await psycopg.AsyncConnection.connect(parts.dsn) as holder:
        # The insert waits for the lock on the table, so the cancellation finds the statement on its way.
        await holder.execute("lock table runs_rundelivery in share row exclusive mode")
        task = asyncio.create_task(parts.engine.submit(a_caller(), asked, keep if held else None))
        await eventually(lambda: parts.waits_for_lock(blocked))
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
    assert await cancelled(task) is None
    run_id = await only(parts)
    kept_queued = not held and not with_session
    assert await parts.standing(run_id) == (("queued", "pending") if kept_queued else ("failed", "settled"))
    assert not called
    assert not await parts.rows("select 1 from runs_sessionturn")
    assert not await parts.jobs()


@pytest.mark.contract("ADM-9")
async def test_a_refusal_that_fails_twice_succeeds_at_the_third_try(parts: Parts) -> None:
    async def keep(run_id: uuid.UUID) -> None:
        del run_id
        raise ValueError("no")

    # A counter of its own that no rollback takes back.
    await parts.rows("create sequence tries")
    try:
        async with parts.refusing("runs_run", "new.status = 'failed' and nextval('tries') < 3"):
            with pytest.raises(ValueError, match="no"):
                await parts.engine.submit(a_caller(), asks(), keep)
        assert (await parts.rows("select last_value from tries"))[0]["last_value"] == 3
    finally:
        await parts.rows("drop sequence tries")
    assert await parts.standing(await only(parts)) == ("failed", "settled")


@pytest.mark.contract("ADM-9")
async def test_a_refusal_that_never_succeeds_is_loud_and_leaves_the_hop_held(parts: Parts) -> None:
    async def keep(run_id: uuid.UUID) -> None:
        del run_id
        raise ValueError("no")

    async with parts.refusing("runs_run", "new.status = 'failed'"):
        with pytest.raises(StrandedAdmission) as stranded:
            await parts.engine.submit(a_caller(), asks(), keep)
    run_id = await only(parts)
    assert str(run_id) in stranded.value.detail
    assert await parts.standing(run_id) == ("queued", "held")
    assert not await parts.jobs()


@pytest.mark.contract("ADM-10")
@pytest.mark.parametrize("cancel", [False, True])
async def test_a_release_that_fails_without_effect_refuses_the_admission(parts: Parts, cancel: bool) -> None:
    """S010, and the caller gone meanwhile"""
    latch = Latch()
    remove = seams.install("release.before", latch)

    async def keep(run_id: uuid.UUID) -> None:
        del run_id

    try:
        async with parts.refusing("runs_rundelivery", "new.state = 'pending'", "no release today"):
            task = asyncio.create_task(parts.engine.submit(a_caller(), asks(), keep))
            await latch.arrived()
            if cancel:
                task.cancel()
                await asyncio.sleep(0)
            latch.release.set()
            if cancel:
                await cancelled(task)
                assert task.cancelled()
            else:
                with pytest.raises(psycopg.Error, match="no release today"):
                    await task
    finally:
        remove()
    run_id = await only(parts)
    assert await parts.standing(run_id) == ("failed", "settled")
    assert not await parts.jobs()


@pytest.mark.contract("ADM-10")
@pytest.mark.parametrize("patience", [15.0, 0.0])
async def test_a_release_whose_answer_is_lost_is_an_admission(build: Build, dsn: str, patience: float) -> None:
    """S011: once with a ledger that looks again by itself, once with one that gives up at once."""
    async with LossyWire(dsn) as wire:
        parts = await build(through=wire.dsn, patience=patience)

        async def keep(run_id: uuid.UUID) -> None:
            del run_id
            wire.lose_answers("lychd ledger slow")

        # The slow road's connection is there already, so that what is lost is the release's answer.
        await parts.ledger.run(RELEASE, Release(uuid.uuid4(), 0))
        submitted = await parts.engine.submit(a_caller(), asks(), keep)
        assert wire.lost == 1
        assert await parts.standing(submitted.run_id) == ("queued", "published")
        assert parts.bus.is_open(submitted.run_id)
        assert len(await parts.jobs(submitted.run_id)) == 1


@pytest.mark.contract("ADM-10")
async def test_a_run_that_vanished_before_its_release_is_a_loud_error(parts: Parts) -> None:
    async def keep(run_id: uuid.UUID) -> None:
        await parts.rows("delete from runs_rundelivery where run_id = %s", run_id)
        await parts.rows("delete from runs_run where id = %s", run_id)

    with pytest.raises(Corrupt, match="vanished"):
        await parts.engine.submit(a_caller(), asks(), keep)
    assert not await parts.jobs()


@pytest.mark.contract("ADM-10", "ADM-16")
@pytest.mark.parametrize("answer", ["lost", "given"])
async def test_a_run_cancelled_while_its_hook_runs_stays_cancelled(build: Build, dsn: str, answer: str) -> None:
    """S035: the release finds the hop settled, whether its answer arrives or not."""
    async with LossyWire(dsn) as wire:
        parts = await build(through=wire.dsn, patience=0.0)
        await parts.ledger.run(RELEASE, Release(uuid.uuid4(), 0))

        async def keep(run_id: uuid.UUID) -> None:
            await _cancel(parts, run_id)
            if answer == "lost":
                wire.lose_answers("lychd ledger slow")

        submitted = await parts.engine.submit(a_caller(), asks(), keep)
        run = await parts.run(submitted.run_id)
        assert await parts.standing(submitted.run_id) == ("cancelled", "settled")
        assert run["error_code"] is None
        assert not await parts.jobs()
        assert not parts.bus.is_open(submitted.run_id)


@pytest.mark.contract("ADM-10")
async def test_a_run_cancelled_while_its_hook_runs_and_fails_stays_cancelled(parts: Parts) -> None:
    async def keep(run_id: uuid.UUID) -> None:
        await _cancel(parts, run_id)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await parts.engine.submit(a_caller(), asks(), keep)
    assert await parts.standing(await only(parts)) == ("cancelled", "settled")


async def _cancel(parts: Parts, run_id: uuid.UUID) -> None:
    async with parts.watcher.transaction():
        await parts.rows("update runs_rundelivery set state = 'settled', settled_at = now() where run_id = %s", run_id)
        await parts.rows("update runs_run set status = 'cancelled', finished_at = now() where id = %s", run_id)


@pytest.mark.contract("ADM-11")
async def test_of_release_and_refusal_exactly_one_wins(parts: Parts) -> None:
    latch = Latch()
    tasks: list[asyncio.Task[object]] = []
    for _ in range(8):
        tasks.append(asyncio.create_task(parts.engine.submit(a_caller(), asks(), latch)))  # noqa: PERF401 - started one by one
    await eventually(lambda: latch.passes == 8)
    runs = [row["id"] for row in await parts.rows("select id from runs_run")]
    other = [Release, Refusal]
    outcomes: dict[uuid.UUID, list[object]] = {run_id: [] for run_id in runs}

    async def race(run_id: uuid.UUID, turn: int) -> None:
        edges: list[Callable[[], Awaitable[object]]] = [
            lambda: parts.ledger.run(RELEASE, Release(run_id, 0)),
            lambda: parts.ledger.run(REFUSE, Refusal(run_id, 0, "retention_failed", "no")),
        ]
        if turn % 2:
            edges.reverse()
        outcomes[run_id] = await asyncio.gather(*(edge() for edge in edges))

    assert len(other) == 2
    await asyncio.gather(*(race(run_id, turn) for turn, run_id in enumerate(runs)))
    latch.release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    for run_id, answers in outcomes.items():
        assert sorted(type(answer).__name__ for answer in answers) == [Lost.__name__, Won.__name__]
        status, state = await parts.standing(run_id)
        assert (status, state) in {("failed", "settled"), ("queued", "published")}
        assert len(await parts.jobs(run_id)) == (status == "queued")


async def test_a_hook_that_cancels_itself_is_a_hook_that_failed(parts: Parts) -> None:
    async def keep(run_id: uuid.UUID) -> None:
        del run_id
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await parts.engine.submit(a_caller(), asks(), keep)
    assert await parts.standing(await only(parts)) == ("failed", "settled")
    assert not await parts.jobs()


async def test_a_hook_that_gives_back_an_error_of_ours_keeps_its_code(parts: Parts) -> None:
    async def keep(run_id: uuid.UUID) -> None:
        del run_id
        raise LychdError("not kept")

    with pytest.raises(LychdError, match="not kept"):
        await parts.engine.submit(a_caller(), asks(), keep)
    assert (await parts.run(await only(parts)))["error_message"] == "Retention failed: not kept"
