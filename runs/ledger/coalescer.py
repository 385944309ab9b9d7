"""Runs an edge for many callers with few statements: calls that arrive while one is in flight go together in the next.

An idle edge goes at once, alone. A batch takes rows with `skip locked`, so one locked Run never holds up the others
(ruling 8); what was skipped is tried alone on the slow connection, where a lock is waited for. A statement that the
database refuses is tried again row by row, so that a bad row spoils nothing but itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from uuid import UUID

import psycopg
import structlog

from runs.errors import Unknown
from runs.ledger.connection import LedgerConnection
from runs.ledger.edge import LOOK, Edge, Request, look_batch, standing
from runs.ledger.outcomes import Lost, Outcome, Reason, Won

log = structlog.get_logger(__name__)


class _Call[Req: Request, T]:
    __slots__ = ("future", "request", "size", "text")

    def __init__(self, request: Req, text: str, future: asyncio.Future[Outcome[T]]) -> None:
        self.request = request
        self.text = text
        self.size = len(text) if text.isascii() else len(text.encode())
        self.future = future

    def answer(self, judged: Callable[[], Outcome[T] | None]) -> bool:
        """Give the caller what `judged` returns or raises; False if that was None."""
        try:
            outcome = judged()
        except Exception as error:  # noqa: BLE001 - handed to the caller, who raises it
            _fail([self], error)
            return True
        if outcome is not None and not self.future.done():
            self.future.set_result(outcome)
        return outcome is not None


class Coalescer[Req: Request, T]:
    """The async road of one edge.

    Args:
        edge: what to run.
        own: the connection for batches, owned by this coalescer.
        slow: called with one request when its row was locked or its batch failed.
        rows, size: bounds of a batch, in rows and in bytes of JSON.
    """

    def __init__(
        self, edge: Edge[Req, T], own: LedgerConnection, slow: SlowRoad, *, rows: int = 256, size: int = 1024 * 1024
    ) -> None:
        self.edge = edge
        self._own = own
        self._slow = slow
        self._rows = rows
        self._size = size
        self._sql = edge.statement(skip_locked=True)
        self._waiting: deque[_Call[Req, T]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._strays: set[asyncio.Task[None]] = set()
        self.statements = 0
        self.requests = 0

    def submit(self, request: Req) -> asyncio.Future[Outcome[T]]:
        """Queue a request; the future has its outcome, also when nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        call = _Call(request, self.edge.encode(request), cast("asyncio.Future[Outcome[T]]", loop.create_future()))
        self._waiting.append(call)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name=f"ledger {self.edge.name}")
        return call.future

    async def close(self) -> None:
        """Finish what was submitted, then close the connection."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})
        if self._strays:
            await asyncio.wait(self._strays)
        await self._own.close()

    async def _run(self) -> None:
        while self._waiting:
            batch = self._take()
            self.statements += 1
            self.requests += len(batch)
            try:
                rows = await self._own.fetch(self._sql, {"batch": "[" + ",".join(call.text for call in batch) + "]"})
            except psycopg.Error:
                self._alone(batch)
                continue
            except Exception as error:  # noqa: BLE001 - handed to each caller, who raises it
                _fail(batch, error)
                continue
            losers = self._answer(batch, rows)
            if losers:
                await self._explain(losers)

    def _take(self) -> list[_Call[Req, T]]:
        """The next batch: bounded, and with one request a Run (ruling 1); a second one waits for the next statement."""
        batch: list[_Call[Req, T]] = []
        deferred: list[_Call[Req, T]] = []
        seen: set[UUID] = set()
        size = 0
        while self._waiting and len(batch) < self._rows:
            call = self._waiting[0]
            if batch and size + call.size > self._size:
                break
            self._waiting.popleft()
            if call.request.run_id in seen:
                deferred.append(call)
                continue
            seen.add(call.request.run_id)
            batch.append(call)
            size += call.size
        self._waiting.extendleft(reversed(deferred))
        return batch

    def _answer(self, batch: list[_Call[Req, T]], rows: list[tuple[Any, ...]]) -> list[_Call[Req, T]]:
        won = {found[0] for found in rows}
        for found in rows:
            call = batch[found[0] - 1]
            call.answer(partial(self._won, call, found))
        return [call for ordinal, call in enumerate(batch, 1) if ordinal not in won]

    def _won(self, call: _Call[Req, T], found: tuple[Any, ...]) -> Outcome[T]:
        return Won(self.edge.decode(call.request, found[1:]))

    def _judged(self, call: _Call[Req, T], found: tuple[Any, ...]) -> Outcome[T] | None:
        return self.edge.judge(call.request, standing(found))

    async def _explain(self, losers: list[_Call[Req, T]]) -> None:
        try:
            rows = await self._own.fetch(LOOK, {"batch": look_batch([call.request for call in losers])})
        except Exception as error:  # noqa: BLE001 - handed to each caller, who raises it
            _fail(losers, error)
            return
        again: list[_Call[Req, T]] = []
        for found in rows:
            call = losers[found[0] - 1]
            if not call.answer(partial(self._judged, call, found)):
                again.append(call)
        self._alone(again)

    def _alone(self, calls: list[_Call[Req, T]]) -> None:
        # A task each: what waits for its lock must not stand before the others.
        for call in calls:
            task = asyncio.get_running_loop().create_task(self._one(call), name=f"ledger {self.edge.name} alone")
            self._strays.add(task)
            task.add_done_callback(self._strays.discard)

    async def _one(self, call: _Call[Req, T]) -> None:
        try:
            outcome = await self._slow(self.edge, call.request, call.text)
        except Exception as error:  # noqa: BLE001 - handed to the caller, who raises it
            _fail([call], error)
        else:
            call.answer(lambda: outcome)


class SlowRoad:
    """One shared connection for rare edges and for rows that must wait for their lock; one request at a time.

    A request whose lock is not to be had within the connection's lock timeout goes to the end of the line, so that
    it holds up the others no longer than that.

    Args:
        connection: one that tells of locks.
        patience: seconds for which a lock is waited for in all.
    """

    def __init__(self, connection: LedgerConnection, patience: float = 15.0) -> None:
        self._connection = connection
        self._patience = patience
        self._turn = asyncio.Lock()

    async def __call__[Req: Request, T](self, edge: Edge[Req, T], request: Req, text: str | None = None) -> Outcome[T]:
        """Run the edge for one request, waiting for its row lock.

        Raises:
            psycopg.Error: the database refused the statement.
            Unknown: the database did not answer, or the row stayed locked for the whole patience.
        """
        batch = f"[{text if text is not None else edge.encode(request)}]"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            try:
                async with self._turn:
                    return await self._try(edge, request, batch)
            except psycopg.errors.LockNotAvailable as error:
                if loop.time() >= deadline:
                    raise Unknown(f"Run {request.run_id} was locked for {self._patience:.0f} s.") from error
                log.info("ledger.locked", edge=edge.name, run=str(request.run_id))

    async def _try[Req: Request, T](self, edge: Edge[Req, T], request: Req, batch: str) -> Outcome[T]:
        sql = edge.statement(skip_locked=False)
        now = None
        for _ in range(3):
            rows = await self._connection.fetch(sql, {"batch": batch})
            if rows:
                return Won(edge.decode(request, rows[0][1:]))
            now = standing((await self._connection.fetch(LOOK, {"batch": look_batch([request])}))[0])
            outcome = edge.judge(request, now)
            if outcome is not None:
                return outcome
        return Lost(Reason.BUSY, now)

    async def close(self) -> None:
        """Close the connection once nobody uses it."""
        async with self._turn:
            await self._connection.close()


def _fail[Req: Request, T](calls: list[_Call[Req, T]], error: Exception) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error)
