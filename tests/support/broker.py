"""Steering lanes in tests, and looking at broker rows with other eyes than the facade's."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from saq.queue.postgres import PostgresQueue

from runs.broker.lanes import Lanes
from runs.broker.worker import Pace

# Nothing happens by itself: what a test sees was caused by a wake-up, not by a timer.
STILL = Pace(abort=3600, look=3600, beat=3600, sweep=3600, report=3600)


@asynccontextmanager
async def running(
    dsn: str,
    perform: Callable[[uuid.UUID, int], Awaitable[Mapping[str, Any]]],
    *,
    runs: int = 2,
    rites: int = 1,
    pace: Pace = STILL,
    boot_id: object = "boot-1",
) -> AsyncIterator[Lanes]:
    """Connected and started lanes; stopped and disconnected at the end."""
    lanes = Lanes(dsn, concurrency={"runs": runs, "rites": rites}, perform=perform, boot_id=boot_id, pace=pace)
    await lanes.connect()
    try:
        lanes.start()
        yield lanes
    finally:
        await lanes.stop(deadline=10)
        await lanes.disconnect()


@asynccontextmanager
async def stock_queue(dsn: str, name: str = "runs") -> AsyncIterator[PostgresQueue]:
    """SAQ as it comes, on the same tables."""
    queue = PostgresQueue.from_url(dsn, name=name, min_size=1, max_size=3)
    await queue.connect()
    try:
        yield queue
    finally:
        await queue.disconnect()


async def row(conn: psycopg.AsyncConnection, key: str) -> tuple[str, dict[str, Any]] | None:
    """Status and stored job under a key."""
    found = await (await conn.execute("SELECT status, job FROM saq_jobs WHERE key = %s", (key,))).fetchone()
    return (found[0], json.loads(found[1])) if found else None


async def status(conn: psycopg.AsyncConnection, key: str) -> str | None:
    """Status under a key."""
    found = await (await conn.execute("SELECT status FROM saq_jobs WHERE key = %s", (key,))).fetchone()
    return found[0] if found else None


async def backends(conn: psycopg.AsyncConnection, name: str) -> list[int]:
    """Process ids of this database's connections whose application name is `name`."""
    rows = await conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()", (name,)
    )
    return [pid for (pid,) in await rows.fetchall()]


class Stage:
    """A `perform` that tests steer: it notes what started and what ended, and waits where it is told to."""

    def __init__(self, *, passing: bool = True) -> None:
        self.started: list[tuple[uuid.UUID, int]] = []
        self.ended: list[uuid.UUID] = []
        self.running = 0
        self.most = 0
        self.gate = asyncio.Event()
        if passing:
            self.gate.set()

    async def __call__(self, run_id: uuid.UUID, seq: int) -> dict[str, Any]:
        self.started.append((run_id, seq))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        self.ended.append(run_id)
        return {"outcome": "done"}

    def has_started(self, run_id: uuid.UUID) -> bool:
        return any(started == run_id for started, _ in self.started)
