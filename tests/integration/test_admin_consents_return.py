"""From a decision in the admin to the node that reads it: over the road of words, without any relay of waits."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from consents.models import Consent
from lychd import glue
from runs.ids import owner_id
from runs.relays.supervisor import Supervisor
from runs.relays.wakeups import Wakeups
from tests.support.admin_consents import a_user, decide, door_of, logged_in
from tests.support.asking import KIND, effects
from tests.support.vessel_parts import Build, Parts
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def gated(build: Build, dsn: str) -> AsyncIterator[Parts]:
    """A Pattern that asks, and ears for words; nothing else would bring a parked Run back."""
    pattern, _ = effects()
    parts = await build(pattern, waits=(KIND,))
    attend = partial(glue.attend, parts.reads, parts.engine, parts.canceller)
    ears = Supervisor([Wakeups(dsn, attend, interval=0.1)])
    ears.start()
    await eventually(lambda: ears.status["wakeups"].passes)
    yield parts
    await ears.stop()


async def in_thread(work: Any, *args: Any, **how: Any) -> Any:
    """Run as the admin runs: in a thread, whose connections are closed afterwards."""

    def all_of_it() -> Any:
        try:
            return work(*args, **how)
        finally:
            connections.close_all()

    return await sync_to_async(all_of_it, thread_sensitive=False)()


def from_the_page(names: list[str], consent_id: uuid.UUID, verdict: str, **form: Any) -> list[int]:
    """Each of these people sends the form of the page; the statuses of the answers."""
    digest = Consent.objects.get(pk=consent_id).digest
    people = [logged_in(a_user(name, "consents.decide_consent")) for name in names]
    return [decide(person, consent_id, verdict, digest=digest, **form).status_code for person in people]


async def parked(parts: Parts, **wish: Any) -> tuple[uuid.UUID, uuid.UUID]:
    run_id = await parts.submit("gate", input=wish)
    assert (await parts.perform(run_id))["outcome"] == "awaiting_consent"
    return run_id, owner_id(run_id, 0, "consent")


def published(parts: Parts, run_id: uuid.UUID, seq: int = 1) -> Any:
    async def is_published() -> bool:
        return await parts.standing(run_id, seq) == ("queued", "published")

    return is_published


@pytest.mark.contract("BYD-9", "WAIT-9", "BYD-8")
@pytest.mark.parametrize(("verdict", "status", "did"), [("grant", "granted", ["a"]), ("deny", "denied", [])])
async def test_a_decision_in_the_admin_brings_the_run_to_its_node_with_the_receipt(
    gated: Parts, verdict: str, status: str, did: list[str]
) -> None:
    run_id, consent_id = await parked(gated)
    assert await in_thread(from_the_page, ["anna"], consent_id, verdict, comment="as agreed") == [302]
    await eventually(published(gated, run_id))
    assert await gated.perform(run_id, 1) == {"outcome": "done"}
    told = (await gated.run(run_id))["output"]
    assert told["verdicts"] == [status]
    assert told["did"] == did
    (receipt,) = told["receipts"]
    assert (receipt["by"], receipt["surface"], receipt["comment"]) == ("anna", "admin", "as agreed")


@pytest.mark.contract("WAIT-10")
async def test_people_who_decide_at_the_same_moment_make_one_verdict_and_one_hop(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    names = [f"person {number}" for number in range(4)]
    answers = await asyncio.gather(
        *(
            in_thread(from_the_page, [name], consent_id, verdict)
            for name, verdict in zip(names, ("grant", "deny", "grant", "deny"), strict=True)
        )
    )
    statuses = [status for (status,) in answers]
    assert sorted(statuses) == [302, 302, 409, 409]
    (stored,) = await gated.rows("select status, decided_by from consents_consent where id = %s", consent_id)
    winners = {name for name, status in zip(names, statuses, strict=True) if status == 302}
    assert stored["decided_by"] in winners
    assert len(await gated.rows("select 1 from consents_consentvote where consent_id = %s", consent_id)) == 1
    await eventually(published(gated, run_id))
    assert len(await gated.rows("select 1 from runs_rundelivery where run_id = %s", run_id)) == 2
    assert await gated.perform(run_id, 1) == {"outcome": "done"}
    assert (await gated.run(run_id))["output"]["verdicts"] == [stored["status"]]


async def test_two_gates_in_a_row_are_two_pages_each_in_its_turn(gated: Parts) -> None:
    run_id, first = await parked(gated, gates=2)
    assert await in_thread(from_the_page, ["anna"], first, "grant") == [302]
    await eventually(published(gated, run_id))
    assert await gated.perform(run_id, 1) == {"outcome": "awaiting_consent"}
    (second,) = await gated.rows("select id from consents_consent where run_id = %s and status = 'pending'", run_id)
    assert second["id"] != first

    def the_old_page() -> Any:
        client = logged_in(a_user("bert", "consents.decide_consent"))
        return client.post(door_of(first), {"verdict": "deny", "digest": Consent.objects.get(pk=first).digest})

    assert (await in_thread(the_old_page)).status_code == 409
    assert await gated.standing(run_id, 1) == ("awaiting_consent", "settled")
    assert await in_thread(from_the_page, ["carl"], second["id"], "deny") == [302]
    await eventually(published(gated, run_id, 2))
    assert await gated.perform(run_id, 2) == {"outcome": "done"}
    assert (await gated.run(run_id))["output"]["verdicts"] == ["granted", "denied"]
