"""Startup reconciliation: what an earlier boot left open becomes what its record allows; nothing is guessed (REC)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runs import ids, seams
from runs.broker.jobs import JobStatus
from runs.errors import Degraded
from runs.ledger.claim import CLAIM, Claim
from runs.ledger.outcomes import Won
from runs.patterns import Context, Finish, Pattern
from runs.patterns.pattern import AnyPattern
from runs.recovery.report import Report as Recovered
from runs.recovery.startup import Startup
from runs.waits import WaitKind
from tests.support.delegates import Delegates, Faulty, job_table
from tests.support.returning import asking, walk
from tests.support.vessel_parts import Build, Latch, Note, Parts, Report, Tally, a_caller, asks, echo, solo

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


async def died(parts: Parts, pattern: str, at: str, *, pass_by: int = 0) -> uuid.UUID:
    """A Run whose worker stopped for ever at a seam, as a process that was killed there leaves it.

    Args:
        pass_by: how many times the seam is passed before it is the end.
    """
    run_id = await parts.submit(pattern)
    latch, left = Latch(), pass_by

    async def stop(name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            await latch(name)

    remove = seams.install(at, stop)
    task = asyncio.create_task(parts.perform(run_id))
    _dead.append((task, latch))
    try:
        await latch.arrived()
    finally:
        remove()
    return run_id


async def left_behind_its_turn(parts: Parts) -> uuid.UUID:
    """A Run in a session whose submitter stopped for ever behind the turn and before the release."""
    latch = Latch()
    remove = seams.install("release.before", latch)
    _dead.append((asyncio.create_task(parts.engine.submit(a_caller(), asks(session=uuid.uuid4()))), latch))
    try:
        await latch.arrived()
    finally:
        remove()
    (row,) = await parts.rows("select run_id from runs_sessionturn")
    return row["run_id"]


# Workers of "dead" processes; they stand at their seam until the test's loop ends.
_dead: list[tuple[asyncio.Task[Any], Latch]] = []


async def bury() -> None:
    """Let the stopped workers go on, cancelled; what they try to write must lose."""
    for task, latch in _dead:
        task.cancel()
        latch.release.set()
    await asyncio.gather(*(task for task, _ in _dead), return_exceptions=True)
    _dead.clear()


@pytest.fixture(autouse=True)
async def buried(build: Build) -> AsyncGenerator[None]:
    """The stopped workers are ended with the test, while what they use is still open."""
    _dead.clear()
    yield
    await bury()


@asynccontextmanager
async def as_dead(parts: Parts, run_id: uuid.UUID, seq: int = 0) -> AsyncGenerator[None]:
    """The broker's row as a killed worker leaves it: active, taken by the boot that is gone."""
    await parts.rows(
        "update saq_jobs set status = 'active', job = convert_to((convert_from(job, 'UTF8')::jsonb"
        " || jsonb_build_object('status', 'active', 'started', (extract(epoch from now()) * 1000)::bigint))::text,"
        " 'UTF8') where key = %s",
        ids.job_key(run_id, seq),
    )
    yield


def startup(parts: Parts) -> Startup:
    """The recovery of a boot."""
    return Startup(
        parts.engine,
        parts.ledger,
        parts.reads,
        parts.probe,
        parts.waits,
        parts.canceller,
        parts.dead,
        parts.dead.aftermath,
        parts.engine.registry,
        parts.boot_id,
    )


async def again(build: Build, *patterns: AnyPattern, waits: list[WaitKind] | None = None) -> tuple[Parts, Recovered]:
    """Another boot on the same database, which has reconciled."""
    parts = await build(*patterns, waits=waits, keep_jobs=True)
    return parts, await startup(parts).run()


@pytest.mark.contract("REC-4", "REC-23", "CLM-10")
async def test_s140_an_uncheckpointed_death_is_failed_after_its_job_is_fenced(build: Build) -> None:
    first = await build(solo(echo))
    run_id = await died(first, "solo", "claim.committed")
    async with as_dead(first, run_id):
        second, report = await again(build, solo(echo))
    assert report.complete
    run = await second.run(run_id)
    assert (run["status"], run["error_code"]) == ("failed", "ghoul_lost")
    assert (await second.jobs(run_id))[ids.job_key(run_id, 0)]["status"] == JobStatus.ABORTED
    assert await second.ends(run_id) == ["failed"]
    assert await second.snapshots(run_id) is None


@pytest.mark.contract("REC-5")
async def test_s141_a_run_claimed_in_this_boot_is_untouched(parts: Parts) -> None:
    run_id = await died(parts, "solo", "claim.committed")
    report = await startup(parts).run()
    assert report.complete
    assert await parts.standing(run_id) == ("running", "claimed")


@pytest.mark.contract("BYD-3")
async def test_a_node_that_may_run_again_goes_on_from_its_checkpoint_as_a_new_hop(build: Build) -> None:
    first = await build(walk(safe=True))
    run_id = await died(first, "walk", "drive.checkpointed")
    async with as_dead(first, run_id):
        second, report = await again(build, walk(safe=True))
    assert report.complete
    assert await second.standing(run_id, 0) == ("queued", "settled")
    assert (await second.delivery(run_id, 1))["resume"] is True
    await second.perform(run_id, 1)
    assert (await second.run(run_id))["output"] == {"text": "one two", "value": None}


@pytest.mark.contract("BYD-3", "BYD-4")
async def test_a_start_node_that_begins_anew_takes_its_recorded_steps_as_they_were(build: Build) -> None:
    calls: list[int] = []

    def counting() -> AnyPattern:
        pattern = Pattern("counting", input=Note, state=Tally, output=Report)

        @pattern.start(replay_safe=True)
        async def only(ctx: Context[Note, Tally]) -> Finish[Report]:
            async def call() -> int:
                calls.append(len(calls) + 1)
                return calls[-1]

            number = await ctx.step("call", call, returns=int)
            await seams.seam("node.stepped")
            return Finish(Report(text=f"call {number}"))

        return pattern

    first = await build(counting())
    run_id = await died(first, "counting", "node.stepped")
    async with as_dead(first, run_id):
        second, _ = await again(build, counting())
    await second.perform(run_id, 1)
    assert (await second.run(run_id))["output"] == {"text": "call 1", "value": None}
    assert calls == [1]


@pytest.mark.contract("BYD-3", "REC-23")
async def test_a_node_that_may_not_run_again_fails_where_it_died(build: Build) -> None:
    first = await build(walk(safe=False))
    run_id = await died(first, "walk", "drive.checkpointed")
    async with as_dead(first, run_id):
        second, _ = await again(build, walk(safe=False))
    assert (await second.run(run_id))["error_code"] == "ghoul_lost"
    (archived,) = await second.rows("select snapshots from runs_checkpointarchive where run_id = %s", run_id)
    assert archived["snapshots"][0]["node"] == "two"


@pytest.mark.contract("REC-6")
@pytest.mark.parametrize("answered", [False, True], ids=["S143", "S144 REC-7"])
async def test_s143_s144_a_death_before_the_park_is_parked_on_its_exact_consent(build: Build, answered: bool) -> None:
    first = await build(asking())
    run_id = await died(first, "asking", "park.opened")
    assert (await first.run(run_id))["status"] == "running"
    if answered:
        await first.rows(
            "update consents_consent set status = 'granted', decided_by = 'olga', decided_at = now(), surface = 'admin'"
            " where run_id = %s",
            run_id,
        )
    async with as_dead(first, run_id):
        second, report = await again(build, asking())
    assert report.complete
    assert report.counts["dead_parked"] == 1
    if not answered:
        assert await second.standing(run_id) == ("awaiting_consent", "settled")
        return
    assert (await second.run(run_id))["status"] == "queued"
    await second.perform(run_id, 1)
    assert (await second.run(run_id))["output"]["text"] == "yes"


@pytest.mark.contract("REC-6", "REC-9")
async def test_s145_a_checkpoint_that_names_an_older_consent_parks_nothing_and_all_are_contained(build: Build) -> None:
    first = await build(asking())
    run_id = await died(first, "asking", "park.opened")
    await first.rows(
        "insert into consents_consent (id, run_id, tenant, node, visit, pattern_key, sigil_name, title, body, facts,"
        ' risk, digest, permission, "group", quorum, self_approval, status, requested_at, comment, policy_digest)'
        " select gen_random_uuid(), run_id, tenant, node, 9, pattern_key, sigil_name, title, body, facts, risk, digest,"
        " permission, \"group\", quorum, self_approval, 'pending', now(), '', ''"
        " from consents_consent where run_id = %s",
        run_id,
    )
    async with as_dead(first, run_id):
        second, report = await again(build, asking())
    assert report.complete
    assert (await second.run(run_id))["error_code"] == "ghoul_lost"
    found = await second.rows("select status from consents_consent where run_id = %s", run_id)
    assert [row["status"] for row in found] == ["cancelled", "cancelled"]


@pytest.mark.contract("REC-8")
async def test_s147_a_death_before_the_park_is_parked_on_its_exact_job(build: Build) -> None:
    kinds: list[WaitKind] = [Delegates()]
    first = await build(asking(job=True), waits=kinds)
    await job_table(first)
    run_id = await died(first, "asking", "park.opened")
    async with as_dead(first, run_id):
        second, _ = await again(build, asking(job=True), waits=kinds)
    assert await second.standing(run_id) == ("awaiting_delegate", "settled")


@pytest.mark.contract("REC-9", "SET-9")
async def test_s149_s066_what_cannot_be_contained_is_not_failed_and_degrades(build: Build) -> None:
    first = await build(solo(echo))
    run_id = await died(first, "solo", "claim.committed")
    await job_table(first)
    stuck = Delegates(Faulty(100, lambda: RuntimeError("no answer")))
    async with as_dead(first, run_id):
        second, report = await again(build, solo(echo), waits=[stuck])
    assert not report.complete
    assert report.degraded[0][0] == run_id
    assert await second.standing(run_id) == ("running", "claimed")
    _, report = await again(build, solo(echo), waits=[Delegates()])
    assert report.complete
    assert (await second.run(run_id))["error_code"] == "ghoul_lost"


@pytest.mark.contract("REC-10")
async def test_s150_a_held_admission_is_refused(build: Build) -> None:
    first = await build()
    latch = Latch()
    _dead.append((asyncio.create_task(first.engine.submit(a_caller(), asks(), latch)), latch))
    await latch.arrived()
    (row,) = await first.rows("select id from runs_run")
    second, report = await again(build)
    assert report.complete
    run = await second.run(row["id"])
    assert (run["status"], run["error_code"]) == ("failed", "context_unresolved")
    assert await second.ends(row["id"]) == ["failed"]


@pytest.mark.contract("REC-10", "SET-11")
async def test_the_turn_of_a_refused_admission_is_closed_without_a_reply(build: Build) -> None:
    first = await build()
    run_id = await left_behind_its_turn(first)
    second, report = await again(build)
    assert report.complete
    assert (await second.run(run_id))["error_code"] == "context_unresolved"
    (turn,) = await second.rows("select status, reply from runs_sessionturn where run_id = %s", run_id)
    assert (turn["status"], turn["reply"]) == ("failed", None)


@pytest.mark.contract("REC-12", "REC-14")
async def test_s151_an_active_job_of_a_queued_run_is_fenced_and_followed_by_a_new_hop(build: Build) -> None:
    first = await build()
    run_id = await first.submit()
    async with as_dead(first, run_id):
        second, report = await again(build)
    assert report.complete
    jobs = await second.jobs(run_id)
    assert jobs[ids.job_key(run_id, 0)]["status"] == JobStatus.ABORTED
    assert jobs[ids.job_key(run_id, 1)]["status"] == JobStatus.QUEUED
    assert await second.standing(run_id, 1) == ("queued", "published")


@pytest.mark.contract("REC-15")
async def test_s153_an_active_job_that_does_not_say_since_when_degrades(build: Build) -> None:
    first = await build()
    run_id = await first.submit()
    await first.rows("update saq_jobs set status = 'active' where key = %s", ids.job_key(run_id, 0))
    second, report = await again(build)
    assert [run for run, _ in report.degraded] == [run_id]
    assert "does not say since when" in report.degraded[0][1]
    assert await second.standing(run_id) == ("queued", "published")


@pytest.mark.parametrize("over", ["done", "parked", "returned"])
async def test_an_active_job_whose_hop_is_over_is_ended(build: Build, over: str) -> None:
    """The worker settled its hop, and died before it told the broker."""
    first = await build(solo(echo), walk(safe=True), asking())
    if over == "returned":
        run_id = await died(first, "walk", "drive.checkpointed")
        await again(build, solo(echo), walk(safe=True), asking())
    else:
        run_id = await first.carried("solo" if over == "done" else "asking")
    standing = await first.run(run_id)
    async with as_dead(first, run_id):
        second, report = await again(build, solo(echo), walk(safe=True), asking())
    assert report.complete
    assert report.counts["jobs_ended"] == 1
    assert (await second.jobs(run_id))[ids.job_key(run_id, 0)]["status"] == JobStatus.ABORTED
    after = await second.run(run_id)
    assert (after["status"], after["enqueue_seq"]) == (standing["status"], standing["enqueue_seq"])


async def test_the_active_job_of_a_run_that_could_not_be_judged_stays_as_it_is(build: Build) -> None:
    first = await build()
    run_id = await first.submit()
    await first.rows("update runs_rundelivery set priority = 99 where run_id = %s", run_id)
    async with as_dead(first, run_id):
        second, report = await again(build)
    assert [run for run, _ in report.degraded] == [run_id]
    assert (await second.jobs(run_id))[ids.job_key(run_id, 0)]["status"] == JobStatus.ACTIVE


@pytest.mark.contract("REC-17")
async def test_s154_a_fence_that_does_not_hold_degrades_and_rotates_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await build()
    run_id = await first.submit()
    second = await build(keep_jobs=True)

    async def fence(key: str, reason: str) -> None:
        """The broker says that it did, and did not."""

    monkeypatch.setattr(second.probe, "fence_orphan", fence)
    async with as_dead(first, run_id):
        report = await startup(second).run()
    assert [run for run, _ in report.degraded] == [run_id]
    assert (await second.run(run_id))["enqueue_seq"] == 0


@pytest.mark.contract("REC-13", "REC-26")
async def test_s155_an_absent_job_is_published_again_under_its_key(build: Build) -> None:
    first = await build()
    run_id = await first.submit()
    await first.rows("delete from saq_jobs")
    second, report = await again(build)
    assert report.complete
    assert list(await second.jobs(run_id)) == [ids.job_key(run_id, 0)]
    assert await second.standing(run_id) == ("queued", "published")


@pytest.mark.contract("REC-11")
async def test_s152_a_queued_job_is_kept_and_a_pending_delivery_is_marked(build: Build) -> None:
    first = await build()
    run_id = await first.submit()
    await first.rows("update runs_rundelivery set state = 'pending', published_at = null where run_id = %s", run_id)
    second, report = await again(build)
    assert report.complete
    assert await second.standing(run_id) == ("queued", "published")
    assert len(await second.jobs(run_id)) == 1


@pytest.mark.contract("REC-14", "REC-20")
@pytest.mark.parametrize("ended", ["failed", "complete", "aborted"])
async def test_s156_a_spent_record_is_followed_by_a_hop_of_the_same_mode(build: Build, ended: str) -> None:
    first = await build(walk(safe=True))
    run_id = await first.submit("walk")
    await first.rows("update runs_rundelivery set resume = true where run_id = %s", run_id)
    await first.rows("update saq_jobs set status = %s", ended)
    second, _ = await again(build, walk(safe=True))
    following = await second.delivery(run_id, 1)
    assert (following["resume"], following["state"]) == (True, "published")
    before = await second.delivery(run_id, 0)
    assert (following["queue_name"], following["priority"]) == (before["queue_name"], before["priority"])


@pytest.mark.contract("REC-16", "REC-22")
@pytest.mark.parametrize(
    "damage",
    [
        "delete from runs_rundelivery where run_id = %s",
        "update runs_rundelivery set priority = 99 where run_id = %s",
        "update runs_rundelivery set queue_name = 'rites' where run_id = %s",
        "update runs_rundelivery set state = 'settled', settled_at = now() where run_id = %s",
        "update runs_run set queue_name = 'gone' where id = %s",
    ],
)
async def test_s157_a_delivery_that_contradicts_its_run_degrades_and_is_named(build: Build, damage: str) -> None:
    first = await build()
    run_id = await first.submit()
    await first.rows(damage, run_id)
    second, report = await again(build)
    assert [run for run, _ in report.degraded] == [run_id]
    assert str(run_id) in report.sentence()
    assert (await second.run(run_id))["status"] == "queued"


@pytest.mark.contract("REC-16")
async def test_s159_a_broker_that_cannot_be_read_degrades_and_keeps_every_run(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await build()
    run_id = await first.submit()
    second = await build(keep_jobs=True)

    async def away(_keys: Any) -> Any:
        raise Degraded("The broker could not be read: no answer in time.")

    monkeypatch.setattr(second.probe, "statuses", away)
    report = await startup(second).run()
    assert run_id in [run for run, _ in report.degraded]
    assert await second.standing(run_id) == ("queued", "published")


@pytest.mark.contract("REC-18")
async def test_s160_a_wait_without_its_owner_degrades(build: Build) -> None:
    first = await build(asking())
    run_id = await first.carried("asking")
    await first.rows("alter table consents_consent disable trigger all")
    await first.rows("delete from consents_consent where run_id = %s", run_id)
    await first.rows("alter table consents_consent enable trigger all")
    _, report = await again(build, asking())
    assert [run for run, _ in report.degraded] == [run_id]
    assert "consent" in report.degraded[0][1]


@pytest.mark.contract("REC-18")
async def test_a_wait_of_a_kind_that_is_not_installed_degrades(build: Build) -> None:
    first = await build(asking())
    run_id = await first.carried("asking")
    _, report = await again(build, asking(), waits=[])
    assert [run for run, _ in report.degraded] == [run_id]


@pytest.mark.contract("REC-2", "REC-7")
async def test_s161_a_verdict_given_while_no_vessel_ran_is_acted_on_and_published_before_the_start(
    build: Build,
) -> None:
    first = await build(asking())
    run_id = await first.carried("asking")
    await first.rows(
        "update consents_consent set status = 'denied', decided_by = 'olga', decided_at = now(), surface = 'admin'"
    )
    second, report = await again(build, asking())
    assert report.counts["resumed"] == 1
    assert await second.standing(run_id, 1) == ("queued", "published")
    await second.perform(run_id, 1)
    assert (await second.run(run_id))["output"]["text"] == "no"


@pytest.mark.contract("REC-3", "CAN-5")
async def test_s162_s135_a_cancellation_of_an_earlier_boot_is_finished_with_its_job_fenced(build: Build) -> None:
    first = await build(walk(safe=False))
    run_id = await died(first, "walk", "drive.checkpointed")
    await first.rows("update runs_run set status = 'cancelling', cancelled_by = 'olga' where id = %s", run_id)
    assert await first.snapshots(run_id) is not None
    async with as_dead(first, run_id):
        second, report = await again(build, walk(safe=False))
    assert report.complete
    assert await second.standing(run_id) == ("cancelled", "settled")
    assert await second.snapshots(run_id) is None
    assert await second.ends(run_id) == ["cancelled"]
    assert (await second.jobs(run_id))[ids.job_key(run_id, 0)]["status"] == JobStatus.ABORTED


@pytest.mark.contract("REC-25", "EVT-12")
async def test_a_terminal_run_without_its_last_step_or_with_a_checkpoint_is_put_right(build: Build) -> None:
    first = await build()
    run_id = await first.carried()
    await first.rows("delete from runs_step where run_id = %s and kind = 'done'", run_id)
    await first.rows(
        "insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at, updated_at)"
        " values (%s, 'default', 0, %s, '[]', now(), now())",
        run_id,
        uuid.uuid4(),
    )
    second, report = await again(build)
    assert report.complete
    assert (report.counts["evidence_repaired"], report.counts["checkpoints_deleted"]) == (1, 1)
    assert await second.ends(run_id) == ["done"]
    assert await second.snapshots(run_id) is None


@pytest.mark.contract("REC-24", "EVT-17")
async def test_s086_evidence_that_says_something_else_degrades_and_is_not_overwritten(build: Build) -> None:
    first = await build()
    run_id = await first.carried()
    await first.rows(
        "update runs_step set data = jsonb_set(data, '{status}', '\"failed\"') where run_id = %s and kind = 'done'",
        run_id,
    )
    second, report = await again(build)
    assert [run for run, _ in report.degraded] == [run_id]
    assert await second.ends(run_id) == ["failed"]
    assert (await second.run(run_id))["status"] == "done"


@pytest.mark.contract("REC-16")
async def test_a_quarantined_run_is_out_of_the_required_pass(build: Build) -> None:
    first = await build()
    run_id = await first.submit()
    await first.rows("delete from runs_rundelivery where run_id = %s", run_id)
    await first.rows("update runs_run set quarantined_at = now(), quarantine_reason = 'known' where id = %s", run_id)
    _, report = await again(build)
    assert report.complete


@pytest.mark.contract("REC-7", "REC-21")
async def test_every_page_is_reached_and_each_trouble_is_its_own(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.recovery.queued.PAGE", 3)
    monkeypatch.setattr("runs.recovery.startup.PAGE", 2)
    first = await build()
    queued = [await first.submit() for _ in range(8)]
    dead = [await died(first, "solo", "claim.committed") for _ in range(5)]
    await first.rows("delete from runs_rundelivery where run_id = %s", queued[3])
    await first.rows("delete from saq_jobs")
    second, report = await again(build)
    assert [run for run, _ in report.degraded] == [queued[3]]
    assert report.counts["dead_failed"] == len(dead)
    states = {(await second.delivery(run_id))["state"] for run_id in queued if run_id != queued[3]}
    assert states == {"published"}


async def test_a_stale_worker_of_the_earlier_boot_writes_nothing_any_more(build: Build) -> None:
    first = await build(walk(safe=True))
    run_id = await died(first, "walk", "drive.checkpointed")
    await again(build, walk(safe=True))
    await bury()
    run = await first.run(run_id)
    assert (run["status"], run["enqueue_seq"]) == ("queued", 1)
    outcome = await first.ledger.run(CLAIM, Claim(run_id, 1, uuid.uuid4(), first.boot_id))
    assert not isinstance(outcome, Won)
