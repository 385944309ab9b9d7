"""Whole Vessels in the test's own loop, each on a database of its own that begins as a migrated, empty copy.

What a Vessel opened must be closed again: `living` proves it for tasks and connections.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from lychd import config as configuration
from lychd import lifespan, wiring
from lychd.config import Config
from lychd.graph import Vessel
from runs.authority import Caller, Scope, Surface
from runs.patterns import AnyPattern, PatternRegistry
from runs.submission import Submission
from tests.support.demo import PATTERNS
from tests.support.waiting import eventually

OPERATOR = Caller("default", "tester", frozenset(scope.value for scope in Scope), Surface.CODE)


def url_of(name: str) -> str:
    """The server of the tests, another database."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    return urlunsplit(parts._replace(path=f"/{name}"))


@dataclass(slots=True)
class Watcher:
    """Eyes of nobody's on a database."""

    connection: psycopg.AsyncConnection[Any]

    async def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(sql, params)  # pyright: ignore[reportArgumentType] - written in the tests
        return await cursor.fetchall() if cursor.description else []

    async def one(self, sql: str, *params: Any) -> Any:
        """The first row; its only value if it has one column."""
        found = await self.rows(sql, *params)
        row = found[0] if found else None
        return row[0] if row is not None and len(row) == 1 else row

    async def run(self, run_id: uuid.UUID) -> Any:
        """Status, hop, and the state of that hop's delivery."""
        return await self.one(
            "select r.status, r.enqueue_seq, d.state from runs_run r left join runs_rundelivery d "
            "on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq where r.id = %s",
            run_id,
        )

    async def backends(self, like: str = "lychd %") -> list[str]:
        """Names of the connections to this database, the watcher's own left out."""
        found = await self.rows(
            "select application_name from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() and application_name like %s order by 1",
            like,
        )
        return [row[0] for row in found]

    async def kill(self, like: str) -> int:
        """End the connections whose name is like this; returns how many."""
        found = await self.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() and application_name like %s",
            like,
        )
        return len(found)


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watcher]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, application_name="watcher") as connection:
        yield Watcher(connection)


def a_config(**overrides: Any) -> Config:
    """The configuration of a small Vessel."""
    return configuration.load(**{"runs_concurrency": 4, "rites_concurrency": 2, "drain_seconds": 5.0, **overrides})


@dataclass(slots=True)
class Life:
    """One Vessel that runs in the test's loop, and what it asked of its host."""

    vessel: Vessel
    stack: AsyncExitStack
    asked: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    stopped: bool = False

    async def submit(self, pattern: str, value: Any = None, **asked: Any) -> uuid.UUID:
        submitted = await self.vessel.engine.submit(OPERATOR, Submission(pattern, value or {}, **asked))
        return submitted.run_id

    async def stop(self) -> None:
        """Stop in good order; a stop that failed leaves the rest to `abandon`."""
        await lifespan.shut_down(self.vessel, self.stack)
        self.stopped = True


@asynccontextmanager
async def living(
    url: str, *, patterns: tuple[AnyPattern, ...] = PATTERNS, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[Life]:
    """A started Vessel; stopped at the end unless the test did, and proved to have left nothing."""
    monkeypatch.setattr(wiring, "registry", lambda: PatternRegistry(patterns))
    before = asyncio.all_tasks()
    stack = AsyncExitStack()
    asked: list[tuple[int, str]] = []
    try:
        vessel = await lifespan.start(a_config(**settings), url, lambda code, why: asked.append((code, why)), stack)
    except BaseException:
        await stack.aclose()
        raise
    life = Life(vessel, stack, asked)
    try:
        yield life
    finally:
        if not life.stopped:
            await life.stop()
    await nothing_left(url, before)


async def nothing_left(url: str, before: set[asyncio.Task[Any]]) -> None:
    """Prove that no task and no connection is left but those that were there."""
    await eventually(lambda: not _strangers(before))
    async with watching(url) as eyes:

        async def alone() -> bool:
            return not await eyes.backends()

        await eventually(alone)


def _strangers(before: set[asyncio.Task[Any]]) -> list[str]:
    current = asyncio.current_task()
    return [task.get_name() for task in asyncio.all_tasks() if task not in before and task is not current]
