"""The one helper for work that must complete although its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def finish[T](work: Awaitable[T]) -> tuple[T, bool]:
    """Wait for `work` to its end, whatever cancellations arrive meanwhile.

    Returns:
        The result, and whether the caller was cancelled while waiting (who then has to raise CancelledError).

    Raises:
        Whatever `work` raises. Cancellation of `work` itself is raised as it is.
    """
    future = asyncio.ensure_future(work)
    cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.cancelled():
                raise
            cancelled = True
        except BaseException:
            if not cancelled:
                raise
    if cancelled and future.exception() is not None:
        # Both happened; the failure is the news, the cancellation is kept as its context.
        raise asyncio.CancelledError from future.exception()
    return future.result(), cancelled


async def complete[T](work: Awaitable[T]) -> T:
    """`finish`, then raise CancelledError if the caller was cancelled meanwhile.

    Cancellation: deferred until `work` has ended.
    """
    result, cancelled = await finish(work)
    if cancelled:
        raise asyncio.CancelledError
    return result
