"""Keys and sessions: the same request twice is one Run, other work under the key is a conflict, a fence is one Run."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import psycopg
import pytest

from runs import ids, seams
from runs.authority import Surface
from runs.engine import Engine, Submitted
from runs.errors import Corrupt, KeyReused, LychdError, NotFound, Pruned, SessionFenced, StrandedAdmission
from runs.events.event import Kind
from runs.ledger.admit import LIVE_IN_SESSION
from runs.patterns import PatternRegistry
from tests.support.vessel_parts import Build, Latch, Parts, a_caller, asks, cancelled, echo, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def submit(parts: Parts, **changes: Any) -> Submitted:
    """Submit with the key `k`."""
    return await parts.engine.submit(a_caller(), asks(**({"key": "k"} | changes)))


@pytest.mark.contract("ADM-20", "ADM-26")
async def test_the_same_key_gives_the_same_run(parts: Parts) -> None:
    first = await submit(parts)
    again = await submit(parts)
    assert first.run_id == ids.keyed_run_id("default", "tester", "rest", "k")
    assert first.run_id.version == 5
    assert (first.replayed, again) == (False, Submitted(first.run_id, replayed=True))
    assert (await parts.run(first.run_id))["idempotency_key"] == "k"
    assert await parts.runs_stored() == 1


@pytest.mark.contract("ADM-20")
async def test_a_key_belongs_to_its_tenant_sigil_and_surface(parts: Parts) -> None:
    callers = [
        a_caller(),
        a_caller(tenant="other"),
        a_caller(name="another"),
        a_caller(surface=Surface.CLI),
    ]
    found = [(await parts.engine.submit(caller, asks(key="k"))).run_id for caller in callers]
    assert len(set(found)) == 4


@pytest.mark.contract("ADM-21")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"input": {"text": "other", "number": 0}}),
        ({}, {"input": {"text": "hello", "number": 0, "more": 1}}),
        ({"priority": 60}, {"priority": 61}),
        ({}, {"priority": 50}),
        ({}, {"pattern": "duet"}),
        ({}, {"session": uuid.UUID(int=1)}),
        ({"session": uuid.UUID(int=1)}, {"session": uuid.UUID(int=1), "fence_session": True}),
        ({}, {"source": "api"}),
    ],
    ids=["input", "more input", "priority", "priority as routed", "pattern", "session", "fence", "source"],
)
async def test_a_key_reused_for_other_work_is_a_conflict_and_changes_nothing(
    build: Build, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """S018, S019"""
    parts = await build(solo(echo), solo(echo, "duet"))
    run_id = (await submit(parts, **first)).run_id
    before = (await parts.run(run_id), await parts.delivery(run_id), await parts.jobs())
    pattern = second.pop("pattern", "solo") if "pattern" in second else "solo"
    with pytest.raises(KeyReused) as refused:
        await parts.engine.submit(a_caller(), asks(pattern, **({"key": "k"} | second)))
    assert refused.value.status == 409
    assert str(run_id) not in refused.value.detail
    assert (await parts.run(run_id), await parts.delivery(run_id), await parts.jobs()) == before


@pytest.mark.contract("ADM-21")
async def test_a_key_with_other_scopes_is_a_conflict(parts: Parts) -> None:
    """S018"""
    await submit(parts)
    with pytest.raises(KeyReused):
        await parts.engine.submit(a_caller(scopes=frozenset({"runs:submit"})), asks(key="k"))


@pytest.mark.contract("ADM-22")
async def test_callers_with_one_key_at_once_share_one_run_one_hook_and_one_publication(parts: Parts) -> None:
    """S016"""
    latch = Latch()
    tasks = [asyncio.create_task(parts.engine.submit(a_caller(), asks(key="k"), latch)) for _ in range(5)]
    await latch.arrived()
    latch.release.set()
    found = await asyncio.gather(*tasks)
    assert len({one.run_id for one in found}) == 1
    assert sorted(one.replayed for one in found) == [False, True, True, True, True]
    assert latch.passes == 1
    assert (await parts.delivery(found[0].run_id))["publish_attempts"] == 1
    assert not parts.engine._turns  # pyright: ignore[reportPrivateUsage]


@pytest.mark.contract("ADM-20", "ADM-22")
@pytest.mark.parametrize("in_session", [False, True])
async def test_two_processes_with_one_key_at_once_meet_at_the_primary_key(build: Build, in_session: bool) -> None:
    """S017: both have looked and found nothing before either writes."""
    one = await build()
    two = await build(boot_id=one.boot_id)
    barrier = asyncio.Barrier(2)

    async def together(_: str) -> None:
        await barrier.wait()

    changes: dict[str, Any] = {"session": uuid.uuid4(), "fence_session": True} if in_session else {}
    remove = seams.install("admit.before", together)
    try:
        found = await asyncio.gather(submit(one, **changes), submit(two, **changes))
    finally:
        remove()
    assert found[0].run_id == found[1].run_id
    assert sorted(answer.replayed for answer in found) == [False, True]
    assert len(await one.rows("select 1 from runs_rundelivery")) == 1
    assert len(await one.jobs()) == 1
    assert await one.standing(found[0].run_id) == ("queued", "published")


@pytest.mark.contract("ADM-21", "ADM-22")
async def test_of_two_processes_with_different_work_under_one_key_the_second_is_refused(build: Build) -> None:
    one = await build()
    two = await build(boot_id=one.boot_id)
    barrier = asyncio.Barrier(2)

    async def together(_: str) -> None:
        await barrier.wait()

    remove = seams.install("admit.before", together)
    try:
        found = await asyncio.gather(submit(one), submit(two, priority=7), return_exceptions=True)
    finally:
        remove()
    assert sorted(type(answer).__name__ for answer in found) == ["KeyReused", "Submitted"]
    assert await one.runs_stored() == 1


@pytest.mark.contract("ADM-8", "ADM-9", "ADM-24", "ADM-28")
async def test_a_waiter_takes_over_from_a_leader_whose_refusal_failed(parts: Parts) -> None:
    """S020"""
    latch = Latch()
    leader = asyncio.create_task(parts.engine.submit(a_caller(), asks(key="k"), latch))
    await latch.arrived()
    waiter = asyncio.create_task(parts.engine.submit(a_caller(), asks(key="k"), latch))
    await asyncio.sleep(0.02)
    assert latch.passes == 1
    async with parts.refusing("runs_run", "new.status = 'failed'"):
        leader.cancel()
        latch.release.set()
        error = await cancelled(leader)
        assert isinstance(error, StrandedAdmission)
    submitted = await waiter
    assert submitted.replayed
    assert latch.passes == 2
    assert await parts.standing(submitted.run_id) == ("queued", "published")
    assert len(await parts.jobs()) == 1


@pytest.mark.contract("ADM-28")
async def test_a_waiter_does_not_inherit_success_from_a_leader_that_was_refused(parts: Parts) -> None:
    latch = Latch()
    leader = asyncio.create_task(parts.engine.submit(a_caller(), asks(key="k"), latch))
    await latch.arrived()
    waiter = asyncio.create_task(parts.engine.submit(a_caller(), asks(key="k"), latch))
    leader.cancel()
    latch.release.set()
    assert await cancelled(leader) is None
    submitted = await waiter
    # Durable truth: this admission was refused; the waiter is told of that Run, and nothing was published for it.
    assert await parts.standing(submitted.run_id) == ("failed", "settled")
    assert not await parts.jobs()
    assert not parts.bus.is_open(submitted.run_id)


async def held(parts: Parts, **changes: Any) -> uuid.UUID:
    """A held admission under the key `k`, as a process leaves it that died in the hook."""
    async with parts.refusing("runs_run", "new.status = 'failed'"):

        async def dies(_: uuid.UUID) -> None:
            raise RuntimeError("dies")

        with pytest.raises(StrandedAdmission):
            await parts.engine.submit(a_caller(), asks(**({"key": "k"} | changes)), dies)
    (row,) = await parts.rows("select id from runs_run")
    assert await parts.standing(row["id"]) == ("queued", "held")
    return row["id"]


@pytest.mark.contract("ADM-24")
async def test_a_held_replay_without_a_hook_fails_loudly(parts: Parts) -> None:
    """S021"""
    run_id = await held(parts)
    with pytest.raises(StrandedAdmission):
        await submit(parts)
    assert await parts.standing(run_id) == ("queued", "held")
    assert not await parts.jobs()


@pytest.mark.contract("ADM-24")
async def test_a_held_replay_keeps_and_releases_again(parts: Parts) -> None:
    run_id = await held(parts)
    kept: list[uuid.UUID] = []

    async def keep(run_id: uuid.UUID) -> None:
        kept.append(run_id)

    submitted = await parts.engine.submit(a_caller(), asks(key="k"), keep)
    assert (submitted, kept) == (Submitted(run_id, replayed=True), [run_id])
    assert await parts.standing(run_id) == ("queued", "published")


@pytest.mark.contract("ADM-7", "ADM-24")
async def test_a_held_replay_whose_hook_fails_is_refused(parts: Parts) -> None:
    run_id = await held(parts)

    async def keep(_: uuid.UUID) -> None:
        raise ValueError("still no")

    with pytest.raises(ValueError, match="still no"):
        await parts.engine.submit(a_caller(), asks(key="k"), keep)
    assert await parts.standing(run_id) == ("failed", "settled")


@pytest.mark.contract("ADM-24", "ADM-26")
async def test_a_held_replay_in_a_session_keeps_the_same_turn(parts: Parts) -> None:
    session = uuid.uuid4()
    run_id = await held(parts, session=session)
    submitted = await submit(parts, session=session)
    assert submitted.run_id == run_id
    turns = await parts.rows("select run_id, request, reply, status from runs_sessionturn")
    assert [(turn["run_id"], turn["request"]["text"], turn["status"]) for turn in turns] == [(run_id, "hello", "open")]
    assert await parts.standing(run_id) == ("queued", "published")


@pytest.mark.contract("ADM-25")
async def test_a_pending_replay_is_published_once(parts: Parts) -> None:
    """S022"""
    parts.publish_gate.close("test", "the process dies after its commit")
    run_id = (await submit(parts)).run_id
    parts.publish_gate.open("test")
    assert await parts.standing(run_id) == ("queued", "pending")
    await submit(parts)
    assert await parts.standing(run_id) == ("queued", "published")
    assert (await parts.delivery(run_id))["publish_attempts"] == 1
    await submit(parts)
    assert (await parts.delivery(run_id))["publish_attempts"] == 1


@pytest.mark.contract("ADM-25")
async def test_a_published_or_claimed_replay_is_only_observed(build: Build) -> None:
    """S023"""
    latch = Latch()

    async def waits(ctx: Any) -> str:
        await latch()
        return ctx.input.text

    parts = await build(solo(waits))
    run_id = (await submit(parts)).run_id
    await parts.rows("truncate saq_jobs")
    await submit(parts)
    assert not await parts.jobs()
    task = asyncio.create_task(parts.perform(run_id))
    await latch.arrived()
    assert await submit(parts) == Submitted(run_id, replayed=True)
    assert await parts.standing(run_id) == ("running", "claimed")
    assert not await parts.jobs()
    latch.release.set()
    await task


@pytest.mark.contract("ADM-27", "EVT-7")
async def test_a_replay_in_a_fresh_process_opens_the_channel_after_the_stored_steps(build: Build) -> None:
    """S025"""
    one = await build()
    run_id = (await submit(one)).run_id
    for n in range(7):
        one.bus.emit(run_id, Kind.LOG, data={"n": n})
    await one.bus.settle(run_id)
    assert [seq for seq, *_ in await one.steps(run_id)] == list(range(8))
    two = await build(boot_id=one.boot_id)
    await submit(two)
    event = two.bus.emit(run_id, Kind.LOG)
    assert event is not None
    assert event.seq == 8


@pytest.mark.contract("ADM-27")
async def test_a_replay_of_a_run_that_ended_gets_no_channel(build: Build) -> None:
    """S026"""
    one = await build()
    run_id = (await submit(one)).run_id
    await one.perform(run_id)
    two = await build(boot_id=one.boot_id)
    assert await submit(two) == Submitted(run_id, replayed=True)
    assert not two.bus.is_open(run_id)
    assert two.bus.stats().channels == 0
    assert two.bus.stats().emitted == 0


@pytest.mark.contract("ADM-23")
async def test_a_replay_asks_neither_registry_nor_router(parts: Parts) -> None:
    run_id = (await submit(parts)).run_id
    parts.engine.registry = PatternRegistry([])
    assert await submit(parts) == Submitted(run_id, replayed=True)
    with pytest.raises(LychdError):
        await submit(parts, key="other")


@pytest.mark.contract("ADM-26")
async def test_a_replay_whose_delivery_is_missing_is_a_loud_error(parts: Parts) -> None:
    run_id = (await submit(parts)).run_id
    await parts.rows("delete from runs_rundelivery where run_id = %s", run_id)
    with pytest.raises(Corrupt, match="no delivery"):
        await submit(parts)


@pytest.mark.contract("ADM-21")
async def test_a_pruned_key_is_gone_and_never_used_again(parts: Parts) -> None:
    """Ruling 36"""
    run_id = await parts.carried(key="k")
    digest = (await parts.run(run_id))["request_digest"]
    await parts.rows("delete from runs_step where run_id = %s", run_id)
    await parts.rows("delete from runs_rundelivery where run_id = %s", run_id)
    await parts.rows("delete from runs_run where id = %s", run_id)
    await parts.rows(
        "insert into runs_runtombstone (id, tenant, request_digest, status, pruned_at)"
        " values (%s, 'default', %s, 'done', now())",
        run_id,
        digest,
    )
    with pytest.raises(Pruned):
        await submit(parts)
    with pytest.raises(KeyReused):
        await submit(parts, priority=3)
    assert await parts.runs_stored() == 0


@pytest.mark.contract("ADM-26")
async def test_the_same_request_posted_twice_is_one_run_and_one_turn(parts: Parts) -> None:
    """S031"""
    session = uuid.uuid4()
    found = await asyncio.gather(*(submit(parts, session=session) for _ in range(3)))
    assert len({one.run_id for one in found}) == 1
    turns = await parts.rows("select session_id, run_id, request from runs_sessionturn")
    assert [(turn["session_id"], turn["run_id"]) for turn in turns] == [(session, found[0].run_id)]


@pytest.mark.contract("ADM-4", "ADM-5", "ADM-26")
async def test_a_session_is_made_at_its_first_run_and_keeps_each_turn(parts: Parts) -> None:
    """Ruling 20"""
    session = uuid.uuid4()
    first = await parts.submit(session=session)
    second = await parts.submit(session=session)
    (row,) = await parts.rows("select * from runs_session")
    assert (row["id"], row["tenant"], row["sigil_name"], row["last_run_id"]) == (session, "default", "tester", second)
    turns = await parts.rows("select run_id from runs_sessionturn order by id")
    assert [turn["run_id"] for turn in turns] == [first, second]


async def test_a_session_of_another_tenant_does_not_exist(parts: Parts) -> None:
    """Ruling 20"""
    session = uuid.uuid4()
    await parts.submit(session=session)
    with pytest.raises(NotFound, match="no such session"):
        await parts.engine.submit(a_caller(tenant="other"), asks(session=session))
    assert await parts.runs_stored() == 1


@pytest.mark.contract("ADM-30", "ADM-31")
async def test_a_fence_lets_one_unfinished_run_in_and_only_its_end_frees_it(parts: Parts) -> None:
    session = uuid.uuid4()
    fenced: dict[str, Any] = {"session": session, "fence_session": True}
    first = await parts.submit(**fenced)
    with pytest.raises(SessionFenced) as refused:
        await parts.submit(**fenced)
    assert str(first) in refused.value.detail
    assert refused.value.status == 409
    await parts.submit(session=uuid.uuid4(), fence_session=True)
    fresh = Engine(
        **{name: getattr(parts.engine, name) for name in Engine.__slots__ if not name.startswith("_")},
    )
    with pytest.raises(SessionFenced):
        await fresh.submit(a_caller(), asks(**fenced))
    await parts.perform(first)
    await parts.submit(**fenced)
    assert await parts.runs_stored() == 3


@pytest.mark.contract("ADM-30")
async def test_of_many_fenced_submissions_at_once_exactly_one_is_admitted(build: Build) -> None:
    one = await build()
    two = await build(boot_id=one.boot_id)
    session = uuid.uuid4()
    tries = [(one, two)[n % 2].submit(session=session, fence_session=True) for n in range(10)]
    found = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in found) == ["SessionFenced"] * 9 + ["UUID"]
    assert await one.runs_stored() == 1


@pytest.mark.contract("ADM-30")
async def test_a_fence_lets_the_exact_replay_through(parts: Parts) -> None:
    """S028"""
    session = uuid.uuid4()
    first = await submit(parts, session=session, fence_session=True)
    again = await submit(parts, session=session, fence_session=True)
    assert again == Submitted(first.run_id, replayed=True)


@pytest.mark.contract("ADM-32")
async def test_a_session_and_a_key_of_the_same_text_share_nothing(parts: Parts) -> None:
    """S029"""
    session = uuid.uuid4()
    keyed = asks(key=str(session))
    fenced = asks(session=session, fence_session=True)
    both = asks(session=session, fence_session=True, key=f"{session}/2")
    async with asyncio.timeout(10):
        found = await asyncio.gather(
            *(parts.engine.submit(a_caller(), asked) for asked in (keyed, fenced, keyed, both)), return_exceptions=True
        )
    answers = [type(answer).__name__ for answer in found]
    assert answers[0] == answers[2] == "Submitted"
    assert sorted([answers[1], answers[3]]) == ["SessionFenced", "Submitted"]


@pytest.mark.contract("ADM-30")
async def test_the_fence_looks_at_unfinished_runs_only(parts: Parts) -> None:
    """S030: ten thousand finished Runs in the session cost nothing."""
    session = uuid.uuid4()
    done = await parts.carried(session=session)
    copied = (
        "tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source, surface, sigil_name, scopes,"
        " intent, request_digest, input, session_id, status, priority, queue_name, enqueue_seq, finished_at,"
        " created_at, updated_at"
    )
    await parts.rows(
        f"insert into runs_run (id, {copied}) select gen_random_uuid(), {copied} from runs_run,"
        " generate_series(1, 10000) where id = %s",
        done,
    )
    await parts.rows("analyze runs_run")
    lines = await parts.rows(
        "explain (analyze, costs off, timing off) "
        + LIVE_IN_SESSION.replace("%(tenant)s", "'default'")
        .replace("%(session)s", f"'{session}'")
        .replace("%(run)s", f"'{done}'")
    )
    plan = "\n".join(line["QUERY PLAN"] for line in lines)
    assert "using runs_run_live_of_session" in plan
    assert "Removed by Filter" not in plan
    await parts.submit(session=session, fence_session=True)


async def test_a_turn_of_a_session_that_was_deleted_meanwhile_refuses_the_admission(parts: Parts) -> None:
    session = uuid.uuid4()

    async def delete(_: str) -> None:
        await parts.rows("update runs_run set session_id = null")
        await parts.rows("delete from runs_session")

    remove = seams.install("admit.committed", delete)
    try:
        with pytest.raises(NotFound):
            await parts.submit(session=session)
    finally:
        remove()
    (run,) = await parts.rows("select id from runs_run")
    assert await parts.standing(run["id"]) == ("failed", "settled")


async def test_a_replay_cancelled_while_it_waits_its_turn_takes_no_part(parts: Parts) -> None:
    latch = Latch()
    leader = asyncio.create_task(parts.engine.submit(a_caller(), asks(key="k"), latch))
    await latch.arrived()
    waiter = asyncio.create_task(parts.engine.submit(a_caller(), asks(key="k"), latch))
    await asyncio.sleep(0.01)
    waiter.cancel()
    assert await cancelled(waiter) is None
    latch.release.set()
    assert not (await leader).replayed
    assert latch.passes == 1
    assert not parts.engine._turns  # pyright: ignore[reportPrivateUsage]


@pytest.mark.contract("ADM-12")
async def test_a_keyed_loser_who_was_cancelled_meanwhile_is_cancelled(build: Build) -> None:
    """The winner's Run is not touched, and the cancellation is not swallowed."""
    one = await build()
    two = await build(boot_id=one.boot_id)
    latch = Latch()
    remove = seams.install("admit.before", latch)
    try:
        loser = asyncio.create_task(submit(two))
        await latch.arrived()
    finally:
        remove()
    run_id = (await submit(one)).run_id
    # The loser's insert waits for a lock, so that the cancellation finds it on its way.
    async with await psycopg.AsyncConnection.connect(one.dsn) as holder:
        await holder.execute("lock table runs_run in share row exclusive mode")
        latch.release.set()
        await eventually(lambda: one.waits_for_lock("lychd ledger admit"))
        loser.cancel()
        await asyncio.sleep(0.01)
    assert await cancelled(loser) is None
    assert await one.standing(run_id) == ("queued", "published")
    assert not two.bus.is_open(run_id)
    assert two.limits.queued == 0
