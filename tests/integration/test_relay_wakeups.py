"""Surfaces without a broker leave a word in their transaction; the Vessel hears it and publishes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import structlog
from django.db import connections, transaction

from lychd import glue
from runs import payloads
from runs.ledger.admit import ADMIT
from runs.ledger.notify import CHANNEL, notify_hop
from runs.ledger.outcomes import Won
from runs.ledger.release import RELEASE, Release
from runs.ledger.runner import run_once
from runs.relays.delivery import DeliveryRelay
from runs.relays.supervisor import Supervisor
from runs.relays.wakeups import Wakeups
from tests.support.demo import quick
from tests.support.desk import Desk, a_desk, an_admission
from tests.support.vessels import Watcher, living, url_of
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@pytest.fixture
async def desk(vessel_url: str, watcher: Watcher) -> AsyncIterator[Desk]:
    async with a_desk(vessel_url, watcher) as desk:
        yield desk


@pytest.fixture
async def supervisor(desk: Desk) -> AsyncIterator[Supervisor]:
    """Listens; the delivery relay does not run, so that what is published was heard."""
    wakeups = Wakeups(desk.conninfo, partial(glue.attend, desk.reads, desk.engine, desk.canceller), interval=0.1)
    supervisor = Supervisor([wakeups])
    supervisor.start()
    await eventually(lambda: supervisor.status["wakeups"].passes)
    yield supervisor
    await supervisor.stop()


async def tell(desk: Desk, payload: object) -> None:
    await desk.watcher.rows("select pg_notify(%s, %s)", CHANNEL, str(payload))


def published(desk: Desk, run: uuid.UUID) -> Any:
    async def is_published() -> bool:
        return await desk.watcher.run(run) == ("queued", 0, "published")

    return is_published


@pytest.mark.contract("RLY-1")
async def test_a_word_from_another_connection_publishes_the_hop(desk: Desk, supervisor: Supervisor) -> None:
    run = await desk.admit(queue_name="rites", priority=90)
    await tell(desk, run)
    await eventually(published(desk, run))
    assert await desk.job(run) == ("queued", "rites", 10)


async def test_a_word_without_sense_is_harmless(desk: Desk, supervisor: Supervisor) -> None:
    run = await desk.admit()
    with structlog.testing.capture_logs() as logs:
        for payload in ("", "not a run", "x" * 7000, uuid.uuid4()):
            await tell(desk, payload)
        await tell(desk, run)
        await eventually(published(desk, run))
    refused = [line for line in logs if line["event"] == "wakeups.not_published"]
    assert len(refused) == 3
    assert max(len(line["run"]) for line in refused) == 100
    assert supervisor.status["wakeups"].restarts == 0


@pytest.mark.contract("RLY-9", "ADM-16")
async def test_a_word_of_a_hop_that_is_not_pending_publishes_nothing(desk: Desk, supervisor: Supervisor) -> None:
    held, gone, mark = await desk.admit(retains=True), await desk.admit(), await desk.admit()
    await desk.watcher.rows("update runs_run set status = 'cancelling' where id = %s", gone)
    for run in (held, gone, mark):
        await tell(desk, run)
    await eventually(published(desk, mark))
    assert [await desk.job(run) for run in (held, gone)] == [None, None]


async def test_the_word_of_a_release_publishes_what_was_held(desk: Desk, supervisor: Supervisor) -> None:
    run = await desk.admit(retains=True)
    assert isinstance(await desk.ledger.run(RELEASE, Release(run, 0)), Won)
    await tell(desk, run)
    await eventually(published(desk, run))


@pytest.mark.contract("RLY-5")
async def test_a_killed_connection_is_replaced(desk: Desk, supervisor: Supervisor) -> None:
    assert await desk.watcher.kill("lychd wakeups") == 1
    await eventually(lambda: supervisor.status["wakeups"].restarts == 1)
    passes = supervisor.status["wakeups"].passes
    await eventually(lambda: supervisor.status["wakeups"].passes > passes)
    run = await desk.admit()
    await tell(desk, run)
    await eventually(published(desk, run))
    assert await desk.watcher.backends("lychd wakeups") == ["lychd wakeups"]


async def test_a_stopped_listener_leaves_no_connection(desk: Desk) -> None:
    wakeups = Wakeups(desk.conninfo, partial(glue.attend, desk.reads, desk.engine, desk.canceller), interval=60.0)
    supervisor = Supervisor([wakeups])
    supervisor.start()

    async def listening() -> bool:
        return bool(await desk.watcher.backends("lychd wakeups"))

    await eventually(listening)
    await supervisor.stop()

    async def left() -> bool:
        return not await desk.watcher.backends("lychd wakeups")

    await eventually(left)


@pytest.mark.contract("BYD-1")
async def test_a_word_while_the_publish_gate_is_shut_is_left_to_the_relay(desk: Desk, supervisor: Supervisor) -> None:
    desk.engine.publish_gate.close("guard", "lost")
    run = await desk.admit()
    await tell(desk, run)
    passes = supervisor.status["wakeups"].passes
    await eventually(lambda: supervisor.status["wakeups"].passes > passes + 1)
    assert await desk.job(run) is None
    desk.engine.publish_gate.open("guard")
    await DeliveryRelay(desk.engine, desk.ledger, desk.reads, desk.probe, settle_seconds=0.0).tick()
    assert await desk.watcher.run(run) == ("queued", 0, "published")


# A surface that has only Django


@pytest.fixture
def django_alias(vessel_url: str, django_db_blocker: Any) -> Iterator[str]:
    """Django's connection to the database of this test."""
    name = vessel_url.rsplit("/", 1)[1].partition("?")[0]
    assert url_of(name) == vessel_url
    options = {key: value for key, value in connections.settings["default"]["OPTIONS"].items() if key != "pool"}
    connections.settings[name] = {**connections.settings["default"], "NAME": name, "OPTIONS": options}
    with django_db_blocker.unblock():
        yield name
    del connections.settings[name]


def admit_in_a_thread(alias: str, *, retains: bool = False) -> uuid.UUID:
    """What a command or an action of the admin does, in a thread of its own; the second word comes with the commit."""
    admission = an_admission(manifest_json=payloads.canonical({**quick.manifest.to_json(), "schemas": {}}))
    if retains:
        admission = replace(admission, retains=True)
    try:
        with transaction.atomic(using=alias):
            assert isinstance(run_once(ADMIT, admission, using=alias), Won)
            if retains:
                assert isinstance(run_once(RELEASE, Release(admission.run_id, 0), using=alias), Won)
            notify_hop(admission.run_id, using=alias)
    finally:
        connections[alias].close()
        del connections[alias]
    return admission.run_id


@pytest.mark.contract("RLY-1", "ADM-3")
@pytest.mark.parametrize("retains", [False, True])
async def test_a_run_that_a_surface_without_a_broker_admits_is_carried_by_the_vessel(
    vessel_url: str, watcher: Watcher, django_alias: str, monkeypatch: pytest.MonkeyPatch, retains: bool
) -> None:
    # The net below is out of the way: only the word can bring this Run on its way.
    async def never(_: DeliveryRelay) -> bool:
        return False

    monkeypatch.setattr(DeliveryRelay, "tick", never)
    async with living(vessel_url, monkeypatch=monkeypatch):

        async def listens() -> bool:
            return bool(await watcher.backends("lychd wakeups"))

        await eventually(listens)
        run = await asyncio.to_thread(admit_in_a_thread, django_alias, retains=retains)

        async def done() -> bool:
            return await watcher.run(run) == ("done", 0, "settled")

        await eventually(done)
    assert await watcher.one("select output from runs_run where id = %s", run) == {"n": 1}
    assert [kind for (kind,) in await watcher.rows("select kind from runs_step where run_id = %s order by seq", run)][
        -1
    ] == "done"


async def test_a_word_in_a_transaction_that_is_rolled_back_is_never_heard(
    desk: Desk, supervisor: Supervisor, django_alias: str
) -> None:
    run, mark = await desk.admit(), await desk.admit()

    def roll_back() -> None:
        try:
            with transaction.atomic(using=django_alias):
                notify_hop(run, using=django_alias)
                raise LookupError
        except LookupError:
            pass
        finally:
            connections[django_alias].close()
            del connections[django_alias]

    await asyncio.to_thread(roll_back)
    await tell(desk, mark)
    await eventually(published(desk, mark))
    assert await desk.job(run) is None
