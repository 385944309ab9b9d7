"""A server that answers as a script says, on a real socket: for how clients bear cuts, refusals and nonsense.

Not a Vessel: it knows nothing of Runs but what the script says. Each event stream takes the next play of its list.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

RUN = "01919191-0000-7000-8000-000000000001"
PREFIX = "/api/v1"

type Json = dict[str, Any]


@dataclass
class Asked:
    """One request that came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """What goes out: JSON, or `raw` bytes as they are."""

    status: int = 200
    value: Any = None
    raw: bytes | None = None
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


class Hold:
    """In a play: keep the stream open until the server is closed."""


@dataclass
class Script:
    """Answers by method and path, streams as plays."""

    answers: dict[tuple[str, str], Callable[[Asked], Answer]] = field(default_factory=dict)
    plays: list[list[Any]] = field(default_factory=list)
    steps: list[Json] = field(default_factory=list)
    run: Json = field(default_factory=lambda: a_run())  # noqa: PLW0108 defined below
    asked: list[Asked] = field(default_factory=list)
    over: Event = field(default_factory=Event)

    def answer(self, method: str, path: str, answer: Answer | Callable[[Asked], Answer]) -> None:
        """Answer `method path` below the prefix with this from now on."""
        self.answers[method, path] = answer if callable(answer) else lambda _: answer

    def paths(self, path: str) -> list[Asked]:
        """The requests for one path."""
        return [one for one in self.asked if one.path == PREFIX + path]


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Serve the script; the URL. Every connection is cut at the end."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.script = script
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        script.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def a_run(status: str = "running", **fields: Any) -> Json:
    """A Run as the interface has it."""
    return {
        "id": RUN,
        "pattern": {"key": "tidy", "revision": "1", "digest": "0" * 64},
        "status": status,
        "source": "cli",
        "priority": 50,
        "queue": "runs",
        "session": None,
        "sigil": "operator",
        "tenant": "default",
        "input": {"root": "."},
        "output": None,
        "error": None,
        "wait": None,
        "hop": 0,
        "created_at": "2026-12-01T10:00:00.000000Z",
        "updated_at": "2026-12-01T10:00:00.000000Z",
        "started_at": None,
        "finished_at": None,
        **fields,
    }


def an_event(seq: int, kind: str = "log", *, node: str | None = "walk", epoch: str = "e1", **data: Any) -> Json:
    """A live event; `step` of it is its stored form."""
    return {
        "type": "event",
        "run": RUN,
        "seq": seq,
        "cursor": f"{epoch}-{seq}",
        "kind": kind,
        "node": node,
        "data": data or {"message": f"event {seq}", "level": "info"},
        "meta": {},
        "at": f"2026-12-01T10:00:{seq % 60:02d}.000000Z",
    }


def step(event: Json) -> Json:
    """The event as `GET /steps` has it."""
    return {name: value for name, value in event.items() if name != "type"}


def a_resync(cursor: str, run: Json) -> Json:
    """A resync whose snapshot holds the Run."""
    snapshot = {"run": run, "head": int(cursor.split("-", 1)[1]), "consents": [], "jobs": []}
    return {"type": "resync", "cursor": cursor, "snapshot": snapshot}


def a_problem(status: int, code: str, detail: str, **facts: Any) -> Answer:
    """Problem details."""
    value = {"type": f"urn:lychd:problem:{code}", "title": code, "status": status, "detail": detail, "code": code}
    return Answer(status, {**value, **facts}, kind="application/problem+json")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    script: Script

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the signature of the library
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        script = self.server.script
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, parts.path, query, headers, json.loads(body) if body else None)
        script.asked.append(asked)
        short = parts.path.removeprefix(PREFIX)
        if (self.command, short) in script.answers:
            self._send(script.answers[self.command, short](asked))
        elif short == f"/runs/{RUN}":
            self._send(Answer(200, script.run))
        elif short == f"/runs/{RUN}/steps":
            after, limit = int(query["after_seq"]), int(query["limit"])
            found = [one for one in script.steps if one["seq"] > after][: min(limit, 3)]
            value = {"items": found, "gaps": _gaps(after, found), "next_after": found[-1]["seq"] if found else None}
            self._send(Answer(200, value))
        elif short == f"/runs/{RUN}/events":
            self._play(script.plays.pop(0) if script.plays else [])
        else:
            self._send(a_problem(404, "not_found", "There is nothing at this address."))

    def _play(self, play: list[Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(b": welcome\n\n")
        for act in play:
            if callable(act):
                act()
            elif isinstance(act, Hold):
                self.server.script.over.wait(60)
            elif isinstance(act, bytes):
                self._chunk(act)
            else:
                name = f"id: {act['cursor']}\n" if "cursor" in act else ""
                self._chunk(f"{name}data: {json.dumps(act)}\n\n".encode())
        if not play or play[-1].__class__ is not dict or play[-1].get("type") != "end":
            self._cut()
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, answer: Answer) -> None:
        if answer.cut:
            self._cut()
            return
        body = answer.raw if answer.raw is not None else json.dumps(answer.value).encode()
        self.send_response(answer.status)
        for name, value in {"Content-Type": answer.kind, **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _cut(self) -> None:
        """End the connection in the middle, without the last chunk."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _gaps(after: int, found: list[Json]) -> list[list[int]]:
    gaps: list[list[int]] = []
    for one in found:
        tokens = one.get("tokens", 0)
        if one["seq"] > after + 1 + tokens:
            gaps.append([after + 1, one["seq"] - 1 - tokens])
        after = one["seq"]
    return gaps
