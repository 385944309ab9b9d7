"""The relay of Consents: brings back what was answered, expires what is due, keeps trouble to its own Run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from consents.decisions import AlreadySettled, Vote, decide
from consents.wait import ConsentWait
from runs.ids import owner_id
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.reads import Reads
from runs.relays import waits
from runs.relays.waits import WaitRelay
from runs.states import RunStatus
from runs.waits import Pending, Place
from tests.support.asking import KIND, a_person, decided, effects
from tests.support.vessel_parts import Build, Parts
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def gated(build: Build) -> Parts:
    return await build(effects()[0], waits=(KIND,))


def relay_of(parts: Parts, kind: Any = KIND, **options: Any) -> WaitRelay:
    return WaitRelay(kind, parts.engine, parts.ledger, parts.reads, **options)


async def parked(parts: Parts, **wish: Any) -> tuple[uuid.UUID, uuid.UUID]:
    run_id = await parts.submit("gate", input=wish)
    assert (await parts.perform(run_id))["outcome"] == "awaiting_consent"
    return run_id, owner_id(run_id, 0, "consent")


async def granted(parts: Parts, **wish: Any) -> uuid.UUID:
    """A Run whose Consent was granted without anybody bringing it back."""
    run_id, consent_id = await parked(parts, **wish)
    await decided(parts.ledger, await a_person(parts.rows), consent_id)
    return run_id


async def status(parts: Parts, run_id: uuid.UUID) -> str:
    return (await parts.run(run_id))["status"]


@pytest.mark.contract("RLY-6", "RLY-8", "WAIT-14")
async def test_a_verdict_that_nobody_followed_up_is_found_on_the_next_look(gated: Parts) -> None:
    relay = relay_of(gated)
    run_id, consent_id = await parked(gated)
    await relay.tick()
    assert await status(gated, run_id) == "awaiting_consent"
    await decided(gated.ledger, await a_person(gated.rows), consent_id)
    await relay.tick()
    assert await gated.standing(run_id, 1) == ("queued", "published")
    assert (relay.resumed, relay.errors) == (1, 0)
    await relay.tick()
    assert relay.resumed == 1


@pytest.mark.contract("RLY-8")
async def test_what_is_over_by_the_clock_of_the_database_becomes_no(gated: Parts) -> None:
    relay = relay_of(gated)
    run_id, consent_id = await parked(gated, expires_in=3600)
    later, _ = await parked(gated, expires_in=3600)
    await gated.rows("update consents_consent set expires_at = now() - interval '1 s' where id = %s", consent_id)
    await relay.tick()
    (stored,) = await gated.rows("select * from consents_consent where id = %s", consent_id)
    assert (stored["status"], stored["decided_by"], stored["surface"]) == ("expired", "clock", "relay")
    assert stored["decided_at"] >= stored["expires_at"]
    assert await status(gated, later) == "awaiting_consent"
    assert await gated.perform(run_id, 1) == {"outcome": "done"}
    output = (await gated.run(run_id))["output"]
    assert (output["verdicts"], output["did"]) == (["expired"], [])


@pytest.mark.contract("RLY-7")
async def test_s178_an_owner_that_hangs_keeps_its_wait_and_the_others_return(gated: Parts) -> None:
    relay = relay_of(gated, owner_seconds=0.5)
    stuck = await granted(gated)
    others = [await granted(gated) for _ in range(3)]
    async with gated.held_row(stuck):
        await relay.tick()
        assert [await status(gated, run_id) for run_id in others] == ["queued"] * 3
        assert relay.errors == 1
        assert relay.pages.retained == [None]

    # The transaction that was begun completes without its caller, and no second hop is made.
    async def back() -> bool:
        return await status(gated, stuck) == "queued"

    await eventually(back)
    await relay.tick()
    hops = await gated.rows("select enqueue_seq from runs_rundelivery where run_id = %s order by 1", stuck)
    assert [hop["enqueue_seq"] for hop in hops] == [0, 1]


@pytest.mark.contract("RLY-7", "WAIT-5")
async def test_one_run_that_is_locked_holds_up_no_other_park_verdict_or_return(gated: Parts) -> None:
    stuck = await granted(gated)
    async with gated.held_row(stuck):
        returning = asyncio.create_task(gated.engine.resume(KIND, stuck, owner_id(stuck, 0, "consent")))
        await eventually(lambda: gated.waits_for_lock("lychd ledger scripts"))
        run_id = await granted(gated)
        assert await gated.engine.resume(KIND, run_id, owner_id(run_id, 0, "consent"))
        assert not returning.done()
    assert await returning


class Hanging(ConsentWait):
    """A kind whose look never ends."""

    async def tick(self, ledger: Ledger, reads: Reads, limit: int, after: Place | None = None) -> Iterable[Pending]:
        await asyncio.Event().wait()
        return []


@pytest.mark.contract("RLY-6")
async def test_s180_a_look_that_hangs_is_bounded_and_the_page_is_looked_at_again(gated: Parts) -> None:
    relay = relay_of(gated, Hanging(), owner_seconds=0.2)
    with pytest.raises(TimeoutError):
        await relay.tick()
    assert relay.pages.next().cursor is None


@pytest.mark.contract("RLY-7", "RLY-8")
async def test_pages_of_trouble_neither_vanish_nor_keep_newer_ones_away(
    gated: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "PAGE", 2)
    relay = relay_of(gated, owner_seconds=5)
    poison = [await granted(gated) for _ in range(4)]
    healthy = await granted(gated)
    bad = ", ".join(f"'{run_id}'" for run_id in poison)
    async with gated.refusing("runs_rundelivery", f"new.enqueue_seq = 1 and new.run_id in ({bad})"):
        for _ in range(5):
            await relay.tick()
        assert await status(gated, healthy) == "queued"
        assert [await status(gated, run_id) for run_id in poison] == ["awaiting_consent"] * 4
        assert relay.errors >= 4

    async def all_back() -> bool:
        await relay.tick()
        return {await status(gated, run_id) for run_id in poison} == {"queued"}

    await eventually(all_back)


async def test_a_vessel_that_may_not_publish_brings_nothing_back(gated: Parts) -> None:
    run_id = await granted(gated)
    gated.publish_gate.close("test", "the guard is lost")
    relay = relay_of(gated)
    assert await relay.tick() is False
    assert await status(gated, run_id) == "awaiting_consent"


@pytest.mark.contract("RLY-8")
async def test_decide_and_expiry_at_once_leave_one_whole_receipt(gated: Parts) -> None:
    """The time runs out before, while or after somebody decides; whatever the clock says then stands alone."""
    relay = relay_of(gated)
    anna = await a_person(gated.rows, "anna")
    for milliseconds in (0, 1, 2, 3, 4, 6, 8, 12, 20, 1000):
        run_id, consent_id = await parked(gated, expires_in=3600)
        await gated.rows(
            "update consents_consent set expires_at = now() + make_interval(secs => %s) where id = %s",
            milliseconds / 1000,
            consent_id,
        )
        verdict, _ = await asyncio.gather(decided(gated.ledger, anna, consent_id), relay.tick(), return_exceptions=True)
        (stored,) = await gated.rows("select * from consents_consent where id = %s", consent_id)
        (votes,) = await gated.rows("select count(*) as n from consents_consentvote where consent_id = %s", consent_id)
        if isinstance(verdict, AlreadySettled):
            assert (stored["status"], stored["decided_by"], votes["n"]) == ("expired", "clock", 0)
            assert stored["decided_at"] >= stored["expires_at"]
        else:
            assert not isinstance(verdict, BaseException)
            assert (stored["status"], stored["decided_by"], votes["n"]) == ("granted", "anna", 1)
            assert stored["decided_at"] < stored["expires_at"]
        await relay.tick()
        assert await status(gated, run_id) == "queued"
        if milliseconds in {0, 1000}:
            assert stored["status"] == ("granted" if milliseconds else "expired")


async def test_decide_and_containment_at_once_leave_one_whole_receipt(gated: Parts) -> None:
    """A cancel sweeps the questions of its Run; whoever locks the row first is the one whose word stands."""
    anna = await a_person(gated.rows, "anna")
    for _ in range(8):
        run_id, consent_id = await parked(gated)
        verdict, swept = await asyncio.gather(
            decided(gated.ledger, anna, consent_id),
            gated.ledger.script(ScriptFactory[int](KIND.contain, run_id, "cancel by ben")),
            return_exceptions=True,
        )
        (stored,) = await gated.rows("select * from consents_consent where id = %s", consent_id)
        votes = (await gated.rows("select count(*) as n from consents_consentvote where consent_id = %s", consent_id))[
            0
        ]
        if swept == 1:
            assert isinstance(verdict, AlreadySettled)
            assert (stored["status"], stored["decided_by"], votes["n"]) == ("cancelled", "cancel by ben", 0)
            assert not await gated.engine.resume(KIND, run_id, consent_id)
        else:
            assert not isinstance(verdict, BaseException)
            assert (stored["status"], stored["decided_by"], votes["n"]) == ("granted", "anna", 1)


async def test_a_cancelled_question_is_told_as_such_to_who_decides_it(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    assert await gated.ledger.script(ScriptFactory[int](KIND.contain, run_id, "ben")) == 1
    assert await gated.ledger.script(ScriptFactory[int](KIND.contain, run_id, "ben")) == 0
    with pytest.raises(AlreadySettled, match="cancelled by ben"):
        await decided(gated.ledger, await a_person(gated.rows), consent_id)


async def test_a_database_that_loses_its_connections_while_somebody_decides_leaves_one_whole_verdict(
    gated: Parts,
) -> None:
    """The backend dies with the vote written and the receipt not: all of it is rolled back and done once more."""
    run_id, consent_id = await parked(gated)
    anna = await a_person(gated.rows, "anna")
    killed: list[str] = []
    real = decide

    def dying(voter: Any, vote: Vote) -> Any:
        script = real(voter, vote)
        statement = next(script)
        while True:
            rows = yield statement
            try:
                statement = script.send(rows)
            except StopIteration as done:
                return done.value
            if "set status" in statement.sql and not killed:
                killed.append(statement.sql)
                # The next statement of this transaction meets a dead connection.
                statement = type(statement)("select pg_terminate_backend(pg_backend_pid())", {})

    outcome = await gated.ledger.script(ScriptFactory[Any](dying, anna, Vote(consent_id, True, "rest")))
    assert len(killed) == 1
    assert outcome.status == "granted"
    (stored,) = await gated.rows("select * from consents_consent")
    assert (stored["status"], stored["decided_by"]) == ("granted", "anna")
    assert (await gated.rows("select count(*) as n from consents_consentvote"))[0]["n"] == 1
    assert await gated.engine.resume(KIND, run_id, consent_id)
    assert await gated.perform(run_id, 1) == {"outcome": RunStatus.DONE}


@pytest.mark.contract("RLY-7", "WAIT-11")
async def test_a_publication_that_hangs_keeps_the_committed_hop_and_the_others_return(
    gated: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = relay_of(gated, owner_seconds=0.5)
    stuck, other = await granted(gated), await granted(gated)
    real = gated.publisher.enqueue

    async def enqueue(run_id: uuid.UUID, *args: Any, **options: Any) -> Any:
        if run_id == stuck:
            await asyncio.Event().wait()
        return await real(run_id, *args, **options)

    monkeypatch.setattr(gated.publisher, "enqueue", enqueue)
    await relay.tick()
    assert relay.errors == 1
    assert await gated.standing(stuck, 1) == ("queued", "pending")
    assert (await gated.delivery(stuck, 1))["resume"] is True
    assert await gated.standing(other, 1) == ("queued", "published")
    await relay.tick()
    assert relay.errors == 1
