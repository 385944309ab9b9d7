"""The doors of a whole Vessel in the test's own loop: REST, event streams and WebSockets as its host would drive them.

`running_vessel` starts a real one (database, lanes, bus, relays) with Patterns that a test steers, and gives it Sigils.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from channels.testing import WebsocketCommunicator
from pydantic import BaseModel

from lychd.graph import Vessel
from lychd.web.handlers import http_application
from lychd.web.routing import websocket_application
from runs.authority import Scope
from runs.patterns import AnyPattern, Context, Finish, Pattern
from tests.support.vessels import Life, Watcher, living, watching

EVERY_SCOPE = tuple(scope.value for scope in Scope)


class Ask(BaseModel):
    """What the test Patterns are submitted with."""

    n: int = 0
    text: str = ""


class Nothing(BaseModel):
    pass


class Told(BaseModel):
    n: int


class Stage:
    """Where the Pattern `talk` waits for its test: each `say` is one turn of the node."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Callable[[Context[Ask, Nothing]], Any] | None] = asyncio.Queue()
        self.entered = asyncio.Event()

    def say(self, turn: Callable[[Context[Ask, Nothing]], Any]) -> None:
        self.inbox.put_nowait(turn)

    def log(self, *lines: str) -> None:
        for line in lines:
            self.say(lambda ctx, line=line: ctx.log(line))

    def tokens(self, count: int) -> None:
        self.say(lambda ctx: [ctx.token(f"t{n}") for n in range(count)])

    def fail(self) -> None:
        def turn(_: Any) -> None:
            raise RuntimeError("as the test asked")

        self.say(turn)

    def finish(self) -> None:
        self.inbox.put_nowait(None)


def patterns(stage: Stage) -> tuple[AnyPattern, ...]:
    """`quick` ends at once; `talk` does what its stage says."""
    quick = Pattern("quick", input=Ask, state=Nothing, output=Told, title="Quick", description="Ends at once.")
    talk = Pattern("talk", input=Ask, state=Nothing, output=Told)

    @quick.start
    async def answer(ctx: Context[Ask, Nothing]) -> Finish[Told]:
        """Answer."""
        ctx.log("answering", n=ctx.input.n)
        return Finish(Told(n=ctx.input.n + 1))

    @talk.start
    async def speak(ctx: Context[Ask, Nothing]) -> Finish[Told]:
        stage.entered.set()
        while (turn := await stage.inbox.get()) is not None:
            turn(ctx)
        return Finish(Told(n=ctx.input.n))

    return quick, talk


@dataclass(slots=True)
class Door:
    """A running Vessel seen from outside."""

    life: Life
    eyes: Watcher
    stage: Stage
    token: str = ""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    sockets: Any = field(default_factory=websocket_application)
    web: Any = field(default_factory=http_application)

    @property
    def vessel(self) -> Vessel:
        return self.life.vessel

    @property
    def state(self) -> dict[str, Any]:
        return {"vessel": self.life.vessel, "lychd.stopping": self.stopping}

    async def application(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await self.web({**scope, "state": self.state}, receive, send)

    @asynccontextmanager
    async def client(self, token: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
        """An HTTP client below `/api/v1`."""
        transport = httpx2.ASGITransport(app=self.application)
        headers = {"Authorization": f"Bearer {token or self.token}"}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost/api/v1", headers=headers
        ) as client:
            yield client

    def socket(
        self, path: str, *, token: str | None = None, headers: tuple[tuple[bytes, bytes], ...] = (), wait: Any = None
    ) -> WebsocketCommunicator:
        """A WebSocket that is not connected yet; `wait` stands for the host's back-pressure."""
        authorization = (b"authorization", f"Bearer {token or self.token}".encode())
        communicator = WebsocketCommunicator(
            self.sockets, path, headers=[(b"host", b"localhost"), authorization, *headers]
        )
        communicator.scope["state"] = self.state
        if wait is not None:
            communicator.scope["extensions"] = {"lychd.writable": {"wait": wait}}
        return communicator

    @asynccontextmanager
    async def stream(
        self, path: str, *, token: str | None = None, wait: Any = None, **headers: str
    ) -> AsyncIterator[Sse]:
        """A GET whose answer is read while it comes."""
        sse = Sse()
        bare, _, query = f"/api/v1{path}".partition("?")
        sent = {"host": "localhost", "authorization": f"Bearer {token or self.token}", **headers}
        scope = {
            "type": "http",
            "method": "GET",
            "path": bare,
            "query_string": query.encode(),
            "scheme": "http",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
        }
        if wait is not None:
            scope["extensions"] = {"lychd.writable": {"wait": wait}}
        serving = asyncio.create_task(self.application(scope, sse.receive, sse.send))
        serving.add_done_callback(lambda _: sse.ended.set())
        try:
            yield sse
        finally:
            sse.leave()
            await serving

    async def sigil(
        self,
        name: str,
        *,
        scopes: tuple[str, ...] = EVERY_SCOPE,
        tenant: str = "default",
        sources: tuple[str, ...] = (),
    ) -> str:
        """A new Sigil of a superuser; its token."""
        token, user = f"lychd_{secrets.token_urlsafe(32)}", uuid.uuid4()
        await self.eyes.rows(
            "insert into sigils_user (id, username, password, is_superuser, is_staff, is_active, first_name, last_name,"
            " email, date_joined) values (%s, %s, '!', true, true, true, '', '', '', now())",
            user,
            f"owner of {name}",
        )
        await self.eyes.rows("insert into sigils_membership (user_id, tenant) values (%s, %s)", user, tenant)
        await self.eyes.rows(
            "insert into sigils_sigil (id, tenant, name, owner_id, token_hash, scopes, sources, last_used_at)"
            " values (%s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, now())",
            uuid.uuid4(),
            tenant,
            name,
            user,
            hashlib.sha256(token.encode()).hexdigest(),
            json.dumps(scopes),
            json.dumps(sources),
        )
        return token

    async def status(self, run_id: uuid.UUID | str) -> str:
        return await self.eyes.one("select status from runs_run where id = %s::uuid", str(run_id))


class Sse:
    """One answer as it arrives."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.raw = b""
        self.ended = asyncio.Event()
        self._grew = asyncio.Event()
        self._told = 0
        self._asked = False
        self._left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            self.raw += message.get("body", b"")
            if not message.get("more_body"):
                self.ended.set()
        self._grew.set()

    def leave(self) -> None:
        self._left.set()

    @property
    def frames(self) -> list[dict[str, str]]:
        """The complete frames so far, as their fields; a comment has the field ``."""
        whole = self.raw.decode().rpartition("\n\n")[0]
        return [dict(line.split(": ", 1) for line in frame.split("\n")) for frame in whole.split("\n\n") if frame]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(frame["data"]) for frame in self.frames if "data" in frame]

    async def next(self) -> dict[str, Any]:
        """The next message; fails when the answer ends before."""
        async with asyncio.timeout(10):
            while len(self.messages) <= self._told:
                assert not self.ended.is_set(), self.raw
                self._grew.clear()
                await self._grew.wait()
        self._told += 1
        return self.messages[self._told - 1]

    async def rest(self) -> list[dict[str, Any]]:
        """Everything to the end of the answer that was not read yet."""
        async with asyncio.timeout(10):
            await self.ended.wait()
        told, self._told = self._told, len(self.messages)
        return self.messages[told:]


async def heard(socket: WebsocketCommunicator) -> dict[str, Any]:
    """The next message of a WebSocket."""
    return json.loads(await socket.receive_from(timeout=10))


async def closed(socket: WebsocketCommunicator) -> tuple[int, str]:
    """Code and reason of the close that comes next."""
    message = await socket.receive_output(timeout=10)
    assert message["type"] == "websocket.close", message
    return message["code"], message.get("reason", "")


async def all_heard(socket: WebsocketCommunicator) -> tuple[list[dict[str, Any]], int]:
    """Every message up to the close, and its code."""
    found: list[dict[str, Any]] = []
    while (message := await socket.receive_output(timeout=10))["type"] == "websocket.send":
        found.append(json.loads(message["text"]))
    return found, message["code"]


class Backpressure:
    """A connection that takes as much as the test lets it."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.waiting = asyncio.Event()

    async def __call__(self) -> bool:
        if not self.free.is_set():
            self.waiting.set()
        await self.free.wait()
        return True


@asynccontextmanager
async def running_vessel(url: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Door]:
    """A whole Vessel on a migrated database; everything is closed at the end."""
    stage = Stage()
    async with (
        watching(url) as eyes,
        living(url, patterns=patterns(stage), monkeypatch=monkeypatch, **settings) as life,
    ):
        door = Door(life, eyes, stage)
        door.token = await door.sigil("tester")
        try:
            yield door
        finally:
            stage.finish()
