"""Two commits, the ledger's and the broker's: whatever happens between them, the hop stays recoverable."""

from __future__ import annotations

import asyncio
import uuid

import psycopg
import pytest

from runs import seams
from runs.engine import HopRef
from runs.ledger.outcomes import Won
from runs.ledger.publication import NOTE_PUBLICATION_ERROR, PublicationError
from tests.support.lossy_wire import LossyWire
from tests.support.vessel_parts import Build, Latch, Parts, a_caller, asks, cancelled
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def only(parts: Parts) -> uuid.UUID:
    """The one Run that there is."""
    (found,) = await parts.rows("select id from runs_run")
    return found["id"]


@pytest.mark.contract("ADM-14", "ADM-15")
async def test_a_broker_that_refuses_leaves_a_hop_to_repair_and_submit_returns_the_handle(parts: Parts) -> None:
    """S013"""
    async with parts.refusing("saq_jobs", "true", "the broker is ill"):
        submitted = await parts.engine.submit(a_caller(), asks())
    delivery = await parts.delivery(submitted.run_id)
    assert await parts.standing(submitted.run_id) == ("queued", "pending")
    assert delivery["publish_attempts"] == 1
    assert "the broker is ill" in delivery["last_error"]
    assert parts.bus.is_open(submitted.run_id)
    await parts.bus.settle(submitted.run_id)
    assert await parts.ends(submitted.run_id) == []
    assert await parts.engine.publish(HopRef(submitted.run_id, 0, "runs", 50))
    delivery = await parts.delivery(submitted.run_id)
    assert (delivery["state"], delivery["publish_attempts"], delivery["last_error"]) == ("published", 2, None)


@pytest.mark.contract("ADM-14")
async def test_a_broker_whose_connections_are_killed_leaves_a_hop_to_repair(parts: Parts) -> None:
    async def kill(_: str) -> None:
        await parts.rows(
            "select pg_terminate_backend(pid, 1000) from pg_stat_activity"
            " where datname = current_database() and application_name = 'lychd publication'"
        )

    await parts.submit()
    remove = seams.install("broker.publish", kill)
    try:
        run_id = await parts.submit()
    finally:
        remove()
    delivery = await parts.delivery(run_id)
    assert (delivery["state"], delivery["publish_attempts"]) == ("pending", 1)
    assert delivery["last_error"]
    # Every connection of the pool was killed, so more than one try may meet a dead one.
    assert await eventually(lambda: parts.engine.publish(HopRef(run_id, 0, "runs", 50)))


@pytest.mark.contract("ADM-14", "ADM-15", "ADM-18")
async def test_a_caller_who_leaves_while_the_broker_hangs_leaves_hop_and_channel(parts: Parts) -> None:
    """S014"""
    async with await psycopg.AsyncConnection.connect(parts.dsn) as holder:
        await holder.execute("lock table saq_jobs in access exclusive mode")
        task = asyncio.create_task(parts.engine.submit(a_caller(), asks()))
        await eventually(lambda: parts.waits_for_lock("lychd publication"))
        task.cancel()
        assert await cancelled(task) is None
        run_id = await only(parts)
        delivery = await parts.delivery(run_id)
        assert await parts.standing(run_id) == ("queued", "pending")
        assert delivery["publish_attempts"] == 1
        assert "went away" in delivery["last_error"]
        assert parts.bus.is_open(run_id)
    assert await parts.engine.publish(HopRef(run_id, 0, "runs", 50))
    assert await parts.standing(run_id) == ("queued", "published")


@pytest.mark.contract("ADM-15", "ADM-17")
async def test_a_broker_that_hangs_is_given_up_after_its_time(build: Build) -> None:
    """S236"""
    parts = await build(within=0.3)
    async with await psycopg.AsyncConnection.connect(parts.dsn) as holder:
        await holder.execute("lock table saq_jobs in access exclusive mode")
        async with asyncio.timeout(5):
            run_id = await parts.submit()
        delivery = await parts.delivery(run_id)
        assert (delivery["state"], delivery["publish_attempts"]) == ("pending", 1)
        assert "0.3 s" in delivery["last_error"]


@pytest.mark.contract("ADM-14", "ADM-15", "CLM-6")
async def test_a_run_that_was_claimed_before_the_brokers_answer_came_is_not_touched_by_its_loss(parts: Parts) -> None:
    """S015: the broker accepts, a worker claims, then the publisher's connection is lost."""
    work = Latch()

    async def lost(_: str) -> None:
        run_id = await only(parts)
        carrying.append(asyncio.create_task(parts.perform(run_id)))
        await work.arrived()
        raise psycopg.OperationalError("the connection is lost")

    carrying: list[asyncio.Task[object]] = []
    removers = [seams.install("publish.after", lost), seams.install("claim.committed", work)]
    try:
        run_id = (await parts.engine.submit(a_caller(), asks())).run_id
        delivery = await parts.delivery(run_id)
        assert await parts.standing(run_id) == ("running", "claimed")
        assert (delivery["publish_attempts"], delivery["last_error"]) == (0, None)
    finally:
        for remove in removers:
            remove()
        work.release.set()
    assert await carrying[0] == {"outcome": "done"}
    assert await parts.standing(run_id) == ("done", "settled")


@pytest.mark.contract("ADM-13", "CLM-6")
@pytest.mark.parametrize("patience", [15.0, 0.0])
async def test_a_mark_whose_answer_is_lost_leaves_a_claimable_run(build: Build, dsn: str, patience: float) -> None:
    async with LossyWire(dsn) as wire:
        parts = await build(through=wire.dsn, patience=patience)
        await parts.submit()
        wire.lose_answers("lychd ledger mark_published")
        run_id = await parts.submit()
        assert wire.lost == 1
        assert await parts.standing(run_id) == ("queued", "published")
        assert await parts.perform(run_id) == {"outcome": "done"}


@pytest.mark.contract("CLM-6")
async def test_a_hop_whose_mark_never_happened_is_claimed_all_the_same(parts: Parts) -> None:
    async with parts.refusing("runs_rundelivery", "new.state = 'published'"):
        run_id = await parts.submit()
    assert await parts.standing(run_id) == ("queued", "pending")
    assert len(await parts.jobs(run_id)) == 1
    assert await parts.perform(run_id) == {"outcome": "done"}


@pytest.mark.contract("ADM-14")
async def test_an_answer_of_the_ledger_that_is_lost_does_not_lose_or_double_the_admission(
    build: Build, dsn: str
) -> None:
    """The insert runs again on a new connection, finds its own row, and the submission goes on (ruling 6)."""
    async with LossyWire(dsn) as wire:
        parts = await build(through=wire.dsn)
        await parts.submit()
        for key in (None, "key"):
            kept: list[uuid.UUID] = []

            async def keep(run_id: uuid.UUID, kept: list[uuid.UUID] = kept) -> None:
                kept.append(run_id)

            before = wire.lost
            wire.lose_answers("lychd ledger admit")
            submitted = await parts.engine.submit(a_caller(), asks(key=key), keep)
            assert wire.lost == before + 1
            assert kept == [submitted.run_id]
            assert submitted.replayed == (key is not None)
            assert await parts.standing(submitted.run_id) == ("queued", "published")
    assert await parts.runs_stored() == 3


@pytest.mark.contract("ADM-12")
async def test_a_lost_answer_and_a_caller_who_left_refuse_the_held_admission(build: Build, dsn: str) -> None:
    async with LossyWire(dsn) as wire:
        parts = await build(through=wire.dsn)
        await parts.submit()
        first = await only(parts)

        async def keep(run_id: uuid.UUID) -> None:
            raise AssertionError(run_id)

        async with await psycopg.AsyncConnection.connect(parts.dsn) as holder:
            await holder.execute("lock table runs_rundelivery in share row exclusive mode")
            wire.lose_answers("lychd ledger admit")
            task = asyncio.create_task(parts.engine.submit(a_caller(), asks(), keep))
            await eventually(lambda: parts.waits_for_lock("lychd ledger admit"))
            task.cancel()
        assert await cancelled(task) is None
        assert wire.lost == 1
        (mine,) = await parts.rows("select id from runs_run where id <> %s", first)
        assert await parts.standing(mine["id"]) == ("failed", "settled")


@pytest.mark.contract("ADM-13")
async def test_a_shut_publication_gate_leaves_the_hop_to_the_relay(parts: Parts) -> None:
    parts.publish_gate.close("guard", "lost")
    run_id = await parts.submit()
    assert await parts.standing(run_id) == ("queued", "pending")
    assert not await parts.jobs()
    parts.publish_gate.open("guard")
    assert await parts.engine.publish(HopRef(run_id, 0, "runs", 50))
    assert await parts.standing(run_id) == ("queued", "published")


@pytest.mark.contract("ADM-13", "ADM-15")
async def test_a_spent_record_of_the_broker_is_left_to_a_rotation(parts: Parts) -> None:
    run_id = await parts.submit()
    await parts.rows("update saq_jobs set status = 'complete' where key = %s", f"run:{run_id}:0")
    assert not await parts.engine.publish(HopRef(run_id, 0, "runs", 50))
    delivery = await parts.delivery(run_id)
    assert "spent" in delivery["last_error"]
    assert (delivery["state"], delivery["publish_attempts"]) == ("published", 2)


@pytest.mark.contract("ADM-15", "ADM-16")
async def test_a_note_never_touches_a_hop_that_was_taken(parts: Parts) -> None:
    run_id = await parts.carried()
    before = await parts.delivery(run_id)
    outcome = await parts.ledger.run(NOTE_PUBLICATION_ERROR, PublicationError(run_id, 0, "late"))
    assert not isinstance(outcome, Won)
    assert await parts.delivery(run_id) == before


async def test_an_error_without_a_word_is_still_recorded(parts: Parts) -> None:
    async def wordless(_: str) -> None:
        raise psycopg.OperationalError("")

    remove = seams.install("publish.before", wordless)
    try:
        run_id = await parts.submit()
    finally:
        remove()
    assert (await parts.delivery(run_id))["last_error"] == "OperationalError"
