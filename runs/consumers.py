"""The WebSocket edge: one Run's events, and the changes of all Runs (or other rows) of the caller's tenant.

Plain ASGI applications behind Channels' router, without a channel layer: the bus is in this process (ruling 40). They
expect `scope["caller"]`, so whoever routes here has authenticated. What clients send is read and not answered.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import structlog

from runs import paging
from runs.authority import Caller, Scope
from runs.errors import Degraded, Forbidden, LychdError, NotFound
from runs.events import cursor as cursors
from runs.stream import RUNS, Feeds, Message, Row, RunStream, Table, What
from runs.stream.sources import Sources, Writable, always

log = structlog.get_logger(__name__)

type Json = dict[str, Any]
type Receive = Callable[[], Awaitable[Any]]
type Send = Callable[[Any], Awaitable[None]]
type Messages = AbstractAsyncContextManager[AsyncIterator[Message]]

BAD_REQUEST, FORBIDDEN, NOT_FOUND = 4400, 4403, 4404
NORMAL, RESTART, TRY_AGAIN = 1000, 1012, 1013
_TRUE = frozenset({"1", "true", "yes", "on"})


async def run_events(scope: Json, receive: Receive, send: Send) -> None:
    """`/ws/runs/{id}/?cursor=C&history=1`: one Run, to its end.

    Closes with 1000 after the end, 4400 for a cursor that is none, 4403, 4404 (unknown or another tenant's), 1012 when
    the Vessel goes down, 1013 while the database is away.

    Cancellation: the reader leaves the bus.
    """

    @asynccontextmanager
    async def opened() -> AsyncGenerator[AsyncIterator[Message]]:
        caller, query = _caller(scope, Scope.RUNS_READ), _query(scope)
        place = cursors.parse(query["cursor"]) if query.get("cursor") else None
        stream = RunStream(
            _vessel(scope),
            caller.tenant,
            _id(scope["url_route"]["kwargs"]["run_id"]),
            cursor=place,
            history=query.get("history", "").lower() in _TRUE,
            writable=_writable(scope),
        )
        try:
            yield await stream.open()
        finally:
            stream.close()

    await _serve(scope, receive, send, opened())


class AllRows[T: Row]:
    """How the rows of a table stand in the caller's tenant, beginning with the newest, without an end.

    Args:
        table: what is told.
        needed: the scope that a caller must have.
    """

    def __init__(self, table: Table[T], needed: Scope) -> None:
        self._table, self._needed = table, needed
        self._feeds: tuple[Sources, Feeds[T]] | None = None

    async def __call__(self, scope: Json, receive: Receive, send: Send) -> None:
        """Serve one socket; close codes are those of `run_events`.

        Cancellation: the reader leaves the feed.
        """

        @asynccontextmanager
        async def opened() -> AsyncGenerator[AsyncIterator[Message]]:
            caller, query = _caller(scope, self._needed), _query(scope)
            place = paging.decode_optional(query.get("cursor"))
            feed = self._of(_vessel(scope)).feed(caller.tenant, cursor=place, writable=_writable(scope))
            async with feed as messages:
                yield messages

        await _serve(scope, receive, send, opened())

    def _of(self, vessel: Sources) -> Feeds[T]:
        if self._feeds is None or self._feeds[0] is not vessel:
            self._feeds = (vessel, Feeds(vessel, self._table))
        return self._feeds[1]


def all_runs() -> AllRows[Any]:
    """`/ws/runs/?cursor=C`."""
    return AllRows(RUNS, Scope.RUNS_READ)


async def nothing_here(scope: Json, receive: Receive, send: Send) -> None:
    """Any other address: accepted and closed, since a browser sees only the code of a close."""
    await receive()
    await send({"type": "websocket.accept", "subprotocol": scope.get("subprotocol")})
    await send({"type": "websocket.close", "code": NOT_FOUND, "reason": "There is nothing at this address."})


async def _serve(scope: Json, receive: Receive, send: Send, messages: Messages) -> None:
    """Accept, send until one side has enough, close. A refusal is told by the code of a close, after the accept."""
    await receive()
    await send({"type": "websocket.accept", "subprotocol": scope.get("subprotocol")})
    sending = asyncio.create_task(_send_all(messages, send), name="socket sending")
    leaving = asyncio.create_task(_left(receive), name="socket leaving")
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone = leaving.done()
        for task in (sending, leaving):
            task.cancel()
        await asyncio.wait({sending, leaving})
    if sending.cancelled():
        return
    error = sending.exception()
    if error is not None and not isinstance(error, LychdError):
        raise error
    if gone:
        return
    if error is None:
        code, reason = (NORMAL, "") if sending.result() else (RESTART, "restart")
    else:
        log.info("socket.closed", path=scope.get("path"), code=error.code)
        code, reason = _close_code(error), error.detail
    await send({"type": "websocket.close", "code": code, "reason": reason})


async def _send_all(messages: Messages, send: Send) -> bool:
    """Whether the stream told an end, rather than just ending."""
    what = None
    async with messages as stream:
        async for message in stream:
            what = message.what
            if what is not What.SILENCE:
                await send({"type": "websocket.send", "text": message.text})
    return what is What.END


async def _left(receive: Receive) -> None:
    """Returns when the client has left; what it says meanwhile is not heard."""
    while (await receive())["type"] != "websocket.disconnect":
        pass


def _close_code(error: LychdError) -> int:
    match error:
        case Forbidden():
            return FORBIDDEN
        case NotFound():
            return NOT_FOUND
        case paging.BadCursor() | cursors.BadCursor():
            return BAD_REQUEST
        case Degraded():
            return TRY_AGAIN
        case _:
            raise error


def _caller(scope: Json, needed: Scope) -> Caller:
    caller: Caller = scope["caller"]
    caller.require(needed)
    return caller


def _vessel(scope: Json) -> Sources:
    vessel: Sources = scope["state"]["vessel"]
    return vessel


def _writable(scope: Json) -> Writable:
    return scope.get("extensions", {}).get("lychd.writable", {}).get("wait", always)


def _id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise NotFound("There is no such Run.") from error


def _query(scope: Json) -> dict[str, str]:
    parsed = parse_qs(bytes(scope.get("query_string", b"")).decode("utf-8", "replace"))
    return {name: values[-1] for name, values in parsed.items()}
