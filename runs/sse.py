"""A Run's stream as server-sent events: frames, keepalive, headers. What is said is `runs.stream`'s.

Each event's `id` is the cursor, so a client that comes back with `Last-Event-ID` goes on where it was; `data` is the
JSON that a WebSocket would carry, `event` its type. After `end` the client is to close: the stream is over.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import structlog
from django.http import StreamingHttpResponse

from runs.errors import LychdError
from runs.stream.messages import Message, What
from runs.stream.run import RunStream
from runs.stream.sources import Writable, always

log = structlog.get_logger(__name__)

KEEPALIVE = b": keepalive\n\n"
# Sent at once, so that the client's connection counts as open; how long it waits before it comes back, in ms.
OPENING = b"retry: 1000\n\n"


def writable_of(scope: dict[str, Any]) -> Writable:
    """How this connection says that it can take more (ruling 31)."""
    return scope.get("extensions", {}).get("lychd.writable", {}).get("wait", always)


def stopping_of(scope: dict[str, Any]) -> asyncio.Event | None:
    """What the host sets when it begins to stop; None under hosts that do not tell."""
    return scope.get("state", {}).get("lychd.stopping")


def frame(message: Message) -> bytes:
    """One message on the wire. JSON text has no line break, so it is one line of data."""
    if message.what is What.SILENCE:
        return KEEPALIVE
    place = f"id: {message.cursor}\n" if message.cursor is not None else ""
    return f"event: {message.what}\n{place}data: {message.text}\n\n".encode("utf-8", "backslashreplace")


def response(stream: RunStream, stopping: asyncio.Event | None) -> StreamingHttpResponse:
    """The answer that carries an opened stream to its end, at the latest until the host stops."""
    answer = StreamingHttpResponse(Body(stream, stopping), content_type="text/event-stream; charset=utf-8")
    answer["Cache-Control"] = "no-store"
    answer["X-Accel-Buffering"] = "no"
    return answer


class Body:
    """The bytes of a stream; `close` is called by whoever serves the response.

    Cancellation of `__anext__`: at once.
    """

    def __init__(self, stream: RunStream, stopping: asyncio.Event | None) -> None:
        self._stream = stream
        self._stopping = stopping
        self._watch: asyncio.Task[bool] | None = None
        self._opened = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._opened:
            self._opened = True
            if self._stopping is not None:
                self._watch = asyncio.get_running_loop().create_task(self._stopping.wait(), name="sse stopping")
                self._watch.add_done_callback(self._stop)
            return OPENING
        try:
            return frame(await anext(self._stream))
        except LychdError as error:
            # The status line is long gone; the client comes back and is told properly then.
            log.warning("sse.broken", code=error.code, error=error.detail)
            raise StopAsyncIteration from error
        finally:
            # Nothing follows an ending: whoever serves us may forget to close.
            if self._stream.over:
                self.close()

    def close(self) -> None:
        """Give everything back. Harmless when repeated."""
        self._stream.close()
        if self._watch is not None:
            self._watch.cancel()

    def _stop(self, watch: asyncio.Task[bool]) -> None:
        if not watch.cancelled():
            self._stream.close()
