"""(e) Many WebSocket readers on one busy Run, and one that never reads: what is delivered, lost, held in memory."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from base64 import b64encode
from typing import Any
from urllib.parse import urlsplit

import httpx2
import websockets

from bench.common import Address, resident, vessel_process

EVENTS = 300
PER_SECOND = 30.0
SILENT_EVENTS = 20_000


def measure(readers: int) -> dict[str, Any]:
    """Messages a second, events lost without a resync, and what a silent reader costs."""
    with vessel_process() as address:
        figures = asyncio.run(_crowd(address, readers))
    # A process of its own: memory that an earlier load left behind would hide the growth.
    with vessel_process() as address:
        asyncio.run(_talk(address))
        alone = asyncio.run(_silent(address, read=False))
    with vessel_process() as address:
        asyncio.run(_talk(address))
        figures["silent_reader_mb"] = asyncio.run(_silent(address, read=True)) - alone
        return figures


async def _submit(address: Address, given: dict[str, Any]) -> str:
    headers = {"Authorization": f"Bearer {address.token}"}
    async with httpx2.AsyncClient(base_url=address.url, headers=headers, timeout=60) as client:
        answer = await client.post("/api/v1/runs", json={"pattern": "bench_busy", "input": given})
        answer.raise_for_status()
        return answer.json()["id"]


async def _crowd(address: Address, readers: int) -> dict[str, Any]:
    run = await _submit(address, {"events": EVENTS, "per_second": PER_SECOND, "wait": 5 + readers / 150})
    turns = asyncio.Semaphore(50)
    results = await asyncio.gather(*(_read(address, run, turns) for _ in range(readers)))
    messages = sum(result[0] for result in results)
    first, last = min(result[3] for result in results), max(result[4] for result in results)
    return {
        "readers": readers,
        "events": EVENTS,
        "delivered_per_second": messages / (last - first),
        "resyncs": sum(result[1] for result in results),
        "lost": sum(result[2] for result in results),
        "seconds": last - first,
    }


async def _read(address: Address, run: str, turns: asyncio.Semaphore) -> tuple[int, int, int, float, float]:
    """One reader to the end: messages, resyncs, losses not covered by a resync, first and last moment."""
    uri = f"{address.url.replace('http', 'ws')}/ws/runs/{run}/"
    headers = {"Authorization": f"Bearer {address.token}"}
    messages = resyncs = lost = 0
    expected: int | None = None
    first = last = 0.0
    async with turns:
        connection = await websockets.connect(uri, additional_headers=headers, open_timeout=120, ping_interval=None)
    async with connection:
        async for text in connection:
            message = json.loads(text)
            last = time.perf_counter()
            if message["type"] == "event":
                messages += 1
                if message["kind"] == "log" and not first:
                    first = last
                if expected is not None and message["seq"] != expected:
                    lost += message["seq"] - expected
                expected = message["seq"] + 1
            elif message["type"] == "resync":
                resyncs += 1
                expected = int(message["cursor"].rpartition("-")[2]) + 1
    return messages, resyncs, lost, first or last, last


async def _talk(address: Address) -> None:
    """A short Run first, so that what is loaded at first use is not counted."""
    run = await _submit(address, {"events": 500, "per_second": 4000, "wait": 0, "padding": 2000})
    await _ended(address, run)


async def _ended(address: Address, run: str) -> None:
    headers = {"Authorization": f"Bearer {address.token}"}
    async with httpx2.AsyncClient(base_url=address.url, headers=headers, timeout=60) as client:
        while (await client.get(f"/api/v1/runs/{run}")).json()["status"] not in {"done", "failed"}:
            await asyncio.sleep(0.2)


async def _silent(address: Address, *, read: bool) -> float:
    """Megabytes that the Vessel grows by during a long Run, with or without a reader that takes nothing of it."""
    given = {"events": SILENT_EVENTS, "per_second": 4000, "wait": 1, "padding": 2000}
    before = resident(address.pid)
    run = await _submit(address, given)
    if not read:
        await _ended(address, run)
        return (resident(address.pid) - before) / 1024 / 1024
    where = urlsplit(address.url)
    with socket.create_connection((where.hostname or "", where.port or 0)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        key = b64encode(b"0123456789abcdef").decode()
        silent.sendall(
            f"GET /ws/runs/{run}/ HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Authorization: Bearer {address.token}\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        first = await asyncio.to_thread(silent.recv, 12)
        if not first.startswith(b"HTTP/1.1 101"):
            raise SystemExit(f"the silent reader was not let in: {first!r}")
        await _ended(address, run)
        return (resident(address.pid) - before) / 1024 / 1024
