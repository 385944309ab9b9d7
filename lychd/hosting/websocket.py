"""One WebSocket: Daphne's, with every close code that may be sent, back-pressure both ways, and a word at restart.

It never keeps frames for a client that does not read, nor messages of a client that the application does not
hear: it stops reading instead. (Rulings 31 and 35.)
"""
# Daphne has no types and autobahn's are partial: their attributes are unknown to the checker.
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, override

from autobahn.websocket.types import ConnectionDeny
from daphne.ws_protocol import WebSocketFactory as DaphneWebSocketFactory
from daphne.ws_protocol import WebSocketProtocol

from lychd.hosting.writable import Writable

if TYPE_CHECKING:
    from lychd.hosting.server import Server

GOING_AWAY, INTERNAL_ERROR = 1001, 1011

MOST_UNHEARD = 32
"""Messages that may wait for the application before the host stops reading the socket."""

LARGEST_MESSAGE = 64 * 1024
"""Bytes of one message from a client; ours only ever ask for little."""

_SENDABLE = {1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)}
"""Codes that a close frame may carry (RFC 6455 section 7.4); autobahn's own door lets only some through."""


class WebSocket(WebSocketProtocol):
    """Where a name is in camel case it overrides autobahn's."""

    server: Server
    writable: Writable | None = None
    _deaf = False

    def attach(self) -> Writable:
        """Stand as producer on the transport, in the place of the HTTP channel that the socket grew out of.

        Returns:
            What the application waits on.
        """
        self.writable = Writable()
        self.transport.unregisterProducer()
        self.transport.registerProducer(self.writable, True)
        return self.writable

    @override
    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        super().onMessage(payload, isBinary)
        if not self._deaf and self.application_queue.qsize() >= MOST_UNHEARD:
            self._deaf = True
            self.transport.pauseProducing()

    def heard(self, waiting: int) -> None:
        """The application took a message and `waiting` are left."""
        if self._deaf and waiting < MOST_UNHEARD // 2:
            self._deaf = False
            self.transport.resumeProducing()

    @override
    def onClose(self, wasClean: bool, code: int, reason: str) -> None:
        if self.writable is not None:
            self.writable.close()
        # A handshake that failed on its form never met the server.
        if hasattr(self, "server"):
            super().onClose(wasClean, code, reason)

    @override
    def handle_reply(self, message: MutableMapping[str, Any]) -> None:
        if message.get("type") == "websocket.close" and self.state != self.STATE_CONNECTING:
            self.close_with(message.get("code") or 1000, message.get("reason") or "")
        else:
            super().handle_reply(message)

    def close_with(self, code: int, reason: str) -> None:
        """Send a close frame; a code that may not be sent becomes 1011."""
        sent = code if code in _SENDABLE else INTERNAL_ERROR
        self.sendCloseFrame(code=sent, reasonUtf8=reason.encode()[:123], isReply=False)

    @override
    def handle_exception(self, exception: BaseException | None) -> None:
        """The application raised (1011, or a failed handshake), or ended without closing (1000)."""
        if hasattr(self, "handshake_deferred"):
            self.refuse(500, "Internal Server Error")
        elif self.state == self.STATE_OPEN:
            self.close_with(INTERNAL_ERROR if exception else 1000, "")

    def restart(self) -> None:
        """Tell the client that the server goes away and will be back."""
        if hasattr(self, "handshake_deferred"):
            self.refuse(503, "Service Unavailable")
        elif self.state == self.STATE_OPEN:
            self.close_with(GOING_AWAY, "restart")

    def refuse(self, status: int, reason: str) -> None:
        """Answer a pending handshake with an HTTP status."""
        self.handshake_deferred.errback(ConnectionDeny(code=status, reason=reason))
        del self.handshake_deferred


class WebSocketFactory(DaphneWebSocketFactory):
    """Makes our sockets instead of Daphne's."""

    protocol = WebSocket
