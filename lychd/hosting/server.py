"""Daphne's server on a reactor that is ours: one address, scopes with state and back-pressure, a stop that drains.

It installs no signal handlers and decides no exit code; `lychd.vessel` does. Import it only after the reactor was
installed (`lychd.hosting.reactor`).
"""
# Daphne has no types and Twisted's are partial: their attributes are unknown to the checker.
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, override

import daphne.server
import structlog
from twisted.internet import reactor
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, UNIXServerEndpoint
from twisted.logger import LogLevel, formatEvent, globalLogBeginner

from lychd.hosting.bind import Bind
from lychd.hosting.lifespan import Application
from lychd.hosting.request import HTTPFactory, Request
from lychd.hosting.websocket import LARGEST_MESSAGE, WebSocket, WebSocketFactory

log = structlog.get_logger()

BACKLOG = 1024
GONE_PAUSE = 0.01
LAST_WORDS = 2.0
"""Seconds that a cancelled application has to end."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """How to serve: limits in bytes, times in seconds."""

    bind: Bind
    body_limit: int
    drain: float
    on_listening: Callable[[str], None]
    on_stopping: Callable[[], None]


class Server(daphne.server.Server):
    """Serves one application on one address, from `run` until `stop` has drained it."""

    def __init__(self, application: Application, state: MutableMapping[str, Any], hosting: Hosting) -> None:
        super().__init__(
            application,
            endpoints=[hosting.bind.url()],
            action_logger=_log_access,
            server_name="lychd",
            websocket_timeout=-1,
            websocket_max_message_size=LARGEST_MESSAGE,
            websocket_max_frame_size=LARGEST_MESSAGE,
        )
        self.state = state
        self.hosting = hosting
        self.body_limit = hosting.body_limit
        self.stopping = False
        self.failure: str | None = None
        self._port: Any = None
        self._drained = False

    @override
    def run(self) -> None:
        """Listen and serve until `stop`; returns at once, with `failure` set, where it cannot listen."""
        self.connections: dict[Any, dict[str, Any]] = {}
        self.http_factory = HTTPFactory(self)
        self.ws_factory = WebSocketFactory(self, server=self.server_name)
        self.ws_factory.setProtocolOptions(
            autoPingTimeout=self.ping_timeout,
            allowNullOrigin=True,  # who may connect from where is the application's to say
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=self.websocket_max_message_size,
            maxFramePayloadSize=self.websocket_max_frame_size,
        )
        _hear_twisted()
        _endpoint(self.hosting.bind).listen(self.http_factory).addCallbacks(self.listen_success, self.listen_error)
        if self.failure is not None:
            return
        reactor.callLater(1, self.application_checker)
        reactor.callLater(2, self.timeout_checker)
        reactor.addSystemEventTrigger("before", "shutdown", self.kill_all_applications)
        reactor.callLater(0, self._tell_url)
        reactor.run(installSignalHandlers=False)
        for call in reactor.getDelayedCalls():
            call.cancel()

    @override
    def stop(self) -> None:
        """Begin to stop: nothing new is taken, what runs may end."""
        if not self.stopping:
            self.stopping = True
            reactor.stop()

    @override
    def listen_success(self, port: Any) -> None:
        self._port = port

    @override
    def listen_error(self, failure: Any) -> None:
        reason = getattr(failure.value, "socketError", None) or failure.value
        self.failure = f"cannot listen on {self.hosting.bind.url()}: {getattr(reason, 'strerror', None) or reason}"

    @override
    def create_application(self, protocol: Request | WebSocket, scope: dict[str, Any]) -> asyncio.Queue[Any]:
        """Start the application for one connection and hand back the queue of its incoming messages."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        writable = protocol.attach()
        if isinstance(protocol, WebSocket):
            scope.setdefault("scheme", "ws")
        scope["asgi"] = {"version": "3.0", "spec_version": "2.3"}
        scope["state"] = dict(self.state)
        scope["extensions"] = {"lychd.writable": {"wait": writable.wait}}

        async def receive() -> Any:
            message = await queue.get()
            if isinstance(protocol, WebSocket):
                protocol.heard(queue.qsize())
            return message

        async def serve() -> None:
            await self.application(scope, receive, partial(self.handle_reply, protocol))

        task = asyncio.get_running_loop().create_task(serve(), name=f"{scope['type']} {scope['path']}")
        self.connections[protocol]["application_instance"] = task
        task.add_done_callback(partial(self._ended, protocol))
        return queue

    @override
    async def handle_reply(self, protocol: Request | WebSocket, message: MutableMapping[str, Any]) -> None:
        """Give one message to the connection; waits only where an application ignored a full transport."""
        writable = protocol.writable
        if writable is not None:
            await writable.room()
            if writable.gone:
                # Nothing below waits then, and an application that only sends would keep the loop for itself.
                await asyncio.sleep(GONE_PAUSE)
            writable.sent(len(message.get("body") or message.get("text") or message.get("bytes") or b""))
        await super().handle_reply(protocol, message)

    @override
    def kill_all_applications(self) -> Deferred[Any]:
        """Called by the reactor before it ends."""
        return Deferred.fromFuture(asyncio.ensure_future(self._drain()))

    def _tell_url(self) -> None:
        host = self._port.getHost()
        self.hosting.on_listening(self.hosting.bind.url(getattr(host, "port", None)))

    def _ended(self, protocol: Request | WebSocket, task: asyncio.Task[None]) -> None:
        """Reap at once what Daphne would look at within a second, and answer for an application that did not."""
        details = self.connections.get(protocol, {})
        details.pop("application_instance", None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("http.application_raised", application=task.get_name(), exc_info=error)
        if not details.get("disconnected"):
            protocol.handle_exception(error)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await maybeDeferred(self._port.stopListening).asFuture(loop)
            self.hosting.on_stopping()
            for protocol in list(self.connections):
                if isinstance(protocol, WebSocket):
                    protocol.restart()
                elif isinstance(protocol, Request):
                    protocol.close_after()
        except Exception:
            log.exception("vessel.stop_listening_failed")
        if running := self._applications():
            log.info("vessel.draining", applications=len(running), seconds=self.hosting.drain)
            _, rest = await asyncio.wait(running, timeout=self.hosting.drain)
            for task in rest:
                task.cancel()
            if rest:
                log.info("vessel.drain_ended", cancelled=sorted(task.get_name() for task in rest))
                await asyncio.wait(rest, timeout=LAST_WORDS)

    def _applications(self) -> set[asyncio.Task[None]]:
        return {each["application_instance"] for each in self.connections.values() if "application_instance" in each}


def _endpoint(bind: Bind) -> Any:
    if bind.path is not None:
        return UNIXServerEndpoint(reactor, bind.path, backlog=BACKLOG, mode=0o600, wantPID=False)
    kind = TCP6ServerEndpoint if bind.v6 else TCP4ServerEndpoint
    return kind(reactor, bind.port, backlog=BACKLOG, interface=bind.host)


def _log_access(protocol: str, action: str, details: dict[str, Any]) -> None:
    fields = {**details, "path": str(details.get("path", "")).split("?", 1)[0]}  # a query may hold a secret
    log.debug("access", protocol=protocol, action=action, **fields)


def _hear_twisted() -> None:
    """Send Twisted's errors to our log and leave Python's warnings where they go."""
    shown = warnings.showwarning
    globalLogBeginner.beginLoggingTo([_log_twisted], redirectStandardIO=False, discardBuffer=True)
    warnings.showwarning = shown


def _log_twisted(event: dict[str, Any]) -> None:
    if (event.get("log_level") or LogLevel.debug) >= LogLevel.error:
        failure = event.get("log_failure")
        log.error("vessel.twisted", text=formatEvent(event), error=failure and failure.getErrorMessage())
        if failure:
            log.debug("vessel.twisted", traceback=failure.getTraceback())
