"""Cancelling a Run: elected, contained, finished; honest at every moment, whoever goes away or fails (CAN)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Literal

import pytest

from consents.outcome import AwaitConsent
from runs import ids, seams
from runs.broker.jobs import JobStatus
from runs.containment import ContainmentUncertain
from runs.engine import HopRef
from runs.errors import NotFound
from runs.ledger.claim import CLAIM, Claim
from runs.ledger.outcomes import Lost, Reason
from runs.ledger.publication import MARK_PUBLISHED, Published
from runs.ledger.rotate import ROTATE, Rotation
from runs.patterns import Context, Finish, Pattern
from tests.support.delegates import AwaitJob, Delegates, Faulty, job_of, job_table
from tests.support.vessel_parts import Build, Ctx, Latch, Note, Parts, Report, Tally, cancelled, solo
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


def asking() -> Any:
    pattern = Pattern("asking", input=Note, state=Tally, output=Report)

    @pattern.start()
    async def ask(ctx: Context[Note, Tally]) -> AwaitConsent[Literal["act"]]:
        return AwaitConsent(then="act", title="May I?")

    @pattern.node()
    async def act(ctx: Context[Note, Tally]) -> Finish[Report]:
        return Finish(Report(text="acted"))

    return pattern


def delegating() -> Any:
    pattern = Pattern("delegating", input=Note, state=Tally, output=Report)

    @pattern.start()
    async def hand_out(ctx: Context[Note, Tally]) -> AwaitJob[Literal["take"]]:
        return AwaitJob(then="take")

    @pattern.node()
    async def take(ctx: Context[Note, Tally]) -> Finish[Report]:
        return Finish(Report(text="taken"))

    return pattern


@pytest.fixture
async def unpublished(parts: Parts) -> uuid.UUID:
    """A queued Run whose job the broker has, and that no worker takes."""
    return await parts.submit()


@pytest.mark.contract("CAN-2", "CAN-3", "CAN-4", "CAN-7", "SET-6")
async def test_s120_a_queued_run_is_cancelled_with_its_job_and_told_once(parts: Parts, unpublished: uuid.UUID) -> None:
    assert await parts.canceller.cancel(unpublished, "olga") == "cancelled"
    assert await parts.standing(unpublished) == ("cancelled", "settled")
    (job,) = (await parts.jobs(unpublished)).values()
    assert job["status"] == JobStatus.ABORTED
    assert await parts.ends(unpublished) == ["cancelled"]
    assert not parts.bus.is_open(unpublished)
    run = await parts.run(unpublished)
    assert (run["cancelled_by"], run["error_code"], run["containment_error"]) == ("olga", None, None)
    assert [status for run_id, status in parts.moves if run_id == unpublished] == ["cancelling", "cancelled"]


@pytest.mark.contract("CAN-9", "CAN-10", "CAN-3")
async def test_s127_s128_a_running_worker_lets_go_at_once_and_never_says_failed(build: Build) -> None:
    latch = Latch()

    async def body(ctx: Ctx) -> str:
        await latch()
        return "never"

    parts = await build(solo(body))
    async with parts.lanes():
        run_id = await parts.submit()
        await latch.arrived()
        assert await parts.canceller.cancel(run_id, "olga") == "cancelled"
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"]) == ("cancelled", None)
    assert await parts.ends(run_id) == ["cancelled"]
    assert "failed" not in [status for _, status in parts.moves]


@pytest.mark.contract("CAN-1")
async def test_s129_two_cancels_at_once_are_one_abort_and_one_end(parts: Parts, unpublished: uuid.UUID) -> None:
    answers = await asyncio.gather(*(parts.canceller.cancel(unpublished, f"u{n}") for n in range(5)))
    assert set(answers) == {"cancelled"}
    assert await parts.ends(unpublished) == ["cancelled"]
    assert parts.canceller.working == frozenset()


@pytest.mark.contract("CAN-11")
async def test_s131_an_end_that_came_first_stands_and_nothing_is_aborted(parts: Parts) -> None:
    run_id = await parts.carried()
    before = await parts.jobs(run_id)
    assert await parts.canceller.cancel(run_id, "olga") == "done"
    assert await parts.jobs(run_id) == before
    assert await parts.ends(run_id) == ["done"]


@pytest.mark.contract("CAN-2")
async def test_s133_a_cancelling_run_is_frozen_for_everybody(build: Build) -> None:
    parts = await build(waits=[Delegates(Faulty(100, lambda: RuntimeError("no answer")))])
    await job_table(parts)
    run_id = await parts.submit()
    with pytest.raises(ContainmentUncertain, match="no answer"):
        await parts.canceller.cancel(run_id, "olga")
    assert await parts.standing(run_id) == ("cancelling", "published")
    claim = await parts.ledger.run(CLAIM, Claim(run_id, 0, uuid.uuid4(), parts.boot_id))
    rotate = await parts.ledger.run(ROTATE, Rotation(run_id, 0, parts.boot_id, "no reason"))
    publish = await parts.ledger.run(MARK_PUBLISHED, Published(run_id, 0))
    for outcome in (claim, rotate, publish):
        assert isinstance(outcome, Lost)
        assert outcome.reason == Reason.CANCELLING


@pytest.mark.contract("CAN-5", "CAN-6")
async def test_s121_s231_one_authority_that_fails_leaves_it_cancelling_and_the_others_contained(build: Build) -> None:
    delegates = Delegates(Faulty(1, lambda: RuntimeError("the runtime is away")))
    from consents.wait import ConsentWait

    parts = await build(asking(), waits=[delegates, ConsentWait()])
    await job_table(parts)
    run_id = await parts.carried("asking")
    assert (await parts.run(run_id))["status"] == "awaiting_consent"
    with pytest.raises(ContainmentUncertain, match="the runtime is away"):
        await parts.canceller.cancel(run_id, "olga")
    run = await parts.run(run_id)
    assert run["status"] == "cancelling"
    assert "the runtime is away" in run["containment_error"]
    assert parts.bus.is_open(run_id)
    (consent,) = await parts.rows("select status, decided_by from consents_consent where run_id = %s", run_id)
    assert consent["status"] == "cancelled"
    assert consent["decided_by"]
    assert await parts.canceller.cancel(run_id, "olga") == "cancelled"
    assert (await parts.run(run_id))["containment_error"] is None
    assert await parts.ends(run_id) == ["cancelled"]


@pytest.mark.contract("CAN-5")
async def test_s122_an_authority_that_is_cancelled_itself_is_uncertainty(build: Build) -> None:
    parts = await build(waits=[Delegates(Faulty(1, asyncio.CancelledError))])
    await job_table(parts)
    run_id = await parts.submit()
    with pytest.raises(ContainmentUncertain, match="was cancelled"):
        await parts.canceller.cancel(run_id, "olga")
    assert (await parts.run(run_id))["status"] == "cancelling"


@pytest.mark.contract("CAN-16")
async def test_an_authority_that_hangs_is_bounded(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.containment.AUTHORITY_SECONDS", 0.05)
    parts = await build(waits=[Delegates(Latch())])
    await job_table(parts)
    run_id = await parts.submit()
    with pytest.raises(ContainmentUncertain, match="no acknowledgement within"):
        await parts.canceller.cancel(run_id, "olga")
    assert (await parts.run(run_id))["status"] == "cancelling"


@pytest.mark.contract("CAN-5", "CAN-16", "QUE-5")
async def test_a_worker_that_does_not_acknowledge_keeps_it_cancelling(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.cancellation.ABORT_SECONDS", 0.2)
    stubborn, go = asyncio.Event(), asyncio.Event()

    async def body(ctx: Ctx) -> str:
        stubborn.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    parts = await build(solo(body))
    async with parts.lanes():
        run_id = await parts.submit()
        await asyncio.wait_for(stubborn.wait(), 5)
        with pytest.raises(ContainmentUncertain, match="the worker"):
            await parts.canceller.cancel(run_id, "olga")
        assert (await parts.run(run_id))["status"] == "cancelling"
        go.set()
        await eventually(lambda: not parts.ghoul.custody.live(run_id))
        assert await parts.canceller.cancel(run_id, "olga") == "cancelled"
    assert (await parts.run(run_id))["output"] is None


@pytest.mark.contract("CAN-17")
async def test_a_missing_queue_is_a_containment_failure(parts: Parts, unpublished: uuid.UUID) -> None:
    await parts.rows("update runs_run set queue_name = 'gone' where id = %s", unpublished)
    with pytest.raises(ContainmentUncertain, match="no queue 'gone'"):
        await parts.canceller.cancel(unpublished, "olga")
    assert (await parts.run(unpublished))["status"] == "cancelling"


@pytest.mark.contract("CAN-18")
async def test_a_cancel_after_a_rotation_ends_the_present_hop(parts: Parts, unpublished: uuid.UUID) -> None:
    await parts.ledger.run(ROTATE, Rotation(unpublished, 0, parts.boot_id, "spent"))
    await parts.engine.publish(HopRef(unpublished, 1, "runs", 50))
    assert await parts.canceller.cancel(unpublished, "olga") == "cancelled"
    jobs = await parts.jobs(unpublished)
    assert jobs[ids.job_key(unpublished, 1)]["status"] == JobStatus.ABORTED
    assert await parts.standing(unpublished, 1) == ("cancelled", "settled")


@pytest.mark.contract("CAN-12")
async def test_s130_a_caller_who_leaves_interrupts_nothing(parts: Parts, unpublished: uuid.UUID) -> None:
    latch = Latch()
    remove = seams.install("cancel.aborted", latch)
    try:
        task = asyncio.create_task(parts.canceller.cancel(unpublished, "olga"))
        await latch.arrived()
        task.cancel()
        task.cancel()
        latch.release.set()
        assert await cancelled(task) is None
    finally:
        remove()
    assert (await parts.run(unpublished))["status"] == "cancelled"
    assert parts.canceller.working == frozenset()


@pytest.mark.contract("CAN-3")
async def test_s124_what_is_made_while_the_abort_settles_is_swept(build: Build) -> None:
    delegates = Delegates()
    parts = await build(waits=[delegates])
    await job_table(parts)
    run_id = await parts.submit()

    async def late(_: str) -> None:
        await parts.rows("insert into test_job (id, run_id, visit) values (%s, %s, 0)", uuid.uuid4(), run_id)

    remove = seams.install("cancel.aborted", late)
    try:
        assert await parts.canceller.cancel(run_id, "olga") == "cancelled"
    finally:
        remove()
    assert (await job_of(parts, run_id))["status"] == "cancelled"
    assert delegates.halted == [run_id]


@pytest.mark.contract("CAN-3")
async def test_s138_a_run_that_waits_for_a_job_is_cancelled_with_it_and_a_late_result_is_inert(build: Build) -> None:
    delegates = Delegates()
    parts = await build(delegating(), waits=[delegates])
    await job_table(parts)
    run_id = await parts.carried("delegating")
    assert (await parts.run(run_id))["status"] == "awaiting_delegate"
    owner = (await job_of(parts, run_id))["id"]
    assert await parts.canceller.cancel(run_id, "olga") == "cancelled"
    assert delegates.halted == [run_id]
    await parts.rows("update test_job set status = 'succeeded' where id = %s", owner)
    assert await parts.engine.resume(delegates, run_id, owner) is False
    assert (await parts.run(run_id))["status"] == "cancelled"


@pytest.mark.contract("CAN-8")
async def test_cancelling_a_cancelled_run_sweeps_again_and_repairs_its_evidence(build: Build) -> None:
    delegates = Delegates()
    parts = await build(waits=[delegates])
    await job_table(parts)
    run_id = await parts.submit()
    await parts.canceller.cancel(run_id, "olga")
    await parts.rows("delete from runs_step where run_id = %s and kind = 'done'", run_id)
    assert await parts.canceller.cancel(run_id, "olga") == "cancelled"
    assert delegates.halted == [run_id, run_id]
    assert await parts.ends(run_id) == ["cancelled"]


@pytest.mark.contract("CAN-7")
async def test_s136_evidence_that_fails_still_lets_the_checkpoint_go(parts: Parts, unpublished: uuid.UUID) -> None:
    await parts.rows(
        "insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at, updated_at)"
        " values (%s, 'default', 0, %s, '[]', now(), now())",
        unpublished,
        uuid.uuid4(),
    )
    async with parts.refusing("runs_step", "new.kind = 'done'"):
        assert await parts.canceller.cancel(unpublished, "olga") == "cancelled"
    assert await parts.snapshots(unpublished) is None
    assert (await parts.rows("select 1 from runs_checkpointarchive where run_id = %s", unpublished)) != []


@pytest.mark.contract("CAN-13", "CAN-14", "CAN-15")
@pytest.mark.parametrize("leaves", [False, True], ids=["plain", "caller leaves"])
async def test_s125_s126_a_job_that_the_broker_took_too_late_is_ended_again(
    build: Build, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    parts = await build()
    latch = Latch()
    remove = seams.install("publish.before", latch)
    try:
        submitting = asyncio.create_task(parts.submit())
        await latch.arrived()
        (row,) = await parts.rows("select id from runs_run")
        assert await parts.canceller.cancel(row["id"], "olga") == "cancelled"
        real, failures = parts.probe.abort, [OSError("away"), OSError("away")]

        async def abort(key: str, reason: str, wait: float) -> Any:
            if failures:
                raise failures.pop()
            if leaves:
                submitting.cancel()
            return await real(key, reason, wait)

        monkeypatch.setattr(parts.probe, "abort", abort)
        latch.release.set()
        if leaves:
            assert await cancelled(submitting) is None
        else:
            await submitting
    finally:
        remove()
    assert not failures
    (job,) = (await parts.jobs(row["id"])).values()
    assert job["status"] == JobStatus.ABORTED
    assert (await parts.run(row["id"]))["status"] == "cancelled"


@pytest.mark.contract("CAN-11")
async def test_a_run_of_another_tenant_does_not_exist(parts: Parts, unpublished: uuid.UUID) -> None:
    with pytest.raises(NotFound):
        await parts.canceller.cancel(unpublished, "olga", tenant="others")
    assert (await parts.run(unpublished))["status"] == "queued"
