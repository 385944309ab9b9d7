"""Worker threads for blocking node code. A thread cannot be stopped from outside: it is waited for (ruling 17)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from runs.driver import orm


class Threads:
    """The pool of one Vessel. `live` counts calls whose thread has not returned: a stop is proved only at zero."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=size, thread_name_prefix="node")
        self.live = 0

    async def run[*Ts, R](self, cancel: Callable[[], None], fn: Callable[[*Ts], R], *args: *Ts) -> R:
        """Call `fn` in a thread.

        Cancellation: `cancel` is called, the thread is waited for to its end however often the caller is cancelled
        meanwhile, then the cancellation goes on.
        """
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        self.live += 1
        future = loop.run_in_executor(self._pool, lambda: context.run(_called, fn, *args))
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.cancelled():
                raise
            cancel()
            while not future.done():
                try:
                    await asyncio.wait({future})
                except asyncio.CancelledError:
                    cancel()
            # The cancellation is already on its way; the thread's own error comes too late.
            if not future.cancelled():
                future.exception()
            raise
        finally:
            self.live -= 1
        return future.result()

    def close(self) -> None:
        """Take no more work; threads that still run are not waited for here, `live` says whether there are any."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _called[*Ts, R](fn: Callable[[*Ts], R], *args: *Ts) -> R:
    try:
        return fn(*args)
    finally:
        orm.give_back()
