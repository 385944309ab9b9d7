"""The Vessel's host: Daphne and the application's lifespan on one event loop, and the exit code of the process.

Order: the lifespan starts while nothing listens; Daphne serves; at a stop it ceases to listen and drains; the
lifespan ends; nothing may be left. It holds no Run and no service of its own, and it is the only module (with
`lychd.hosting`) that knows Daphne. (Rulings 31, 35, 37, 38; TOP-7, BYD-5.)
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from lychd.hosting import bind as binding
from lychd.hosting.lifespan import Application, Lifespan, ShutdownFailed, StartupFailed

if TYPE_CHECKING:
    from lychd.hosting.server import Server

log = structlog.get_logger()

BODY_LIMIT = 2 * 1024 * 1024
LEFT_OVER = 2.0
"""Seconds that tasks and threads which nobody owned any more have to end, beyond the deadline if need be."""
WATCHDOG = 10.0
"""Seconds beyond all deadlines after which the process ends although its loop hangs."""
MOST_FILES = 65536


class Exit(IntEnum):
    """Why the process ended."""

    STOPPED = 0
    LIFESPAN_LOST = 1
    STARTUP_FAILED = 3
    CANNOT_LISTEN = 4
    SECOND_SIGNAL = 5
    SHUTDOWN_OVERDUE = 6
    SIGNAL_WHILE_STARTING = 130


class _Phase(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


def run(
    application: Application,
    *,
    bind: str,
    startup_timeout: float = 60.0,
    drain_seconds: float = 30.0,
    shutdown_timeout: float = 60.0,
    body_limit: int = BODY_LIMIT,
    on_listening: Callable[[str], None] | None = None,
    on_stopping: Callable[[], None] | None = None,
) -> int:
    """Host an ASGI application until a signal, or until the application asks to end. Once in a process.

    The lifespan's state, of which each scope gets a copy, carries two things from the host: `lychd.stop(code, reason)`
    ends the process with that exit code after an orderly shutdown, from any thread; `lychd.stopping` is an
    `asyncio.Event`, set when a stop begins, so that endless answers can end before the drain is used up. Each scope's
    extension `lychd.writable` has an async `wait()`: True when the connection can take more, False when it is gone.

    Args:
        application: speaks http, websocket and lifespan.
        bind: `host:port` (0: any free port) or `unix:/path`.
        startup_timeout: seconds in which the lifespan must have started.
        drain_seconds: seconds that open requests may go on after a stop was asked for.
        shutdown_timeout: seconds in which the lifespan must have ended.
        body_limit: bytes of a request body; more is answered 413.
        on_listening: called with the URL when connections are taken.
        on_stopping: called once when a stop begins, after the last connection was taken, and in any case before the
            process is ended at once.

    Returns:
        The exit code (`Exit`, or the one the application asked for). A second signal, a shutdown that fails or takes
        too long, and a failed startup that does not end do not return: they end the process at once.

    Raises:
        BadSetting: `bind` cannot be read.
    """
    where = binding.parse(bind)
    _raise_file_limit()

    from lychd.hosting import reactor

    loop = reactor.install()

    from lychd.hosting.server import Hosting, Server

    host = _Host(loop, application, drain_seconds + shutdown_timeout, shutdown_timeout)
    listening, stopping = on_listening or _nothing, on_stopping or _nothing
    host.when_stopping = stopping
    hosting = Hosting(where, body_limit, drain_seconds, host.guarded(listening), host.told_to_stop)
    host.server = Server(application, host.state, hosting)
    return host.run(startup_timeout)


class _Host:
    """One life: the phases, the exit code, and who may end it."""

    server: Server

    def __init__(
        self, loop: asyncio.AbstractEventLoop, application: Application, whole_stop: float, shutdown: float
    ) -> None:
        self.state: dict[str, Any] = {"lychd.stop": self.ask_to_stop, "lychd.stopping": asyncio.Event()}
        self._loop = loop
        self._lifespan = Lifespan(application, self.state)
        self._stopping: asyncio.Event = self.state["lychd.stopping"]
        self._shutdown_timeout = shutdown
        self._watchdog = threading.Timer(whole_stop + WATCHDOG, os._exit, (Exit.SHUTDOWN_OVERDUE,))
        self._watchdog.daemon = True
        self._phase = _Phase.STARTING
        self._code: int = Exit.STOPPED
        self._deadline = 0.0
        self._starting: asyncio.Task[None] | None = None
        self.when_stopping: Callable[[], None] | None = None

    def run(self, startup_timeout: float) -> int:
        """Start, serve, shut down; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        if self._start(startup_timeout):
            self._lifespan.when_it_ends(self._lifespan_ended)
            if self._phase is _Phase.STARTING:
                self._serve()
            self._begin_stop()
            if self._lifespan.alive:
                self._shut_down()
        self._sweep()
        self._watchdog.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)
        self._loop.close()
        log.info("vessel.ended", code=int(self._code))
        return int(self._code)

    def ask_to_stop(self, code: int, reason: str) -> None:
        """End the process in good order; the first non-zero code stands. Callable from any thread."""
        self._loop.call_soon_threadsafe(self._stop, code, reason)

    def guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """Wrap a caller's hook: should it raise, the process stops with `STARTUP_FAILED` in good order."""

        def guarded(*args: Any) -> None:
            try:
                call(*args)
            except Exception as error:
                log.exception("vessel.hook_failed")
                self._stop(Exit.STARTUP_FAILED, f"{type(error).__name__}: {error}")

        return guarded

    def told_to_stop(self) -> None:
        """Call the caller's hook for a stop, the first time."""
        call, self.when_stopping = self.when_stopping, None
        if call is not None:
            self.guarded(call)()

    def _start(self, within: float) -> bool:
        self._starting = self._loop.create_task(self._lifespan.startup(within), name="startup")
        try:
            self._loop.run_until_complete(self._starting)
        except asyncio.CancelledError:
            self._code = self._code or Exit.STARTUP_FAILED
            log.info("vessel.startup_cancelled", code=int(self._code))
        except StartupFailed as error:
            self._code = self._code or Exit.STARTUP_FAILED
            log.error("vessel.startup_failed", reason=error.detail)
        else:
            return True
        self._begin_stop()
        self._deadline = self._loop.time() + self._shutdown_timeout
        if not self._loop.run_until_complete(self._lifespan.abandon(self._shutdown_timeout)):
            log.error("vessel.startup_does_not_end", seconds=self._shutdown_timeout)
            self._leave(self._code)
        return False

    def _serve(self) -> None:
        self._phase = _Phase.SERVING
        self.server.run()
        if self.server.failure is not None:
            self._code = self._code or Exit.CANNOT_LISTEN
            log.error("vessel.cannot_listen", reason=self.server.failure)

    def _shut_down(self) -> None:
        self._deadline = self._loop.time() + self._shutdown_timeout
        try:
            self._loop.run_until_complete(self._lifespan.shutdown(self._shutdown_timeout))
        except TimeoutError:
            log.error("vessel.shutdown_overdue", seconds=self._shutdown_timeout, tasks=self._tasks())
        except ShutdownFailed as error:
            log.error("vessel.shutdown_failed", reason=error.detail, tasks=self._tasks())
        else:
            return
        self._leave(Exit.SHUTDOWN_OVERDUE)

    def _sweep(self) -> None:
        """Prove that nothing is left on the loop or in its threads; what is, is named."""
        if left := asyncio.all_tasks(self._loop):
            log.warning("vessel.tasks_left", tasks=self._tasks())
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left, timeout=LEFT_OVER))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        try:
            self._loop.run_until_complete(self._join_threads())
        except TimeoutError:
            # A thread cannot be cancelled, and the interpreter would wait for it for ever.
            log.error("vessel.threads_left", threads=[each.name for each in threading.enumerate()])
            self._leave(self._code or Exit.SHUTDOWN_OVERDUE)

    async def _join_threads(self) -> None:
        async with asyncio.timeout_at(max(self._deadline, self._loop.time() + LEFT_OVER)):
            await self._loop.shutdown_default_executor()

    def _signalled(self, number: signal.Signals) -> None:
        if self._phase is _Phase.STOPPING:
            log.error("vessel.second_signal", signal=number.name, tasks=self._tasks())
            self._leave(Exit.SECOND_SIGNAL)
        starting = self._phase is _Phase.STARTING
        self._stop(Exit.SIGNAL_WHILE_STARTING if starting else Exit.STOPPED, number.name)

    def _lifespan_ended(self, why: str) -> None:
        if self._phase is not _Phase.STOPPING:
            self._stop(Exit.LIFESPAN_LOST, why)

    def _stop(self, code: int, reason: str) -> None:
        self._code = self._code or code
        if self._phase is _Phase.STOPPING:
            if code:
                log.error("vessel.stop_asked", code=int(code), reason=reason)
            return
        phase = self._phase
        (log.error if code else log.info)("vessel.stopping", code=int(code), reason=reason, phase=phase)
        self._begin_stop()
        if phase is _Phase.SERVING:
            self.server.stop()
        elif self._starting is not None:
            self._starting.cancel()

    def _begin_stop(self) -> None:
        self._phase = _Phase.STOPPING
        if not self._stopping.is_set():
            self._stopping.set()
            self._watchdog.start()

    def _tasks(self) -> list[str]:
        return sorted(task.get_name() for task in asyncio.all_tasks(self._loop))

    def _leave(self, code: int) -> NoReturn:
        """End the process now: no handlers, no joins; only what was logged is written out."""
        self.told_to_stop()
        for handler in logging.getLogger().handlers:
            handler.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


def _nothing(*_: object) -> None:
    return None


def _raise_file_limit() -> None:
    """A thousand readers are a thousand sockets: take as many files as the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
