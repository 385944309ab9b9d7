"""What the tests of the dashboard's pages share: texts of pages, and the checks that every page must pass."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from django.test import Client

EVIL = "</textarea></script><script>alert(1)</script><img src=x onerror=alert(1)>"


def text_of(client: Client, address: str, status: int = 200) -> str:
    """The page at this address, as text."""
    response = client.get(address)
    assert response.status_code == status, (address, response.status_code, response.headers.get("Location"))
    return response.content.decode()


def assert_harmless(response: Any) -> None:
    """Nothing of a payload is markup, and the page holds no script, style or handler of its own under a strict law."""
    text = response.content.decode()
    policy = response.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    for tag in re.findall(r"<(?:script|style)\b[^>]*>", text):
        assert "src=" in tag, tag
    bare = re.sub(r'"[^"]*"', '""', text)
    assert not re.search(r"<[^>]*\s(?:on[a-z]+|style)\s*=", bare)
    assert "<img src=x" not in text
    assert "alert(1)</script>" not in text


def part(text: str, name: str) -> str:
    """One part of a page that is kept up to date."""
    return text.split(f'data-part="{name}"')[1].split("</section>", maxsplit=1)[0]


class Line:
    """A wire between a browser and a Vessel that can be cut and mended; `url` is where it is entered."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._there = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._door = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._whole = True
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """End every connection; new ones end at once."""
        with self._lock:
            self._whole = False
            ended, self._open = self._open, set()
        for end in ended:
            _hang_up(end)

    def mend(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._whole = True

    def close(self) -> None:
        """Cut for good."""
        self.cut()
        _hang_up(self._door)

    def _serve(self) -> None:
        while True:
            try:
                here, _ = self._door.accept()
            except OSError:
                return
            with self._lock:
                whole = self._whole
            if not whole:
                here.close()
                continue
            there = socket.create_connection(self._there)
            with self._lock:
                self._open |= {here, there}
            for source, target in ((here, there), (there, here)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= {source, target}
            _hang_up(source)
            _hang_up(target)


def _hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()


@contextmanager
def a_line(url: str) -> Iterator[Line]:
    """A line to this address."""
    line = Line(url)
    try:
        yield line
    finally:
        line.close()
