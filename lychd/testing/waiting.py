"""Waiting for a condition with a deadline, the one way for tests to wait: never a pause for luck."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(
    check: Callable[[], Any] | Callable[[], Awaitable[Any]], within: float = 5.0, every: float = 0.01
) -> Any:
    """Wait until `check` (sync or async) returns a truthy value and return that value.

    Args:
        check: called again and again on the running loop.
        within: deadline in seconds.
        every: pause between two calls in seconds.

    Raises:
        AssertionError: the deadline passed; names the check and its last value.
    """
    deadline = time.monotonic() + within
    while True:
        value = check()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_never(check, within, value))
        await asyncio.sleep(every)


def eventually_sync(check: Callable[[], Any], within: float = 5.0, every: float = 0.01) -> Any:
    """`eventually` for code without a loop."""
    deadline = time.monotonic() + within
    while not (value := check()):
        if time.monotonic() >= deadline:
            raise AssertionError(_never(check, within, value))
        time.sleep(every)
    return value


def _never(check: Any, within: float, value: Any) -> str:
    try:
        what = inspect.getsource(check).strip()
    except (OSError, TypeError):
        what = repr(check)
    return f"not within {within} s (last value {value!r}): {what}"
