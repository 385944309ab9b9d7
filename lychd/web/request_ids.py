"""One id a request, from its first byte to the log: taken from the client where it is usable, else minted.

Wraps HTTP and WebSocket alike; the id is bound to every log event of the request and, over HTTP, sent back.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from structlog.contextvars import bound_contextvars

from runs import ids

type Scope = dict[str, Any]
type Message = Any  # servers and frameworks disagree about how much of a mapping it is
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = b"x-request-id"
_USABLE = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_current: ContextVar[str | None] = ContextVar("lychd_request_id", default=None)


def current() -> str | None:
    """The id of the request that this task serves; None outside of one."""
    return _current.get()


def with_request_id(application: Application) -> Application:
    """The application with an id bound for each `http` and `websocket` scope; others pass untouched."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await application(scope, receive, send)
            return
        given = next((value for name, value in scope.get("headers", ()) if name == HEADER), b"")
        request_id = given.decode() if _USABLE.fullmatch(given) else str(ids.mint())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode())]
            await send(message)

        token = _current.set(request_id)
        try:
            with bound_contextvars(request_id=request_id):
                await application(scope, receive, send_with_id)
        finally:
            _current.reset(token)

    return wrapped
