from __future__ import annotations

import json
from uuid import UUID

import pytest
from saq.job import Job, Status
from saq.queue.postgres import PostgresQueue

from runs.broker.aborts import clean
from runs.broker.jobs import Hop, JobStatus, MissingQueue, payload
from runs.broker.lanes import Lanes
from runs.errors import Invalid
from runs.ids import job_key

RUN = UUID("0190a0b0-0000-7000-8000-000000000001")


async def nothing(run_id: UUID, seq: int) -> dict[str, str]:
    return {}


@pytest.mark.contract("CLM-1", "CLM-13", "ADM-13")
async def test_a_hop_on_the_wire_is_exactly_what_saq_itself_would_store() -> None:
    queue = PostgresQueue(url="postgresql://nowhere", name="rites")
    hop = Hop(RUN, 3, "rites", 20)
    priority, stored = payload(hop)
    written = json.loads(stored)
    job = Job(
        function="perform_run",
        kwargs={"run_id": str(RUN), "seq": 3},
        queue=queue,
        key=job_key(RUN, 3),
        timeout=0,
        heartbeat=120,
        retries=0,
        ttl=600,
        queued=written["queued"],
        status=Status.QUEUED,
        priority=priority,
    )
    assert written == json.loads(queue.serialize(job))
    assert written["kwargs"] == {"run_id": str(RUN), "seq": 3}


@pytest.mark.contract("ADM-41")
@pytest.mark.parametrize(("ours", "wire"), [(0, 100), (20, 80), (100, 0)])
def test_the_wire_carries_a_hundred_minus_the_priority(ours: int, wire: int) -> None:
    priority, stored = payload(Hop(RUN, 1, "runs", ours))
    assert priority == wire
    assert json.loads(stored).get("priority", 0) == wire


@pytest.mark.contract("ADM-41")
@pytest.mark.parametrize("priority", [-1, 101])
def test_a_priority_out_of_range_never_reaches_the_wire(priority: int) -> None:
    with pytest.raises(Invalid):
        payload(Hop(RUN, 1, "runs", priority))


@pytest.mark.contract("QUE-7")
@pytest.mark.parametrize("concurrency", [{}, {"runs": 4}, {"runs": 4, "rites": 2, "more": 1}, {"run": 4, "rites": 2}])
def test_lanes_other_than_the_two_are_a_wiring_error(concurrency: dict[str, int]) -> None:
    with pytest.raises(MissingQueue, match="exactly the lanes runs and rites"):
        Lanes("postgresql://nowhere", concurrency=concurrency, perform=nothing, boot_id="b")


@pytest.mark.contract("QUE-7")
async def test_a_routed_queue_without_a_lane_is_a_wiring_error() -> None:
    lanes = Lanes("postgresql://nowhere", concurrency={"runs": 4, "rites": 2}, perform=nothing, boot_id="b")
    lanes.require(["runs", "rites", "runs"])
    with pytest.raises(MissingQueue, match="'heavy'"):
        lanes.require(["runs", "heavy"])


def test_only_the_three_ends_are_terminal() -> None:
    assert {status for status in JobStatus if status.terminal} == {"aborted", "failed", "complete"}


def test_an_abort_reason_is_made_fit_for_jsonb() -> None:
    assert clean("a\x00b\ud800") == "a\\0b\\ud800"
    assert len(clean("x" * 100_000)) == 16_000
