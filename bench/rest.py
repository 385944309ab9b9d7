"""(c) The same Runs over REST: a Vessel process, clients in this one."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx2

from bench.common import Address, percentiles, vessel_process


def measure(runs: int, submitters: int) -> dict[str, Any]:
    """Runs a second from the first POST to the last Run done."""
    with vessel_process() as address:
        return asyncio.run(_measure(address, runs, submitters))


async def _measure(address: Address, runs: int, submitters: int) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {address.token}"}
    limits = httpx2.Limits(max_connections=submitters)
    async with httpx2.AsyncClient(base_url=address.url, headers=headers, limits=limits, timeout=60) as client:
        numbers = iter(range(runs))
        latencies: list[float] = []

        async def submit() -> None:
            for _ in numbers:
                began = time.perf_counter()
                answer = await client.post("/api/v1/runs", json={"pattern": "bench_three", "input": {}})
                answer.raise_for_status()
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(submit() for _ in range(submitters)))
        while await _busy(client):
            await asyncio.sleep(0.05)
        return {"runs_per_second": runs / (time.perf_counter() - began), "post": percentiles(latencies)}


async def _busy(client: httpx2.AsyncClient) -> bool:
    for status in ("queued", "running"):
        answer = await client.get("/api/v1/runs", params={"status": status, "limit": 1})
        if answer.json()["items"]:
            return True
    return False
