"""The Context that the driver hands to a node: speaks to the bus from any thread, journals steps, runs threads.

One instance lives for one activation of one node. It never writes a status.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel

from runs import ids, payloads
from runs.driver.steps import StepJournal
from runs.driver.threads import Threads
from runs.errors import LychdError
from runs.events.event import Kind
from runs.patterns import Context, NoVerdict, RetryPolicy, RunInfo, Verdict
from runs.patterns.context import Level, Span
from runs.patterns.retry import NO_RETRY

# A bar that moves ten times a second is smooth; what lies between two such moments is told by the next one.
PROGRESS_INTERVAL = 0.1
TOKEN_LIMIT = 64 * 1024


class Emit(Protocol):
    """Publishes an event of this Run; only on the loop's thread."""

    def __call__(self, kind: Kind, *, node: str | None = None, data: dict[str, Any]) -> Any: ...


class NodeContext[I: BaseModel, S: BaseModel](Context[I, S]):
    """The real thing behind `runs.patterns.Context`."""

    def __init__(
        self,
        *,
        given: I,
        state: S,
        run: RunInfo,
        emit: Emit,
        journal: StepJournal,
        threads: Threads,
        limit: int,
        verdict: Verdict | None = None,
    ) -> None:
        self._input = given
        self._state = state
        self._run = run
        self._emit = emit
        self._journal = journal
        self._threads = threads
        self._limit = limit
        self._verdict = verdict
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._cancelled = threading.Event()
        self._closed = False
        self._progress_at = 0.0

    @property
    def input(self) -> I:
        return self._input

    @property
    def state(self) -> S:
        return self._state

    @state.setter
    def state(self, value: S) -> None:
        self._state = value

    @property
    def run(self) -> RunInfo:
        return self._run

    @property
    def verdict(self) -> Verdict:
        if self._verdict is None:
            raise NoVerdict(f"Node {self._run.node!r} was not entered from a wait, so there is no verdict.")
        return self._verdict

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Tell the node's threads to stop."""
        self._cancelled.set()

    def close(self) -> None:
        """Nothing is said through this context any more: its activation has ended."""
        self._closed = True

    def log(self, message: str, *, level: Level = "info", **fields: Any) -> None:
        data: dict[str, Any] = {"message": payloads.escaped(message), "level": level}
        if fields:
            data["fields"] = payloads.escaped(fields)
        self._say(Kind.LOG, self._bounded(data))

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        now = time.monotonic()
        if now - self._progress_at < PROGRESS_INTERVAL and done != total:
            return
        self._progress_at = now
        self._say(
            Kind.PROGRESS,
            self._bounded(payloads.escaped({"done": done, "total": total, "message": message})),
        )

    def token(self, text: str) -> None:
        shown = payloads.escaped(text)
        for start in range(0, len(shown), TOKEN_LIMIT):
            self._say(Kind.TOKEN, {"text": shown[start : start + TOKEN_LIMIT]})

    def fragment(self, name: str, data: Any) -> None:
        value = {"name": payloads.escaped(name), "data": data}
        try:
            payloads.check(value, "event", self._limit)
        except LychdError as error:
            # Messages never raise into the node; the follower is told what could not be shown.
            value = {"name": payloads.escaped(name), "data": None, "refused": error.detail}
        self._say(Kind.FRAGMENT, value)

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: RetryPolicy = NO_RETRY,
        timeout: Span | None = None,
        returns: type[Any] | None = None,
    ) -> Any:
        return await self._journal.step(
            name, fn, args, retry=retry, timeout=timeout, returns=returns, cancel=self.cancel
        )

    async def run_sync[*Ts, R](self, fn: Callable[[*Ts], R], /, *args: *Ts) -> R:
        return await self._threads.run(self.cancel, fn, *args)

    def effect_key(self, name: str, occurrence: int | None = None) -> uuid.UUID:
        which = self._journal.next_occurrence(name) if occurrence is None else occurrence
        return ids.effect_key(self._run.id, self._run.visit, name, which)

    def _bounded(self, data: dict[str, Any]) -> dict[str, Any]:
        try:
            payloads.check(data, "event", self._limit)
        except LychdError as error:
            return {"message": error.detail, "level": "warning", "refused": True}
        return data

    def _say(self, kind: Kind, data: dict[str, Any]) -> None:
        if threading.get_ident() == self._home:
            self._speak(kind, data)
        else:
            self._loop.call_soon_threadsafe(self._speak, kind, data)

    def _speak(self, kind: Kind, data: dict[str, Any]) -> None:
        if not self._closed:
            self._emit(kind, node=self._run.node, data=data)
