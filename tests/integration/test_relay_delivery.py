"""The delivery relay on PostgreSQL and SAQ's tables. No worker runs, so that every row stays where it was put."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import structlog

from runs import reads as rows
from runs.engine import HopRef
from runs.errors import Degraded
from runs.ledger.outcomes import Won
from runs.ledger.release import RELEASE, Release
from runs.relays import delivery as module
from runs.relays.delivery import PAGE, PAGES_A_TICK
from runs.relays.supervisor import Supervisor
from tests.support.desk import Desk, a_desk
from tests.support.vessels import Watcher
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@pytest.fixture
async def desk(vessel_url: str, watcher: Watcher) -> AsyncIterator[Desk]:
    async with a_desk(vessel_url, watcher) as desk:
        yield desk


async def job_is(desk: Desk, key: str, status: str) -> None:
    await desk.watcher.rows("update saq_jobs set status = %s where key = %s", status, key)


@pytest.mark.contract("RLY-1", "RLY-11")
async def test_s155_a_hop_that_the_broker_does_not_know_is_published_again_under_the_same_key(desk: Desk) -> None:
    run = await desk.admit(queue_name="rites", priority=80)
    await desk.relay.tick()
    assert await desk.job(run) == ("queued", "rites", 20)
    assert await desk.watcher.run(run) == ("queued", 0, "published")
    assert desk.relay.repaired == 1


@pytest.mark.contract("RLY-11")
async def test_a_published_hop_whose_job_vanished_is_published_again(desk: Desk) -> None:
    run = await desk.admit()
    assert await desk.engine.publish(HopRef(run, 0, "runs", 50))
    await desk.watcher.rows("delete from saq_jobs")
    await desk.relay.tick()
    assert await desk.job(run) == ("queued", "runs", 50)
    assert await desk.watcher.run(run) == ("queued", 0, "published")


@pytest.mark.contract("RLY-2", "RLY-9")
async def test_s175_a_pending_hop_with_a_live_job_is_marked_published_and_its_page_looked_at_again(desk: Desk) -> None:
    run = await desk.admit()
    await desk.enqueue(run)
    await desk.relay.tick()
    assert await desk.watcher.run(run) == ("queued", 0, "published")
    assert desk.relay.pages.retained == [None]
    await desk.relay.tick()
    assert desk.relay.pages.retained == []
    assert (desk.relay.repaired, await desk.jobs()) == (0, 1)


@pytest.mark.contract("RLY-9")
@pytest.mark.parametrize("status", ["active", "aborting"])
async def test_a_hop_whose_job_a_worker_has_is_never_fenced_and_stays_in_sight(desk: Desk, status: str) -> None:
    run = await desk.admit()
    key = await desk.enqueue(run)
    await job_is(desk, key, status)
    for _ in range(3):
        await desk.relay.tick()
    assert await desk.job(run) == (status, "runs", 50)
    assert await desk.watcher.run(run) == ("queued", 0, "published")
    assert desk.relay.pages.retained == [None]


@pytest.mark.contract("RLY-10", "RLY-11", "ADM-16")
@pytest.mark.parametrize("record", ["complete", "failed", "aborted"])
async def test_s156_a_spent_record_rotates_to_a_new_hop_of_the_same_kind(desk: Desk, record: str) -> None:
    run = await desk.admit(queue_name="rites", priority=20)
    await desk.watcher.rows("update runs_rundelivery set resume = true where run_id = %s", run)
    await job_is(desk, await desk.enqueue(run, queue="rites", priority=20), record)
    await desk.relay.tick()
    assert await desk.watcher.run(run) == ("queued", 1, "published")
    assert await desk.delivery(run, 1) == ("published", "rites", 20, True, 1, None)
    assert await desk.job(run, 1) == ("queued", "rites", 80)
    settled = await desk.delivery(run, 0)
    assert (settled[0], settled[5]) == ("settled", f"the broker's record ended {record}")
    assert await desk.job(run, 0) == (record, "rites", 80)


@pytest.mark.contract("RLY-9", "RLY-8")
async def test_s176_a_held_hop_is_left_alone_and_published_after_its_release(desk: Desk) -> None:
    run = await desk.admit(retains=True)
    for _ in range(3):
        await desk.relay.tick()
    assert await desk.watcher.run(run) == ("queued", 0, "held")
    assert await desk.jobs() == 0
    assert desk.relay.pages.retained == [None]
    assert isinstance(await desk.ledger.run(RELEASE, Release(run, 0)), Won)
    await desk.relay.tick()
    assert await desk.watcher.run(run) == ("queued", 0, "published")
    await desk.relay.tick()
    assert desk.relay.pages.retained == []


@pytest.mark.contract("RLY-4")
async def test_s173_one_owners_exception_is_its_own(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, well = await desk.admit(), await desk.admit()
    publish = desk.engine.publisher.enqueue

    async def enqueue(run_id: uuid.UUID, *args: Any) -> Any:
        if run_id == broken:
            raise KeyError("nobody expected this")
        return await publish(run_id, *args)

    monkeypatch.setattr(desk.engine.publisher, "enqueue", enqueue)
    with structlog.testing.capture_logs() as logs:
        await desk.relay.tick()
    assert (desk.relay.degraded, await desk.job(broken)) == (1, None)
    assert await desk.watcher.run(well) == ("queued", 0, "published")
    assert [line["run"] for line in logs if line["event"] == "relay.owner_failed"] == [str(broken)]
    assert desk.relay.pages.retained == [None]
    monkeypatch.undo()
    await desk.relay.tick()
    assert await desk.watcher.run(broken) == ("queued", 0, "published")


@pytest.mark.contract("RLY-4", "RLY-3")
@pytest.mark.parametrize(
    "damage",
    [
        "delete from runs_rundelivery where run_id = %s",
        "update runs_rundelivery set queue_name = 'rites' where run_id = %s",
        "update runs_rundelivery set priority = 99 where run_id = %s",
        "update runs_rundelivery set state = 'settled', settled_at = now() where run_id = %s",
        (
            "update runs_rundelivery set state = 'claimed', claimed_at = now(), claim_id = gen_random_uuid(), "
            "boot_id = gen_random_uuid() where run_id = %s"
        ),
    ],
    ids=["missing", "other lane", "other priority", "settled", "claimed"],
)
async def test_a_delivery_that_contradicts_its_run_is_told_once_and_its_neighbours_are_repaired(
    desk: Desk, damage: str
) -> None:
    before, corrupt, after = [await desk.admit() for _ in range(3)]
    await desk.watcher.rows(damage, corrupt)
    as_it_is = await desk.delivery(corrupt)
    with structlog.testing.capture_logs() as logs:
        for _ in range(4):
            await desk.relay.tick()
    assert await desk.watcher.run(before) == ("queued", 0, "published")
    assert await desk.watcher.run(after) == ("queued", 0, "published")
    assert (await desk.delivery(corrupt), await desk.job(corrupt)) == (as_it_is, None)
    assert [line["run"] for line in logs if line["event"] == "relay.corrupt_delivery"] == [str(corrupt)]
    assert desk.relay.degraded == 4
    assert desk.relay.pages.retained == [None]


@pytest.mark.contract("RLY-1", "ADM-15")
async def test_s170_a_broker_that_was_down_gets_its_hops_when_it_is_up(desk: Desk) -> None:
    await desk.watcher.rows("alter table saq_jobs rename to away")
    run = await desk.admit()
    assert not await desk.engine.publish(HopRef(run, 0, "runs", 50))
    state, *_, attempts, error = await desk.delivery(run)
    assert (state, attempts) == ("pending", 1)
    assert "saq_jobs" in error
    desk.relay.interval = 0.05
    supervisor = Supervisor([desk.relay])
    supervisor.start()
    try:
        await eventually(lambda: supervisor.status["delivery"].restarts >= 2)
        await desk.watcher.rows("alter table away rename to saq_jobs")

        async def published() -> bool:
            return (await desk.delivery(run))[0] == "published"

        await eventually(published, within=15.0)
    finally:
        await supervisor.stop()
    assert await desk.job(run) == ("queued", "runs", 50)
    assert (await desk.delivery(run))[4] >= 2


@pytest.mark.contract("ADM-17", "ADM-15")
async def test_s236_a_publication_that_hangs_is_given_up_in_time_recorded_and_stays_pending(
    desk: Desk, vessel_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.publisher, "_within", 0.2)
    run = await desk.admit()
    async with await psycopg.AsyncConnection.connect(vessel_url) as locker:
        await locker.execute("lock table saq_jobs in access exclusive mode")
        async with asyncio.timeout(5.0):
            assert not await desk.engine.publish(HopRef(run, 0, "runs", 50))
        await locker.rollback()
    state, *_, attempts, error = await desk.delivery(run)
    assert (state, attempts) == ("pending", 1)
    assert "0.2 s" in error
    await desk.relay.tick()
    assert await desk.watcher.run(run) == ("queued", 0, "published")


@pytest.mark.contract("RLY-1", "ADM-14")
async def test_a_broker_whose_connections_die_gets_its_hops_over_new_ones(desk: Desk) -> None:
    runs = [await desk.admit() for _ in range(3)]
    assert await desk.watcher.kill("lychd publication") > 0
    assert await desk.watcher.kill("lychd reads") > 0
    desk.relay.interval = 0.05
    supervisor = Supervisor([desk.relay])
    supervisor.start()

    async def all_published() -> bool:
        return all([await desk.watcher.run(run) == ("queued", 0, "published") for run in runs])

    try:
        await eventually(all_published, within=15.0)
    finally:
        await supervisor.stop()


@pytest.mark.contract("RLY-11")
async def test_a_broker_that_does_not_answer_fails_the_pass_in_bounded_time_and_changes_nothing(
    desk: Desk, vessel_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.2)
    run = await desk.admit()
    async with await psycopg.AsyncConnection.connect(vessel_url) as locker:
        await locker.execute("lock table saq_jobs in access exclusive mode")
        async with asyncio.timeout(5.0):
            with pytest.raises((TimeoutError, Degraded)):
                await desk.relay.tick()
        await locker.rollback()
    assert await desk.delivery(run) == ("pending", "runs", 50, False, 0, None)
    await desk.relay.tick()
    assert await desk.watcher.run(run) == ("queued", 0, "published")


async def test_quarantined_runs_and_runs_of_the_fleet_are_left_alone(desk: Desk) -> None:
    quarantined, fleet, mine = [await desk.admit() for _ in range(3)]
    await desk.watcher.rows(
        "update runs_run set quarantined_at = now(), quarantine_reason = 'asked' where id = %s", quarantined
    )
    await desk.watcher.rows("update runs_run set road = 'fleet' where id = %s", fleet)
    await desk.relay.tick()
    assert [await desk.job(run) for run in (quarantined, fleet)] == [None, None]
    assert await desk.watcher.run(mine) == ("queued", 0, "published")
    assert (desk.relay.degraded, desk.relay.pages.retained) == (0, [])


@pytest.mark.contract("RLY-8", "REC-21")
async def test_a_run_that_is_queued_behind_the_way_forward_is_still_seen(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(module, "PAGES_A_TICK", 1)
    early = await desk.admit()
    await desk.watcher.rows("update runs_run set status = 'cancelling' where id = %s", early)
    for run in [await desk.admit() for _ in range(3)]:
        await desk.enqueue(run)
        await desk.watcher.rows("update runs_rundelivery set state = 'published' where run_id = %s", run)
    await desk.relay.tick()
    assert desk.relay.pages.next().cursor is not None
    # Its key (updated_at, id) lies before the cursor, as a commit that became visible late would.
    await desk.watcher.rows("update runs_run set status = 'queued' where id = %s", early)
    for _ in range(4):
        await desk.relay.tick()
    assert await desk.watcher.run(early) == ("queued", 0, "published")


@pytest.mark.contract("RLY-3", "REC-21")
async def test_pages_follow_updated_at_and_id(desk: Desk) -> None:
    runs = [await desk.admit() for _ in range(5)]
    await desk.watcher.rows("update runs_run set updated_at = now() - interval '1 hour' where id = any(%s)", runs[2:4])
    old = sorted(runs[2:4])
    found, after = [], None
    while page := await rows.queued_page(desk.reads, after=after, limit=2, settle_seconds=0.0):
        found += [row.run_id for row in page]
        after = (page[-1].updated_at, page[-1].run_id)
    assert found[:2] == old
    assert set(found) == set(runs)
    assert len(found) == 5


async def test_runs_that_changed_just_now_are_left_to_the_road_they_are_on(vessel_url: str, watcher: Watcher) -> None:
    async with a_desk(vessel_url, watcher, settle_seconds=60.0) as desk:
        run = await desk.admit()
        await desk.relay.tick()
        assert await desk.job(run) is None
        await watcher.rows("update runs_run set updated_at = now() - interval '2 minutes' where id = %s", run)
        await desk.relay.tick()
        assert await watcher.run(run) == ("queued", 0, "published")


@pytest.mark.contract("BYD-1")
async def test_a_shut_publish_gate_keeps_the_relay_still(desk: Desk) -> None:
    run = await desk.admit()
    desk.engine.publish_gate.close("guard", "lost")
    assert not await desk.relay.tick()
    assert await desk.delivery(run) == ("pending", "runs", 50, False, 0, None)
    desk.engine.publish_gate.open("guard")
    await desk.relay.tick()
    assert await desk.watcher.run(run) == ("queued", 0, "published")


@pytest.mark.contract("BYD-1")
async def test_a_relay_whose_boot_does_not_hold_the_slot_rotates_nothing(desk: Desk) -> None:
    run = await desk.admit()
    await job_is(desk, await desk.enqueue(run), "complete")
    await desk.watcher.rows(
        "with b as (insert into runs_boot (id, host, pid, profile, version, url, started_at, report) "
        "values (gen_random_uuid(), 'other', 2, 'durable', '0', '', now(), '{}') returning id) "
        "update runs_vesselslot set boot_id = b.id from b"
    )
    await desk.relay.tick()
    assert await desk.watcher.run(run) == ("queued", 0, "pending")
    assert (desk.relay.repaired, await desk.jobs()) == (0, 1)


@pytest.mark.contract("RLY-3")
async def test_a_deep_healthy_queue_costs_a_bounded_look_and_is_seen_to_its_end(desk: Desk) -> None:
    count = PAGE * (PAGES_A_TICK + 3)
    await desk.watcher.rows(
        """
        with run as (
            insert into runs_run (id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source,
                surface, sigil_name, scopes, intent, request_digest, input, status, priority, queue_name, enqueue_seq,
                created_at, updated_at)
            select gen_random_uuid(), 'default', 'vessel', 'quick', '1', '', '{}', 'api', 'code', 't', '[]', '{}', '',
                '{}', 'queued', 50, 'runs', 0, now(), now() - n * interval '1 second'
            from generate_series(1, %s) n returning id
        ), job as (
            insert into saq_jobs (key, job, queue, status, priority, scheduled)
            select 'run:' || id || ':0', '{}', 'runs', 'queued', 50, 0 from run
        )
        insert into runs_rundelivery (run_id, tenant, enqueue_seq, queue_name, priority, resume, state,
            publish_attempts, created_at, updated_at)
        select id, 'default', 0, 'runs', 50, false, 'published', 1, now(), now() from run
        """,
        count,
    )
    asked: list[int] = []
    statuses = desk.probe.statuses

    class Counting:
        async def statuses(self, keys: list[str]) -> Any:
            asked.append(len(keys))
            return await statuses(keys)

    desk.relay.probe = Counting()  # type: ignore[assignment]
    lost = await desk.watcher.one("select id from runs_run order by updated_at desc, id desc limit 1")
    await desk.watcher.rows("delete from saq_jobs where key = %s", f"run:{lost}:0")
    assert not await desk.relay.tick()
    assert asked == [PAGE] * PAGES_A_TICK
    await desk.relay.tick()
    assert await desk.job(lost) == ("queued", "runs", 50)
    assert sum(asked) == count
    assert desk.relay.repaired == 1


@pytest.mark.contract("RLY-1")
async def test_while_there_is_much_to_repair_the_next_pages_follow_at_once(desk: Desk) -> None:
    for _ in range(PAGE + 1):
        await desk.admit()
    assert not await desk.relay.tick()
    assert await desk.jobs() == PAGE + 1
    assert await desk.watcher.one("select count(*) from runs_rundelivery where state = 'published'") == PAGE + 1
