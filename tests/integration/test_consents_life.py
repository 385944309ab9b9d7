"""A Run's life with Consents: asking, parking, answering, returning; over the parts of a Vessel, each step caused."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any, Literal

import psycopg
import pytest

from consents.decisions import AlreadySettled
from consents.outcome import AwaitConsent
from consents.wait import QuestionDiffers
from runs import seams
from runs.errors import Degraded
from runs.events.event import Event, Kind
from runs.ids import owner_id
from runs.ledger.ledger import ScriptFactory
from runs.ledger.outcomes import Lost, Reason
from runs.ledger.settle import SETTLE, Settlement
from runs.patterns import Context, Finish, Pattern
from runs.patterns.pattern import AnyPattern
from runs.relays.waits import WaitRelay
from runs.waits import Ask
from tests.support.asking import KIND, Seen, Wish, a_person, decided, effects
from tests.support.vessel_parts import Build, Latch, Parts, cancelled
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def gated(build: Build) -> Parts:
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


def an_ask(run_id: uuid.UUID, **wish: Any) -> Ask:
    """What the first node of a Run asks, by somebody whose claim does not hold."""
    return Ask(
        owner_id=owner_id(run_id, 0, "consent"),
        run_id=run_id,
        tenant="default",
        node="ask",
        visit=0,
        request=AwaitConsent(then="answered", **wish).request(),
        pattern_key="gate",
        asked_by=None,
        sigil_name="tester",
        source="api",
        seq=0,
        claim_id=uuid.uuid4(),
    )


def asking_for(**wish: Any) -> AnyPattern:
    """A Pattern whose only question is this one."""
    asker = Pattern("asker", input=Wish, state=Seen, output=Seen)
    if "expires_in" in wish:
        wish["expires_in"] = timedelta(seconds=wish["expires_in"])

    @asker.start
    async def only(ctx: Context[Wish, Seen]) -> AwaitConsent[Literal["after"]]:
        return AwaitConsent(then="after", **{"title": "Do it?", **wish})

    @asker.node
    async def after(ctx: Context[Wish, Seen]) -> Finish[Seen]:
        return Finish(ctx.state)

    return asker


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


@pytest.mark.contract("WAIT-9")
async def test_two_gates_in_a_row_are_asked_one_after_the_other_and_the_last_no_counts(gated: Parts) -> None:
    run_id, first = await parked(gated, gates=3)
    for hop in (1, 2):
        consent_id = owner_id(run_id, hop - 1, "consent")
        assert await answer(gated, consent_id, run_id)
        assert await gated.perform(run_id, hop) == {"outcome": "awaiting_consent"}
    assert first == owner_id(run_id, 0, "consent")
    asked = await consents(gated, run_id)
    assert [(one["status"], one["title"][-8:]) for one in asked] == [
        ("granted", "(1 of 3)"),
        ("granted", "(2 of 3)"),
        ("pending", "(3 of 3)"),
    ]
    assert len({one["id"] for one in asked}) == 3
    assert (await gated.run(run_id))["wait_owner"] == asked[2]["id"]
    assert await answer(gated, asked[2]["id"], run_id, grant=False)
    assert await gated.perform(run_id, 3) == {"outcome": "done"}
    told = await output(gated, run_id)
    assert (told["verdicts"], told["did"]) == (["granted", "granted", "denied"], [])
    assert (await gated.run(run_id))["started_at"] == (await gated.delivery(run_id, 0))["claimed_at"]


@pytest.mark.contract("WAIT-12")
async def test_s098_an_old_consent_cannot_move_a_later_wait(gated: Parts) -> None:
    run_id, first = await parked(gated, gates=2)
    await answer(gated, first, run_id)
    await gated.perform(run_id, 1)
    second = owner_id(run_id, 1, "consent")
    foreign_run, foreign = await parked(gated, title="of another Run")
    await decided(gated.ledger, await a_person(gated.rows), foreign)
    assert not await gated.engine.resume(KIND, run_id, first)
    assert not await gated.engine.resume(KIND, run_id, foreign)
    assert not await gated.engine.resume(KIND, foreign_run, first)
    assert (await gated.run(run_id))["wait_owner"] == second
    assert await gated.standing(run_id, 1) == ("awaiting_consent", "settled")
    assert await answer(gated, second, run_id)


@pytest.mark.contract("WAIT-6")
async def test_s096_a_consent_without_an_answer_moves_nothing(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    assert not await gated.engine.resume(KIND, run_id, consent_id)
    await gated.rows(
        "update consents_consent set status = 'cancelled', decided_by = 'anna', decided_at = now(), surface = 'engine'"
    )
    assert not await gated.engine.resume(KIND, run_id, consent_id)
    assert await gated.standing(run_id) == ("awaiting_consent", "settled")


@pytest.mark.contract("WAIT-10", "WAIT-5")
async def test_s095_three_who_bring_it_back_at_once_make_one_hop(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    await decided(gated.ledger, await a_person(gated.rows), consent_id)
    back = await asyncio.gather(*(gated.engine.resume(KIND, run_id, consent_id) for _ in range(3)))
    assert sorted(back) == [False, False, True]
    hops = await gated.rows("select enqueue_seq from runs_rundelivery where run_id = %s order by 1", run_id)
    assert [hop["enqueue_seq"] for hop in hops] == [0, 1]
    assert list(await gated.jobs(run_id)) == [f"run:{run_id}:0", f"run:{run_id}:1"]


@pytest.mark.contract("WAIT-10")
async def test_s104_of_two_opposite_verdicts_the_first_commit_stays(gated: Parts) -> None:
    _, consent_id = await parked(gated)
    anna, ben = await a_person(gated.rows, "anna"), await a_person(gated.rows, "ben")
    outcomes = await asyncio.gather(
        decided(gated.ledger, anna, consent_id, grant=True),
        decided(gated.ledger, ben, consent_id, grant=False),
        return_exceptions=True,
    )
    (lost,) = [one for one in outcomes if isinstance(one, BaseException)]
    assert isinstance(lost, AlreadySettled)
    (stored,) = await gated.rows("select status, decided_by from consents_consent")
    assert (stored["status"], stored["decided_by"]) in [("granted", "anna"), ("denied", "ben")]
    assert stored["decided_by"] in lost.detail
    assert (await gated.rows("select count(*) as n from consents_consentvote"))[0]["n"] == 1


@pytest.mark.contract("WAIT-11")
async def test_s101_a_hop_that_could_not_be_published_stays_for_the_relay(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    await decided(gated.ledger, await a_person(gated.rows), consent_id)
    async with gated.refusing("saq_jobs", "new.key ~ '^run:'", "the broker is away"):
        assert await gated.engine.resume(KIND, run_id, consent_id)
    delivery = await gated.delivery(run_id, 1)
    assert (delivery["state"], delivery["resume"], delivery["publish_attempts"]) == ("pending", True, 1)
    assert "the broker is away" in delivery["last_error"]
    assert (await gated.run(run_id))["wait_kind"] is None
    assert not await gated.engine.resume(KIND, run_id, consent_id)


@pytest.mark.contract("WAIT-5", "WAIT-11")
async def test_s102_a_caller_that_leaves_while_the_run_returns_undoes_nothing(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    await decided(gated.ledger, await a_person(gated.rows), consent_id)
    async with gated.held_row(run_id):
        returning = asyncio.create_task(gated.engine.resume(KIND, run_id, consent_id))
        await eventually(lambda: gated.waits_for_lock("lychd ledger scripts"))
        returning.cancel()
        assert await cancelled(returning) is None

    async def queued() -> bool:
        return (await gated.run(run_id))["status"] == "queued"

    await eventually(queued)
    assert await gated.standing(run_id, 1) == ("queued", "pending")
    assert (await gated.delivery(run_id, 1))["resume"] is True


@pytest.mark.contract("WAIT-13")
async def test_s091_a_verdict_that_lands_before_the_park_is_not_lost(gated: Parts) -> None:
    run_id = await gated.submit("gate", input={})
    anna = await a_person(gated.rows)

    async def verdict(_: str) -> None:
        await decided(gated.ledger, anna, owner_id(run_id, 0, "consent"))

    remove = seams.install("park.opened", verdict)
    try:
        assert await gated.perform(run_id) == {"outcome": "awaiting_consent"}
    finally:
        remove()
    assert await gated.standing(run_id, 1) == ("queued", "published")
    assert await gated.perform(run_id, 1) == {"outcome": "done"}
    assert list(await gated.jobs(run_id)) == [f"run:{run_id}:0", f"run:{run_id}:1"]


@pytest.mark.contract("WAIT-14", "RLY-8")
async def test_s092_a_failed_look_after_the_park_leaves_the_wait_to_the_relay(gated: Parts) -> None:
    run_id = await gated.submit("gate", input={})
    consent_id = owner_id(run_id, 0, "consent")

    async def broken(_: str) -> None:
        await decided(gated.ledger, await a_person(gated.rows), consent_id)
        raise Degraded("the database cannot be asked")

    remove = seams.install("park.look", broken)
    try:
        assert await gated.perform(run_id) == {"outcome": "awaiting_consent"}
    finally:
        remove()
    assert await gated.standing(run_id) == ("awaiting_consent", "settled")
    await WaitRelay(KIND, gated.engine, gated.ledger, gated.reads).tick()
    assert await gated.standing(run_id, 1) == ("queued", "published")


@pytest.mark.contract("WAIT-14")
async def test_s093_a_worker_that_is_cancelled_while_it_looks_again_leaves_the_wait_intact(gated: Parts) -> None:
    run_id = await gated.submit("gate", input={})
    latch = Latch()
    remove = seams.install("park.look", latch)
    carrying = asyncio.create_task(gated.perform(run_id))
    await latch.arrived()
    carrying.cancel()
    latch.release.set()
    assert await cancelled(carrying) is None
    remove()
    assert await gated.standing(run_id) == ("awaiting_consent", "settled")
    (asked,) = await consents(gated, run_id)
    assert asked["status"] == "pending"
    assert await gated.ends(run_id) == []


@pytest.mark.contract("SET-7", "WAIT-14")
async def test_s064_a_park_whose_answer_was_lost_is_kept(gated: Parts) -> None:
    run_id = await gated.submit("gate", input={})
    latch = Latch()
    remove = seams.install("park.opened", latch)
    carrying = asyncio.create_task(gated.perform(run_id))
    await latch.arrived()
    remove()
    real = gated.ledger.script
    lost: list[str] = []

    async def answers_twice(factory: Any) -> Any:
        outcome = await real(factory)
        if not lost:
            # The commit happened and its answer did not come: the connection asks the same again.
            lost.append("once")
            return await real(factory)
        return outcome

    gated.ledger.script = answers_twice
    latch.release.set()
    assert await carrying == {"outcome": "awaiting_consent"}
    assert lost == ["once"]
    assert await gated.standing(run_id) == ("awaiting_consent", "settled")
    assert [one["status"] for one in await consents(gated, run_id)] == ["pending"]


@pytest.mark.contract("SET-7", "SET-3")
async def test_s063_a_late_failure_of_an_old_hop_touches_nothing_of_the_next_one(gated: Parts) -> None:
    run_id, first = await parked(gated, gates=2)
    old = await gated.delivery(run_id, 0)
    await answer(gated, first, run_id)
    await gated.perform(run_id, 1)
    before = (await gated.run(run_id), await consents(gated, run_id), await gated.snapshots(run_id))
    failure = Settlement(run_id, 0, old["claim_id"], "failed", error_code="late", error_message="too late")
    outcome = await gated.ledger.run(SETTLE, failure)
    assert isinstance(outcome, Lost)
    assert outcome.reason == Reason.STALE
    assert (await gated.run(run_id), await consents(gated, run_id), await gated.snapshots(run_id)) == before


@pytest.mark.contract("WAIT-4")
async def test_s103_a_consent_of_another_run_cannot_be_waited_for_and_the_run_fails_honestly(gated: Parts) -> None:
    other, _ = await parked(gated, title="of another Run")
    run_id = await gated.submit("gate", input={})
    wanted = owner_id(run_id, 0, "consent")
    await gated.rows(
        "insert into consents_consent (id, run_id, node, visit, pattern_key, sigil_name, tenant, title, body, facts,"
        ' risk, digest, permission, "group", quorum, self_approval, status, comment, policy_digest)'
        " select %s, %s, 'ask', 7, 'gate', 'x', 'default', 't', '', '{}', 'low', 'd', '', '', 1, true, 'pending',"
        " '', ''",
        wanted,
        other,
    )
    seen: list[str] = []

    async def look(_: str) -> None:
        seen.append((await gated.run(run_id))["status"])

    removers = [seams.install("park.opened", look), seams.install("settle.committed", look)]
    try:
        assert await gated.perform(run_id) == {"outcome": "failed"}
    finally:
        for remove in removers:
            remove()
    assert seen == ["running", "failed"]
    run = await gated.run(run_id)
    assert (run["error_code"], run["error_node"], run["wait_kind"]) == ("not_the_owner", "ask", None)
    assert "not this Run's" in run["error_message"]
    assert await gated.ends(run_id) == ["failed"]
    (foreign,) = await gated.rows("select status, run_id from consents_consent where id = %s", wanted)
    assert (foreign["status"], foreign["run_id"]) == ("pending", other)


@pytest.mark.contract("WAIT-18")
async def test_s112_a_question_whose_checkpoint_cannot_be_written_is_a_failed_node_and_no_wait(gated: Parts) -> None:
    run_id = await gated.submit("gate", input={})
    async with gated.refusing("runs_checkpoint", "true", "no room"):
        assert await gated.perform(run_id) == {"outcome": "failed"}
    nodes = [data for _, kind, data in await gated.steps(run_id) if kind == "node"]
    assert [node["phase"] for node in nodes] == ["entered", "failed"]
    run = await gated.run(run_id)
    assert (run["error_node"], run["wait_kind"]) == ("ask", None)
    assert "no room" in run["error_message"]
    assert await consents(gated, run_id) == []


@pytest.mark.contract("WAIT-21", "BYD-8")
async def test_s114_what_differs_from_what_was_approved_is_not_done_and_said_so(gated: Parts) -> None:
    run_id, consent_id = await parked(gated, target="a", does="b")
    await answer(gated, consent_id, run_id)
    assert await gated.perform(run_id, 1) == {"outcome": "failed"}
    run = await gated.run(run_id)
    assert (run["error_code"], run["error_node"]) == ("effect_changed", "answered")
    assert "differs from what was approved" in run["error_message"]
    assert done_of[gated.boot_id] == []


@pytest.mark.contract("WAIT-21")
async def test_a_question_that_was_changed_in_the_table_is_not_what_was_approved(gated: Parts) -> None:
    run_id, consent_id = await parked(gated, facts={"files": 12})
    await answer(gated, consent_id, run_id)
    await gated.rows("update consents_consent set facts = '{\"files\": 13}'")
    assert await gated.perform(run_id, 1) == {"outcome": "failed"}
    assert (await gated.run(run_id))["error_code"] == "effect_changed"
    assert done_of[gated.boot_id] == []


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"title": "  "}, "title is one line"),
        ({"title": "two\nlines"}, "title is one line"),
        ({"title": "x" * 201}, "title is one line"),
        ({"title": "half \ud800"}, "surrogate"),
        ({"body": "x" * 70_000}, "at most 65,536 bytes"),
        ({"body": "nul \0"}, "NUL"),
        ({"quorum": 0}, "1 to 50 people"),
        ({"expires_in": -1}, "not in the past"),
        ({"expires_in": 1e9}, "within a year"),
        ({"permission": "no dot"}, "app.codename"),
        ({"group": "g" * 151}, "at most 150 characters"),
        ({"facts": {"x": "y" * 1_050_000}}, "bytes"),
    ],
)
async def test_a_question_that_cannot_be_asked_fails_its_node_with_a_sentence(
    build: Build, wish: dict[str, Any], said: str
) -> None:
    """The question is built in the node, since such an input could not be admitted."""
    pattern = asking_for(**wish)
    parts = await build(pattern, waits=(KIND,))
    run_id = await parts.carried("asker", input={})
    run = await parts.run(run_id)
    assert (run["status"], run["error_node"], run["wait_kind"]) == ("failed", "only", None)
    assert said in run["error_message"]
    assert await consents(parts, run_id) == []


async def test_a_question_asked_again_otherwise_by_the_same_activation_fails_loudly(gated: Parts) -> None:
    run_id, _ = await parked(gated)
    with pytest.raises(QuestionDiffers):
        await gated.ledger.script(ScriptFactory[bool](KIND.open, an_ask(run_id, title="Something else?")))


async def test_a_hop_that_lost_its_claim_opens_no_question(gated: Parts) -> None:
    run_id = await gated.submit("gate", input={})
    ask = an_ask(run_id, title="Late")
    assert await gated.ledger.script(ScriptFactory[bool](KIND.open, ask)) is False
    assert await consents(gated, run_id) == []


@pytest.mark.contract("WAIT-2")
async def test_the_question_of_a_parked_run_cannot_be_deleted_and_goes_with_its_run(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="waits for this Consent"):
        await gated.rows("delete from consents_consent where id = %s", consent_id)
    await answer(gated, consent_id, run_id)
    await gated.perform(run_id, 1)
    await gated.rows("delete from consents_consentvote")
    await gated.rows("delete from consents_consent where id = %s", consent_id)
    assert await consents(gated, run_id) == []


async def test_a_returning_run_waits_for_a_database_that_is_away(gated: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id, consent_id = await parked(gated)
    await answer(gated, consent_id, run_id)
    real, away = gated.reads.fetch_all, [True, True, True]

    async def fetch_all(sql: str, params: Any = None) -> Any:
        if away:
            away.pop()
            raise Degraded("The database cannot be asked: it restarts.")
        return await real(sql, params)

    monkeypatch.setattr(gated.reads, "fetch_all", fetch_all)
    assert await gated.perform(run_id, 1) == {"outcome": "done"}
    assert away == []


async def test_a_quarantined_run_is_not_brought_back(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    await gated.rows("update runs_run set quarantined_at = now(), quarantine_reason = 'bad' where id = %s", run_id)
    assert not await answer(gated, consent_id, run_id)
    await WaitRelay(KIND, gated.engine, gated.ledger, gated.reads).tick()
    assert await gated.standing(run_id) == ("awaiting_consent", "settled")


async def test_a_run_that_returns_counts_as_queued_until_it_is_claimed_again(gated: Parts) -> None:
    run_id, consent_id = await parked(gated)
    assert (gated.limits.queued, gated.limits.live) == (0, {"default": 1})
    await answer(gated, consent_id, run_id)
    assert (gated.limits.queued, gated.limits.live) == (1, {"default": 1})
    await gated.perform(run_id, 1)
    assert (gated.limits.queued, gated.limits.live) == (0, {"default": 0})
