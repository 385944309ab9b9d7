"""One HTTP request: Daphne's, with a limit on the body, back-pressure on the answer, and no forged root path.

A body above the limit is answered 413 while it still arrives; what comes after is read and thrown away, never
kept, until the client stops or a few seconds have passed. (Rulings 31 and 35.)
"""
# Daphne has no types and Twisted's are partial: their attributes are unknown to the checker.
# pyright: reportUntypedBaseClass=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false
# pyright: reportOptionalMemberAccess=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, override

from daphne.http_protocol import HTTPFactory as DaphneHTTPFactory
from daphne.http_protocol import WebRequest
from twisted.internet import reactor
from twisted.web import http

from lychd.hosting import problems
from lychd.hosting.writable import Writable

if TYPE_CHECKING:
    from lychd.hosting.server import Server

LINGER = 5.0
"""Seconds in which a refused client may still send before its connection is cut."""

MOST_DIGITS = 18
"""Digits of a Content-Length; more is no length."""

STALLED_AFTER = 120.0
"""Seconds after which a client that takes nothing of its answer is given up."""


class Request(WebRequest):
    """Where a name is in camel case it overrides Twisted's."""

    server: Server
    writable: Writable | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._received = 0
        self._refused = False
        self._cut: Any = None
        # Twisted would parse forms on the loop, for an argument list that nobody reads.
        super().__init__(*args, **{**kwargs, "parsePOSTFormSubmission": False})

    @override
    def gotLength(self, length: int | None) -> None:
        super().gotLength(length)
        if length is not None and length > self.server.body_limit:
            self._refuse()

    @override
    def handleContentChunk(self, data: bytes) -> None:
        if self._refused:
            return
        self._received += len(data)
        if self._received > self.server.body_limit:
            self._refuse()
        else:
            super().handleContentChunk(data)

    @override
    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        if self._refused:
            self.channel.transport.loseConnection()
        else:
            super().requestReceived(command, path, version)

    @override
    def process(self) -> Any:
        # Daphne takes the application's root path from this header, whoever sent it.
        self.requestHeaders.removeHeader(b"daphne-root-path")
        if self.server.stopping:
            return self.answer(problems.RESTARTING)
        if not all(value.isascii() for value in self.requestHeaders.getRawHeaders(b"sec-websocket-protocol", ())):
            return self.answer(problems.BAD_SUBPROTOCOL)
        processed = super().process()
        if self.transport is None and self.content is not None:
            self.content.close()  # it became a WebSocket, and nobody else closes what it brought along
        return processed

    def attach(self) -> Writable:
        """Stand as producer on the transport.

        Returns:
            What the application waits on.
        """
        channel: Any = self.channel
        self.writable = Writable(paused=channel._waitingForTransport)  # noqa: SLF001 - Twisted tells nobody else
        self.registerProducer(self.writable, True)
        return self.writable

    @override
    def handle_reply(self, message: MutableMapping[str, Any]) -> None:
        bodyless = self.method == b"HEAD" or self.code in http.NO_BODY_CODES
        if bodyless and message.get("type") == "http.response.body":
            message = {**message, "body": b""}
        super().handle_reply(message)

    def answer(self, problem: problems.Problem) -> None:
        """Answer with a problem and close the connection; only cut it where an answer has begun already."""
        if self.finished or self.channel is None:
            return
        if self._response_started:
            self.channel.transport.abortConnection()
            return
        self.close_after()
        self.handle_reply({"type": "http.response.start", "status": int(problem.status), "headers": problem.headers})
        self.handle_reply({"type": "http.response.body", "body": problem.body})

    def close_after(self) -> None:
        """Let the connection end with this answer instead of taking a next request."""
        if self.finished or self.channel is None:  # a finished request has no attribute `channel` any more
            return
        self.channel.persistent = False
        if not self.startedWriting:
            self.responseHeaders.setRawHeaders(b"Connection", [b"close"])

    @override
    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        self.answer(problems.Problem(HTTPStatus(status), HTTPStatus(status).phrase.lower().replace(" ", "_"), body))

    @override
    def handle_exception(self, exception: BaseException | None) -> None:
        """The application raised, or ended without an answer."""
        self.answer(problems.RESTARTING if exception is None and self.server.stopping else problems.FAILED)

    @override
    def finish(self) -> None:
        self._detach()
        super().finish()

    @override
    def connectionLost(self, reason: Any) -> None:
        if self._cut is not None and self._cut.active():
            self._cut.cancel()
        self.producer = None
        self._detach()
        super().connectionLost(reason)

    @override
    def check_timeouts(self) -> None:
        super().check_timeouts()
        if self.writable and self.writable.stalled > STALLED_AFTER and self.channel is not None:
            self.channel.transport.abortConnection()

    def _detach(self) -> None:
        if self.producer is not None:
            self.unregisterProducer()
        if self.writable is not None:
            self.writable.close()

    def _refuse(self) -> None:
        self._refused = True
        channel: Any = self.channel
        problem = problems.body_too_large(self.server.body_limit)
        head = b"HTTP/1.1 %d %s\r\n" % (problem.status, problem.status.phrase.encode())
        lines = b"".join(b"%s: %s\r\n" % line for line in [*problem.headers, (b"Connection", b"close")])
        # The order matters: closing with unread bytes would reset the connection and lose the answer.
        self.requestHeaders.removeHeader(b"expect")
        self.content.close()
        channel.persistent = False
        channel.transport.unregisterProducer()
        channel.transport.write(head + lines + b"\r\n" + problem.body)
        channel.transport.loseWriteConnection()
        self._cut = reactor.callLater(LINGER, channel.transport.abortConnection)
        self.server.log_action("http", "refused", {"status": int(problem.status), "client": str(self.client)})


class Channel(http.HTTPChannel):
    """One HTTP connection; refuses a length that Python would not even read as a number."""

    @override
    def headerReceived(self, line: bytes) -> bool:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and len(value.strip()) > MOST_DIGITS:
            self._respondToBadRequestAndDisconnect()
            return False
        return super().headerReceived(line)


class HTTPFactory(DaphneHTTPFactory):
    """Makes our channels and requests instead of Twisted's and Daphne's."""

    def protocol(self) -> Any:
        return http._GenericHTTPChannelProtocol(Channel())  # noqa: SLF001 - what Twisted's own factory does

    @override
    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = Request
        return protocol
