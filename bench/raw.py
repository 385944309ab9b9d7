"""(a) Raw SAQ as it comes: enqueue and process no-op jobs in one process; and how long one job waits for its start."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from saq import Worker
from saq.queue.postgres import PostgresQueue

from bench.common import percentiles

SINGLES = 200


class _Quiet(Worker[Any]):
    SIGNALS: list[Any] = []


async def measure(jobs: int, submitters: int, slots: int) -> dict[str, Any]:
    """Jobs a second with `submitters` callers, and the start latency of single jobs."""
    queue = PostgresQueue.from_url(os.environ["DATABASE_URL"], name="bench", min_size=4, max_size=20)
    await queue.connect()
    started: dict[str, float] = {}
    ended = 0
    done = asyncio.Event()

    async def noop(_ctx: Any, *, n: int, left: int) -> None:
        nonlocal ended
        started[str(n)] = time.perf_counter()
        ended += 1
        if ended >= left:
            done.set()

    worker = _Quiet(queue, [("noop", noop)], concurrency=slots)
    task = asyncio.create_task(worker.start())
    latencies: list[float] = []
    for n in range(SINGLES):
        done.clear()
        began = time.perf_counter()
        await queue.enqueue("noop", n=n, left=n + 1, retries=0, timeout=0)
        await done.wait()
        latencies.append(started[str(n)] - began)
        await asyncio.sleep(0.003)
    ended = 0
    done.clear()
    numbers = iter(range(jobs))

    async def submit() -> None:
        for n in numbers:
            await queue.enqueue("noop", n=n, left=jobs, retries=0, timeout=0)

    began = time.perf_counter()
    await asyncio.gather(*(submit() for _ in range(submitters)))
    await done.wait()
    seconds = time.perf_counter() - began
    await worker.stop()
    task.cancel()
    await asyncio.wait({task})
    await queue.disconnect()
    return {"jobs_per_second": jobs / seconds, "start": percentiles(latencies), "slots": slots}
