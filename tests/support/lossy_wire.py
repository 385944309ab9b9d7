"""A TCP proxy in front of PostgreSQL that loses what a test asks it to lose: the answer to a statement that the server
has carried out, or every connection of a name. The parts behind it and in front of it are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from types import TracebackType
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# ReadyForQuery: the server has carried out everything up to here and, outside of a transaction, committed it.
_READY = b"Z\x00\x00\x00\x05"


class LossyWire:
    """Use with `async with`; `dsn` leads through it. Connections are told apart by their application name."""

    def __init__(self, dsn: str) -> None:
        self._upstream = dsn
        self._armed: dict[str, int] = {}
        self._cut: set[str] = set()
        self._live: dict[str, set[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.lost = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writers in list(self._live.values()):
            for writer in list(writers):
                writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    @property
    def dsn(self) -> str:
        """The database, through the wire."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return make_conninfo(self._upstream, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")

    def lose_answers(self, name: str, times: int = 1) -> None:
        """Lose the answer to what the connection `name` sends next: the server carries it out, nobody hears of it."""
        self._armed[name] = times

    def cut(self, name: str) -> None:
        """End every connection of that name, and refuse new ones until `mend`."""
        self._cut.add(name)
        for writer in list(self._live.get(name, ())):
            writer.close()

    def mend(self, name: str) -> None:
        """Let the name through again."""
        self._cut.discard(name)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        up: asyncio.StreamWriter | None = None
        try:
            head = await reader.readexactly(4)
            first = head + await reader.readexactly(struct.unpack("!I", head)[0] - 4)
            name = _application(first)
            if name in self._cut:
                return
            server, up = await _connect(self._upstream)
            link = _Link(self, name)
            self._live.setdefault(name, set()).update((writer, up))
            up.write(first)
            downward = asyncio.create_task(link.down(server, writer))
            upward = asyncio.create_task(link.up(reader, up))
            await asyncio.wait({downward, upward}, return_when=asyncio.FIRST_COMPLETED)
            for one in (downward, upward):
                one.cancel()
            await asyncio.wait({downward, upward})
            self._live[name] -= {writer, up}
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client went away before it had said anything
        finally:
            for end in (writer, up):
                if end is not None:
                    end.close()
                    with contextlib.suppress(OSError):
                        await end.wait_closed()

    def take(self, name: str) -> bool:
        """Whether the next answer to this name is to be lost."""
        left = self._armed.get(name, 0)
        if left:
            self._armed[name] = left - 1
        return left > 0


class _Link:
    def __init__(self, wire: LossyWire, name: str) -> None:
        self._wire = wire
        self._name = name
        self._losing = False

    async def up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not self._losing and self._wire.take(self._name):
                    self._losing = True
                writer.write(data)
                await writer.drain()

    async def down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tail = b""
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not self._losing:
                    writer.write(data)
                    await writer.drain()
                    continue
                tail = (tail + data)[-6:]
                if tail[:5] == _READY:
                    self._wire.lost += 1
                    return


def _application(startup: bytes) -> str:
    words = startup[8:].split(b"\0")
    settings = dict(zip(words[::2], words[1::2], strict=False))
    return settings.get(b"application_name", b"").decode()


async def _connect(dsn: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts: dict[str, Any] = dict(conninfo_to_dict(dsn))
    host, port = str(parts.get("host") or "127.0.0.1"), int(parts.get("port") or 5432)
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)
