"""The server's half of the ASGI lifespan protocol: tells the application to start and to stop, and waits for its word.

It never listens and never decides an exit code; it knows no server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal

import structlog

from runs.errors import LychdError

log = structlog.get_logger()

type Application = Callable[..., Awaitable[None]]


class StartupFailed(LychdError):
    """The application did not start."""

    code, title = "startup_failed", "Startup failed"


class ShutdownFailed(LychdError):
    """The application did not end as it should."""

    code, title = "shutdown_failed", "Shutdown failed"


class Lifespan:
    """One life of the application; its task lives from `startup` to `shutdown` or `abandon`."""

    def __init__(self, application: Application, state: MutableMapping[str, Any]) -> None:
        self.state = state
        self._application = application
        self._to_application: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_application: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._failed = False

    @property
    def alive(self) -> bool:
        """Whether the application's task has begun and not ended."""
        return self._task is not None and not self._task.done()

    async def startup(self, within: float) -> None:
        """Start the application's lifespan and wait until it says that it is up.

        Args:
            within: seconds it may take.

        Raises:
            StartupFailed: it said so, ended, raised, does not speak lifespan, or took too long.

        Cancellation: propagates at once; the application's task lives on until `abandon`.
        """
        self._task = asyncio.create_task(self._live(), name="lifespan")
        await self._ask("startup", within, StartupFailed)

    async def shutdown(self, within: float) -> None:
        """Ask the application to end and wait until its task has ended.

        Raises:
            ShutdownFailed: it said so, raised, or ended before it was asked.
            TimeoutError: it took longer than `within` seconds.
        """
        async with asyncio.timeout(within):
            await self._ask("shutdown", None, ShutdownFailed)
            if self._task is not None:
                await asyncio.wait({self._task})
                if self._task.cancelled() or self._task.exception() is not None:
                    raise ShutdownFailed(_why(self._task))

    async def abandon(self, within: float) -> bool:
        """End a lifespan that did not start: cancel it, unless it reported a failure and is closing already.

        Returns:
            Whether its task ended within that many seconds.
        """
        if self._task is None:
            return True
        if not self._failed:
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=within)
        if not self._task.done():
            return False
        if not self._task.cancelled() and (error := self._task.exception()):
            log.debug("lifespan.raised", exc_info=error)
        return True

    def when_it_ends(self, told: Callable[[str], None]) -> None:
        """Call `told` with a sentence should the application's lifespan end, asked or not."""
        if self._task is not None:
            self._task.add_done_callback(lambda task: told(_why(task)))

    async def _live(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        await self._application(scope, self._to_application.get, self._from_application.put)

    async def _ask(self, what: Literal["startup", "shutdown"], within: float | None, failed: type[LychdError]) -> None:
        if self._task is None:
            raise failed("the lifespan has not begun")
        self._to_application.put_nowait({"type": f"lifespan.{what}"})
        answer = asyncio.ensure_future(self._from_application.get())
        try:
            await asyncio.wait({answer, self._task}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                message = answer.result()
                if message.get("type") == f"lifespan.{what}.complete":
                    return
                self._failed = True
                raise failed(_one_line(message.get("message") or f"the application answered {message.get('type')}"))
            if self._task.done():
                raise failed(_why(self._task))
            raise failed(f"{what} took longer than {within or 0:g} s")
        finally:
            answer.cancel()


def _why(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return "the application's lifespan was cancelled"
    error = task.exception()
    if error is None:
        return "the application's lifespan ended"
    log.debug("lifespan.raised", exc_info=error)
    return _one_line(str(error) if isinstance(error, LychdError) else f"{type(error).__name__}: {error}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
