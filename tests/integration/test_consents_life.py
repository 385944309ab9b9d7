"""A Run's life with Consents: asking, parking, answering, returning; over the parts of a Vessel, each step caused."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from runs.events.event import Event, Kind
from runs.ids import owner_id
from tests.support.asking import KIND, a_person, decided, effects
from tests.support.vessel_parts import Build, Parts

pytest_plugins = ["tests.support.vessel_parts_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
async def gated(build: Build, done: list[str]) -> Parts:
    pattern, effects_done = effects()
    parts = await build(pattern, waits=(KIND,))
    done_of[parts.boot_id] = effects_done
    return parts


done_of: dict[uuid.UUID, list[str]] = {}


async def consents(parts: Parts, run_id: uuid.UUID) -> list[Any]:
    return await parts.rows("select * from consents_consent where run_id = %s order by visit", run_id)


async def parked(parts: Parts, **wish: Any) -> tuple[uuid.UUID, uuid.UUID]:
    """A Run that waits, and what it waits for."""
    run_id = await parts.submit("gate", input=wish)
    assert (await parts.perform(run_id))["outcome"] == "awaiting_consent"
    return run_id, owner_id(run_id, 0, "consent")


async def answer(parts: Parts, consent_id: uuid.UUID, run_id: uuid.UUID, *, grant: bool = True, **how: Any) -> bool:
    """A person answers, and the Run is brought back."""
    await decided(parts.ledger, await a_person(parts.rows), consent_id, grant=grant, **how)
    return await parts.engine.resume(KIND, run_id, consent_id)


async def output(parts: Parts, run_id: uuid.UUID) -> Any:
    return (await parts.run(run_id))["output"]


@pytest.mark.contract("WAIT-1", "WAIT-2", "WAIT-15")
async def test_a_question_frees_the_worker_and_keeps_the_run(gated: Parts) -> None:
    run_id = await gated.submit("gate", input={"title": "Move 12 files", "facts": {"files": 12}})
    async with gated.bus.subscribe(run_id, None) as events:
        assert await gated.perform(run_id) == {"outcome": "awaiting_consent"}
        assert await gated.standing(run_id) == ("awaiting_consent", "settled")
        (asked,) = await consents(gated, run_id)
        run = await gated.run(run_id)
        assert (run["wait_kind"], run["wait_owner"]) == ("consent", asked["id"])
        assert asked["status"] == "pending"
        assert asked["facts"] == {"files": 12}
        assert (await gated.snapshots(run_id))[0]["wait"] == {"kind": "consent", "owner": str(asked["id"])}
        assert gated.bus.is_open(run_id)
        told: list[Event] = []
        async with asyncio.timeout(5):
            async for event in events:
                assert isinstance(event, Event)
                told.append(event)
                if event.kind is Kind.CONSENT:
                    break
    kinds = [event.kind for event in told]
    assert Kind.DONE not in kinds
    assert told[-1].data["id"] == str(asked["id"])
    assert await gated.ends(run_id) == []


@pytest.mark.contract("WAIT-5", "WAIT-9", "WAIT-11")
@pytest.mark.parametrize(("grant", "status", "did"), [(True, "granted", ["a"]), (False, "denied", [])])
async def test_yes_and_no_both_bring_the_run_back_and_the_node_reads_the_receipt(
    gated: Parts, grant: bool, status: str, did: list[str]
) -> None:
    run_id, consent_id = await parked(gated)
    assert await answer(gated, consent_id, run_id, grant=grant, comment="as agreed")
    assert await gated.standing(run_id, 1) == ("queued", "published")
    delivery = await gated.delivery(run_id, 1)
    assert delivery["resume"] is True
    run = await gated.run(run_id)
    assert (run["wait_kind"], run["wait_owner"], run["wait_since"]) == (None, None, None)
    assert await gated.perform(run_id, 1) == {"outcome": "done"}
    told = await output(gated, run_id)
    assert told["verdicts"] == [status]
    assert told["did"] == did
    assert done_of[gated.boot_id] == did
    (receipt,) = told["receipts"]
    (stored,) = await consents(gated, run_id)
    assert receipt["comment"] == stored["comment"] == "as agreed"
    assert (receipt["by"], receipt["surface"], receipt["digest"]) == (stored["decided_by"], "rest", stored["digest"])
