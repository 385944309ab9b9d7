"""(b) and (d): a Vessel in this process; Runs a second, and one Run at a time from submit to its terminal event."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.common import CALLER, percentiles, vessel_here
from lychd.graph import Vessel
from runs.submission import Submission

ASKED = Submission("bench_three", {})
SINGLES = 200


async def measure(runs: int, submitters: int) -> dict[str, Any]:
    """Throughput and latency of the Pattern with three durable nodes."""
    async with vessel_here() as vessel:
        for _ in range(20):
            await _one(vessel)
        latencies = [await _timed(vessel) for _ in range(SINGLES)]
        before = sum(use.statements for use in vessel.ledger.uses())
        numbers = iter(range(runs))

        async def submit() -> None:
            for _ in numbers:
                await vessel.engine.submit(CALLER, ASKED)

        began = time.perf_counter()
        await asyncio.gather(*(submit() for _ in range(submitters)))
        submitted = time.perf_counter() - began
        while await _unfinished(vessel):
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - began
        statements = sum(use.statements for use in vessel.ledger.uses()) - before
        await vessel.evidence.drain()
        failed = await vessel.reads.fetch_one("select count(*) from runs_run where status <> 'done'")
        if not failed or failed[0]:
            raise SystemExit("not every Run is done")
        return {
            "runs_per_second": runs / seconds,
            "submitted_per_second": runs / submitted,
            "statements_per_run": statements / runs,
            "latency": percentiles(latencies),
        }


async def _unfinished(vessel: Vessel) -> bool:
    found = await vessel.reads.fetch_one("select exists (select 1 from runs_run where status in ('queued', 'running'))")
    return bool(found and found[0])


async def _one(vessel: Vessel) -> None:
    submitted = await vessel.engine.submit(CALLER, ASKED)
    async with vessel.bus.subscribe(submitted.run_id, None) as events:
        async for _ in events:
            pass


async def _timed(vessel: Vessel) -> float:
    began = time.perf_counter()
    await _one(vessel)
    return time.perf_counter() - began
