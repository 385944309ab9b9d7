"""One Vessel a database: the lock, its loss and its return, and what a Vessel may not do without it."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lychd.glue import GUARD_LOST
from lychd.postgres import launcher
from lychd.postgres.guard import LOCK_KEY, Guard, GuardEvents, PoolerInBetween, VesselRunning
from runs import ids
from runs.broker.publish import Publisher
from runs.errors import NotAdmitting
from runs.ledger.admit import ADMIT
from runs.ledger.boots import BootRecord
from runs.ledger.claim import CLAIM, Claim
from runs.ledger.outcomes import Lost, Reason, Won
from runs.ledger.rotate import ROTATE, Rotation
from tests.support.between import between
from tests.support.clusters import migrate
from tests.support.desk import a_desk, an_admission
from tests.support.vessels import Life, Watcher, living, watching
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


def a_boot(pid: int = 4711) -> BootRecord:
    return BootRecord(ids.mint(), "the-host", pid, "durable", "0.1.0")


class Heard:
    """What a guard told its owner, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.events = GuardEvents(
            lambda: self.words.append("lost"),
            lambda: self.words.append("regained"),
            lambda reason: self.words.append(f"gone: {reason}"),
        )

    def gone(self) -> bool:
        return bool(self.words) and self.words[-1].startswith("gone")


@asynccontextmanager
async def a_guard(conninfo: str, *, patience: float = 15.0) -> AsyncIterator[tuple[Guard, BootRecord]]:
    boot = a_boot()
    guard = Guard(conninfo, boot, patience=patience)
    await guard.acquire()
    try:
        yield guard, boot
    finally:
        await guard.release()


class Heir:
    """A session that waits for the lock and has it as soon as its holder's session is dead."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._waiting = asyncio.ensure_future(connection.execute("select pg_advisory_lock(%s::bigint)", (LOCK_KEY,)))

    async def inherits(self) -> None:
        await self._waiting

    async def leaves(self) -> None:
        await self._connection.execute("select pg_advisory_unlock_all()")


async def name_another_boot(watcher: Watcher) -> uuid.UUID:
    """What a Vessel does that took the database."""
    boot = a_boot()
    await watcher.rows(
        "insert into runs_boot (id, host, pid, profile, version, url, started_at, report) "
        "values (%s, 'other', 1, 'durable', '0', '', now(), '{}')",
        boot.id,
    )
    await watcher.rows("update runs_vesselslot set boot_id = %s", boot.id)
    return boot.id


@asynccontextmanager
async def an_heir(url: str, watcher: Watcher) -> AsyncIterator[Heir]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, application_name="heir") as connection:
        heir = Heir(connection)

        async def waits() -> bool:
            return bool(await watcher.one("select count(*) from pg_locks where locktype = 'advisory' and not granted"))

        await eventually(waits)
        yield heir


async def kill_guard(watcher: Watcher) -> None:
    assert await watcher.kill("lychd guard") == 1


# Taking it


@pytest.mark.contract("BYD-1")
async def test_a_second_vessel_is_refused_and_the_first_one_named(vessel_url: str, watcher: Watcher) -> None:
    async with a_guard(vessel_url) as (_, first):
        with pytest.raises(VesselRunning) as caught:
            await Guard(vessel_url, a_boot()).acquire()
        since = await watcher.one("select started_at from runs_boot where id = %s", first.id)
        assert caught.value.detail == (
            f"Another Vessel holds this database: host the-host, pid 4711, boot {first.id}, "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC."
        )
        assert abs((datetime.now(UTC) - since).total_seconds()) < 60
        assert await watcher.one("select count(*) from runs_boot") == 1
        assert await watcher.backends("lychd guard") == ["lychd guard"]


@pytest.mark.contract("BYD-1")
async def test_of_many_that_start_at_once_one_gets_the_database(vessel_url: str, watcher: Watcher) -> None:
    guards = [Guard(vessel_url, a_boot(pid)) for pid in range(8)]
    outcomes = await asyncio.gather(*(guard.acquire() for guard in guards), return_exceptions=True)
    assert [isinstance(outcome, VesselRunning) for outcome in outcomes].count(True) == 7
    winner = outcomes.index(None)
    held = await watcher.one("select b.pid from runs_vesselslot v join runs_boot b on b.id = v.boot_id")
    assert held == winner
    for guard in guards:
        await guard.release()


@pytest.mark.contract("BYD-1")
async def test_a_guard_that_was_let_go_can_be_taken_and_the_slot_names_the_new_boot(
    vessel_url: str, watcher: Watcher
) -> None:
    async with a_guard(vessel_url):
        pass
    async with a_guard(vessel_url) as (guard, second):
        assert guard.held
        assert await watcher.one("select boot_id from runs_vesselslot") == second.id
    assert not guard.held


@pytest.mark.contract("BYD-1")
async def test_a_holder_whose_process_is_gone_is_no_holder(vessel_url: str, watcher: Watcher) -> None:
    async with a_guard(vessel_url):
        await kill_guard(watcher)

        async def gone() -> bool:
            return not await watcher.backends("lychd guard")

        await eventually(gone)
        async with a_guard(vessel_url) as (guard, _):
            assert guard.held


@pytest.mark.contract("BYD-1")
async def test_two_databases_of_one_server_have_a_vessel_each(vessel_url: str, empty_url: str) -> None:
    async with (
        await psycopg.AsyncConnection.connect(empty_url, autocommit=True) as other,
        a_guard(vessel_url),
    ):
        found = await other.execute("select pg_try_advisory_lock(%s::bigint)", (LOCK_KEY,))
        assert await found.fetchone() == (True,)


@pytest.mark.contract("BYD-1")
async def test_a_pooler_in_between_is_refused_in_a_sentence(vessel_url: str, watcher: Watcher) -> None:
    async with between(vessel_url, pooled=True) as pooler:
        with pytest.raises(PoolerInBetween, match="A connection pooler stands between"):
            await Guard(pooler.conninfo, a_boot()).acquire()
    assert await watcher.one("select count(*) from runs_boot") == 0


@pytest.mark.contract("BYD-1")
async def test_a_relay_of_bytes_that_is_no_pooler_is_a_direct_connection(vessel_url: str) -> None:
    async with between(vessel_url) as relay, a_guard(relay.conninfo) as (guard, _):
        assert guard.held


# Losing it


@pytest.mark.contract("BYD-1")
async def test_a_lost_guard_is_told_at_once_and_retaken(vessel_url: str, watcher: Watcher) -> None:
    async with a_guard(vessel_url) as (guard, _):
        heard = Heard()
        guard.watch(heard.events)
        for _ in range(2):
            heard.words.clear()
            await kill_guard(watcher)
            await eventually(lambda: heard.words == ["lost", "regained"])
            assert guard.held


@pytest.mark.contract("BYD-1")
async def test_a_guard_that_another_session_keeps_is_given_up_when_the_patience_ends(
    vessel_url: str, watcher: Watcher
) -> None:
    async with a_guard(vessel_url, patience=0.4) as (guard, _), an_heir(vessel_url, watcher) as heir:
        heard = Heard()
        watching_it = guard.watch(heard.events)
        await kill_guard(watcher)
        await heir.inherits()
        await eventually(heard.gone)
        assert heard.words == ["lost", "gone: the lock is held by another session"]
        assert not guard.held
        await watching_it


@pytest.mark.contract("BYD-1")
async def test_a_slot_that_another_boot_took_meanwhile_ends_it_without_waiting(
    vessel_url: str, watcher: Watcher
) -> None:
    async with a_guard(vessel_url, patience=600) as (guard, _), an_heir(vessel_url, watcher) as heir:
        heard = Heard()
        guard.watch(heard.events)
        await kill_guard(watcher)
        await heir.inherits()
        await name_another_boot(watcher)
        await eventually(heard.gone)
        assert heard.words == ["lost", "gone: another Vessel took the database meanwhile"]


@pytest.mark.contract("BYD-1")
async def test_the_free_lock_does_not_help_if_the_slot_names_another_boot(vessel_url: str, watcher: Watcher) -> None:
    async with a_guard(vessel_url, patience=600) as (guard, _), an_heir(vessel_url, watcher) as heir:
        heard = Heard()
        await name_another_boot(watcher)
        guard.watch(heard.events)
        await kill_guard(watcher)
        await heir.inherits()
        await heir.leaves()
        await eventually(heard.gone)
        assert heard.words[-1] == "gone: another Vessel took the database meanwhile"
        assert await watcher.backends("lychd guard") == []


@pytest.mark.contract("BYD-1")
async def test_a_server_that_does_not_come_back_ends_it_within_the_patience(vessel_url: str) -> None:
    async with between(vessel_url) as relay, a_guard(relay.conninfo, patience=0.4) as (guard, _):
        heard = Heard()
        guard.watch(heard.events)
        await relay.cut()
        await eventually(heard.gone)
        assert heard.words[0] == "lost"
        assert "refused" in heard.words[-1]


async def test_a_guard_can_be_let_go_while_it_is_being_retaken(vessel_url: str, watcher: Watcher) -> None:
    async with a_guard(vessel_url) as (guard, _), an_heir(vessel_url, watcher):
        heard = Heard()
        guard.watch(heard.events)
        await kill_guard(watcher)
        await eventually(lambda: heard.words == ["lost"])
        await guard.release()
        assert (heard.words, guard.held) == (["lost"], False)

        async def none() -> bool:
            return not await watcher.backends("lychd guard")

        await eventually(none)


# What a Vessel does without it


async def ended(life: Life, watcher: Watcher, run: uuid.UUID) -> None:
    async def done() -> bool:
        return (await watcher.run(run))[0] == "done"

    await eventually(done)


@pytest.mark.contract("BYD-1", "MUT-2", "CLM-3")
async def test_without_the_guard_nothing_is_admitted_published_or_claimed_and_afterwards_all_goes_on(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(vessel_url, monkeypatch=monkeypatch) as life, an_heir(vessel_url, watcher) as heir:
        vessel = life.vessel
        await ended(life, watcher, await life.submit("quick"))
        await kill_guard(watcher)
        await heir.inherits()
        await eventually(lambda: not vessel.claim_gate.is_open and not vessel.publish_gate.is_open)
        with pytest.raises(NotAdmitting):
            await life.submit("quick")
        failed = {check.name: check.reason for check in await vessel.readiness() if not check.ok}
        assert failed == {
            "admitting": "the one-Vessel guard was lost",
            "guard": "the one-Vessel guard is not held",
            "claim gate": "guard: the one-Vessel guard was lost",
            "publish gate": "guard: the one-Vessel guard was lost",
        }
        # The broker hands the job out all the same; it waits before the claim.
        admission = an_admission(manifest_json=await watcher.one("select manifest::text from runs_run limit 1"))
        assert isinstance(await vessel.ledger.run(ADMIT, admission), Won)
        publisher = Publisher(vessel.conninfo)
        await publisher.connect()
        await publisher.enqueue(admission.run_id, 0, "runs", 50)
        await publisher.close()
        await eventually(lambda: vessel.lanes.queues["runs"].pump.live)
        assert await watcher.run(admission.run_id) == ("queued", 0, "pending")
        await heir.leaves()
        await ended(life, watcher, admission.run_id)
        assert (vessel.claim_gate.is_open, vessel.publish_gate.is_open) == (True, True)
        await ended(life, watcher, await life.submit("quick"))
        assert all(check.ok for check in await vessel.readiness())
        assert life.asked == []


@pytest.mark.contract("BYD-1")
async def test_a_vessel_whose_database_was_taken_asks_to_be_ended_and_leaves_at_once(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        living(vessel_url, monkeypatch=monkeypatch, drain_seconds=600.0) as life,
        an_heir(vessel_url, watcher) as heir,
    ):
        run = await life.submit("held")

        async def claimed() -> bool:
            return (await watcher.run(run))[0] == "running"

        await eventually(claimed)
        await kill_guard(watcher)
        await heir.inherits()
        await name_another_boot(watcher)
        await eventually(lambda: life.asked)
        assert life.asked == [
            (GUARD_LOST, "The one-Vessel guard is lost for good: another Vessel took the database meanwhile.")
        ]
        assert not life.vessel.claim_gate.is_open
        async with asyncio.timeout(20):
            await life.stop()
        assert (await watcher.run(run))[0] != "queued"


@pytest.mark.contract("BYD-1", "CLM-4")
async def test_admit_claim_and_rotate_are_refused_while_the_slot_names_another_boot(
    vessel_url: str, watcher: Watcher
) -> None:
    async with (
        a_desk(vessel_url, watcher) as desk,
        await psycopg.AsyncConnection.connect(vessel_url, autocommit=True) as connection,
    ):
        mine, run = desk.boot_id, await desk.admit()
        heir = Heir(connection)
        await heir.inherits()
        other = await name_another_boot(watcher)
        claim = Claim(run, 0, uuid.uuid4(), mine)
        lost = await desk.ledger.run(CLAIM, claim)
        assert isinstance(lost, Lost)
        assert (lost.reason, lost.standing and lost.standing.current_boot) == (Reason.OTHER_BOOT, other)
        lost = await desk.ledger.run(ROTATE, Rotation(run, 0, mine, "why not"))
        assert isinstance(lost, Lost)
        assert lost.reason == Reason.OTHER_BOOT
        refused = an_admission(boot_id=mine)
        assert isinstance(await desk.ledger.run(ADMIT, refused), Lost)
        assert await watcher.run(refused.run_id) is None
        assert await watcher.run(run) == ("queued", 0, "pending")
        await watcher.rows("update runs_vesselslot set boot_id = %s", mine)
        assert isinstance(await desk.ledger.run(ADMIT, refused), Won)
        assert isinstance(await desk.ledger.run(CLAIM, claim), Won)


@pytest.mark.contract("BYD-2")
async def test_every_claim_records_its_boot(vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    boots = []
    for _ in range(2):
        async with living(vessel_url, monkeypatch=monkeypatch) as life:
            run = await life.submit("quick")
            await ended(life, watcher, run)
            boots.append(life.vessel.boot_id)
            assert await watcher.one("select boot_id from runs_rundelivery where run_id = %s", run) == boots[-1]
    assert boots[0] != boots[1]


@pytest.mark.xdist_group("processes")
@pytest.mark.contract("BYD-1")
async def test_a_restart_of_postgresql_is_outlived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any
) -> None:
    cluster = await asyncio.to_thread(launcher.ensure, tmp_path)
    second = None
    try:
        with django_db_blocker.unblock():
            await asyncio.to_thread(migrate, cluster.url)
        async with living(cluster.url, monkeypatch=monkeypatch) as life:
            async with watching(cluster.url) as eyes:
                await ended(life, eyes, await life.submit("quick"))
            os.kill(cluster.pid, signal.SIGINT)
            await eventually(lambda: not life.vessel.claim_gate.is_open, within=20)
            await asyncio.to_thread(lambda: cluster.process and cluster.process.wait(30))
            second = await asyncio.to_thread(launcher.ensure, tmp_path)
            await eventually(lambda: life.vessel.claim_gate.is_open, within=20)
            async with watching(cluster.url) as eyes:
                await ended(life, eyes, await life.submit("three"))
            assert life.asked == []
    finally:
        if second is not None:
            second.stop()
        cluster.stop()
