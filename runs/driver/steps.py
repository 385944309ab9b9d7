"""`ctx.step`: do something once, remember its result under a stable key, return the record when the node runs again.

The key is (run, visit, name, occurrence); the same key with other arguments fails loudly (ruling 26). Retries and time
limits stand around the call, the journal entry behind it: a crash in between may call `fn` again, which is why effects
outside carry `ctx.effect_key`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import typing
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter, ValidationError

from runs import payloads
from runs.driver import orm
from runs.driver.threads import Threads
from runs.errors import Conflict, Invalid, NodeFailed, said
from runs.events.event import Kind
from runs.ledger.journal import RECORD_STEP, RecordStep
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost
from runs.patterns import RetryPolicy
from runs.patterns.context import Span


class StepMismatch(Conflict):
    """A step was recorded with other arguments than it is called with now."""

    code, title = "step_mismatch", "Step recorded with other arguments"


# A TimeoutError as well, so that a retry policy and an author's `except` may name it as one.
class StepTimeout(NodeFailed, TimeoutError):
    """A step took longer than its time limit."""

    code, title = "step_timeout", "Step took too long"


class HopLost(NodeFailed):
    """This hop may not write any more: somebody else owns the Run, or it has ended."""

    code, title = "hop_lost", "Hop lost"

    def __init__(self, lost: Lost) -> None:
        super().__init__(f"The hop may not write any more ({lost.reason.value}).")
        self.lost = lost


@dataclass(frozen=True, slots=True)
class Hop:
    """The identity that guards each write of a hop (ruling 6)."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded step."""

    args_digest: str
    result: Any


@dataclass(slots=True)
class StepJournal:
    """The steps of one activation of one node.

    Args:
        recorded: what earlier hops recorded for this visit, by (name, occurrence).
        emit: tells followers about attempts and results.
    """

    hop: Hop
    visit: int
    node: str
    ledger: Ledger
    threads: Threads
    emit: Callable[..., Any]
    limit: int
    recorded: dict[tuple[str, int], Entry]
    _counts: dict[str, int] = field(default_factory=dict[str, int])

    def next_occurrence(self, name: str) -> int:
        """The occurrence that the next step of this name will have."""
        return self._counts.get(name, 0)

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        retry: RetryPolicy,
        timeout: Span | None,
        returns: type[Any] | None,
        cancel: Callable[[], None],
    ) -> Any:
        """See `Context.step`."""
        if not name or len(name) > 100:
            raise Invalid("A step's name has 1 to 100 characters.")
        occurrence = self._counts.get(name, 0)
        self._counts[name] = occurrence + 1
        digest = payloads.digest(payloads.jsonable(list(args), "step arguments"))
        adapter = _adapter(fn, returns)
        known = self.recorded.get((name, occurrence))
        if known is not None:
            self._same(name, known.args_digest, digest)
            return _read(adapter, known.result, name)
        began = time.monotonic()
        result, attempts = await self._attempts(name, fn, args, retry, timeout, cancel)
        value = payloads.jsonable(result, "step result")
        text = payloads.check(value, "step result", self.limit)
        outcome = await self.ledger.run(
            RECORD_STEP,
            RecordStep(
                run_id=self.hop.run_id,
                seq=self.hop.seq,
                claim_id=self.hop.claim_id,
                visit=self.visit,
                name=name,
                occurrence=occurrence,
                args_digest=digest,
                result_json=text,
            ),
        )
        if isinstance(outcome, Lost):
            raise HopLost(outcome)
        self._same(name, outcome.value.args_digest, digest)
        self.emit(
            Kind.TRANSITION,
            node=self.node,
            data={
                "step": name,
                "occurrence": occurrence,
                "phase": "recorded",
                "attempts": attempts,
                "ms": round((time.monotonic() - began) * 1000, 1),
            },
        )
        return _read(adapter, outcome.value.result, name)

    async def _attempts(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        retry: RetryPolicy,
        timeout: Span | None,
        cancel: Callable[[], None],
    ) -> tuple[Any, int]:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._call(name, fn, args, seconds, cancel), attempt
            except Exception as error:
                if not retry.allows(attempt, error):
                    raise
                delay = retry.delay_before(attempt + 1)
                self.emit(
                    Kind.TRANSITION,
                    node=self.node,
                    data={
                        "step": name,
                        "phase": "retry",
                        "attempt": attempt,
                        "error": payloads.escaped(said(error)[:2000]),
                        "next_in": delay,
                    },
                )
                await orm.close_lost(error)
                await asyncio.sleep(delay)

    async def _call(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        seconds: float | None,
        cancel: Callable[[], None],
    ) -> Any:
        def work() -> Awaitable[Any]:
            if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
                return fn(*args)
            # A time limit cannot end a thread: it is waited for, and then reported late.
            return self.threads.run(told, fn, *args)

        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()

        def told() -> None:
            # Only a cancellation from outside ends the node; after a time limit another attempt may follow.
            if task.cancelling() - limit.expired() > before:
                cancel()

        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                result = await work()
                # `lambda: client.get(url)` looks sync and is not.
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as error:
            if limit.expired():
                raise StepTimeout(f"Step {name!r} took longer than {seconds:g} s.") from error
            raise

    def _same(self, name: str, recorded: str, now: str) -> None:
        if recorded != now:
            raise StepMismatch(f"Step {name!r} was recorded with other arguments; its result would not fit.")


# Weak, since an inner function holds the state of its node.
_HINTED: WeakKeyDictionary[Callable[..., Any], TypeAdapter[Any] | None] = WeakKeyDictionary()


def _adapter(fn: Callable[..., Any], returns: type[Any] | None) -> TypeAdapter[Any] | None:
    if returns is not None:
        return TypeAdapter(returns)
    function = inspect.unwrap(getattr(fn, "__func__", fn))
    try:
        if function not in _HINTED:
            _HINTED[function] = _hinted(function)
        return _HINTED[function]
    except TypeError:  # a partial, a callable object: its result stays JSON
        return None


def _hinted(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    try:
        hint: Any = typing.get_type_hints(function, include_extras=True).get("return")
    except NameError:
        return None
    return None if hint is None or hint is Any else TypeAdapter(hint)


def _read(adapter: TypeAdapter[Any] | None, value: Any, name: str) -> Any:
    if adapter is None:
        return value
    try:
        return adapter.validate_json(payloads.canonical(value))
    except ValidationError as error:
        raise Invalid(f"The recorded result of step {name!r} does not fit its type any more: {error}") from error
