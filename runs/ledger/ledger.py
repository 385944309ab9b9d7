"""The async door to every edge: owns the connections, gives hot edges a coalescer and the rare ones the slow road."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any, LiteralString, cast

import psycopg

from runs.ledger.admit import ADMIT
from runs.ledger.checkpoint import DISCARD_CHECKPOINT, SAVE_CHECKPOINT
from runs.ledger.claim import CLAIM
from runs.ledger.coalescer import Coalescer, SlowRoad
from runs.ledger.connection import STATEMENT_TIMEOUT, LedgerConnection
from runs.ledger.edge import Edge, Request
from runs.ledger.journal import RECORD_STEP
from runs.ledger.outcomes import Outcome
from runs.ledger.publication import MARK_PUBLISHED
from runs.ledger.script import Script
from runs.ledger.settle import SETTLE

HOT: tuple[Edge[Any, Any], ...] = (
    ADMIT,
    CLAIM,
    MARK_PUBLISHED,
    SAVE_CHECKPOINT,
    RECORD_STEP,
    SETTLE,
    DISCARD_CHECKPOINT,
)
# One a hot edge, the slow road, scripts, evidence.
CONNECTIONS = len(HOT) + 3
# A batch takes its rows with `skip locked`; what little it may wait for holds up all its requests.
BATCH_LOCK_TIMEOUT_MS = 500


@dataclass(frozen=True, slots=True)
class EdgeUse:
    """How an edge was used: requests, and the statements they were coalesced into."""

    name: str
    requests: int
    statements: int


class Ledger:
    """Runs edges for the Vessel. One an event loop; `close` finishes what was submitted.

    Args:
        conninfo: a direct connection to PostgreSQL (ruling 13).
        lock_timeout_ms: how long one request may hold up others while it waits for a locked row.
        patience: seconds for which a lost database or a locked row is waited for before the answer is Unknown.
        answer_within: seconds after which a connection that says nothing counts as lost.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        lock_timeout_ms: int = 2000,
        patience: float = 15.0,
        answer_within: float = STATEMENT_TIMEOUT + 10.0,
    ) -> None:
        opened = partial(LedgerConnection, conninfo, patience=patience, answer_within=answer_within)
        self._slow = SlowRoad(opened("slow", lock_timeout_ms=lock_timeout_ms, tell_locked=True), patience)
        self._rare: set[asyncio.Future[Any]] = set()
        self._scripts = opened("scripts", lock_timeout_ms=5000)
        self._script_turn = asyncio.Lock()
        # The writer has its own patience and isolates what keeps breaking a connection.
        self._evidence = opened("evidence", patience=1.0)
        self._hot: dict[str, Coalescer[Any, Any]] = {
            edge.name: Coalescer(
                edge, opened(edge.name, lock_timeout_ms=BATCH_LOCK_TIMEOUT_MS, tell_locked=True), self._slow
            )
            for edge in HOT
        }

    def run[Req: Request, T](self, edge: Edge[Req, T], request: Req) -> Awaitable[Outcome[T]]:
        """Try an edge.

        Returns:
            An awaitable of `Won` or `Lost`. The write completes even when the awaiting caller is cancelled.

        Raises:
            Unknown: the database did not answer in time; the write may or may not have happened.
            psycopg.Error: the database refused the statement.
        """
        hot = self._hot.get(edge.name)
        if hot is not None:
            return cast("Awaitable[Outcome[T]]", hot.submit(request))
        work = asyncio.ensure_future(self._slow(edge, request))
        self._rare.add(work)
        work.add_done_callback(self._rare.discard)
        return asyncio.shield(work)

    async def script[T](self, script_of: ScriptFactory[T]) -> T:
        """Run a several-statement edge in one transaction; it is begun anew if the connection is lost before its end.

        Cancellation: the transaction is rolled back unless it had committed; shield it where that must be known.
        """

        async def work(connection: psycopg.AsyncConnection[Any]) -> T:
            script = script_of()
            try:
                statement = next(script)
                while True:
                    cursor = await connection.execute(cast("LiteralString", statement.sql), statement.params)
                    rows: list[Any] = await cursor.fetchall() if cursor.description else []
                    statement = script.send(rows)
            except StopIteration as done:
                return done.value

        async with self._script_turn:
            return await self._scripts.transaction(work)

    @property
    def evidence(self) -> LedgerConnection:
        """The connection of the evidence writer, which runs one batch at a time."""
        return self._evidence

    def uses(self) -> list[EdgeUse]:
        """Counts for metrics and benchmarks."""
        return [EdgeUse(name, hot.requests, hot.statements) for name, hot in self._hot.items()]

    async def close(self) -> None:
        """Finish every submitted request, then close all connections."""
        for hot in self._hot.values():
            await hot.close()
        if self._rare:
            await asyncio.wait(self._rare)
        await self._slow.close()
        await self._scripts.close()
        await self._evidence.close()


class ScriptFactory[T]:
    """Builds a fresh script for each try of its transaction."""

    def __init__(self, build: Any, *args: Any, **kwargs: Any) -> None:
        self._build = build
        self._args = args
        self._kwargs = kwargs

    def __call__(self) -> Script[T]:
        return self._build(*self._args, **self._kwargs)
