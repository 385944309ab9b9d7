"""Starts `tests.support.asgi_apps` as a process of its own and watches what it says. Always ends what it started."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]


class Hosted:
    """One process of the host, its words and its log."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            command = [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.support.asgi_apps"]
            self.process = subprocess.Popen([*command, json.dumps(options)], cwd=ROOT, stdout=out, stderr=err)

    @property
    def words(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def log(self) -> list[dict[str, Any]]:
        lines = self._err.read_text().splitlines()
        return [json.loads(line) if line.startswith("{") else {"event": line, "level": "raw"} for line in lines]

    @property
    def complaints(self) -> list[dict[str, Any]]:
        return [line for line in self.log if line["level"] not in {"debug", "info"}]

    def event(self, name: str) -> dict[str, Any]:
        return next(line for line in self.log if line["event"] == name)

    def wait_for(self, word: str, within: float = 20.0) -> str:
        return eventually_sync(lambda: next((line for line in self.words if line.startswith(word)), ""), within)

    @property
    def url(self) -> str:
        return self.wait_for("listening").split()[1]

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    @property
    def memory(self) -> int:
        """Bytes of the process that are in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def socket(self, receive_buffer: int | None = None) -> socket.socket:
        """A raw connection."""
        sock = socket.socket()
        sock.settimeout(20)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(self.address)
        return sock

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection(*self.address, timeout=20)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def seen(self, headers: dict[str, str] | None = None) -> dict[str, Any]:
        return json.loads(self.get("/scope", headers)[1])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, within: float = 20.0) -> int:
        return self.process.wait(within)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()


@contextmanager
def hosted(folder: Path, **options: Any) -> Iterator[Hosted]:
    """The process, killed at the end if it still lives."""
    host = Hosted(folder, options)
    try:
        yield host
    finally:
        if host.process.poll() is None:
            host.process.kill()
        host.process.wait()


def whole_answer(sock: socket.socket) -> bytes:
    """Everything until the peer closes."""
    parts: list[bytes] = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)
