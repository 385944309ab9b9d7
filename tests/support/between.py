"""A relay of bytes between a client and PostgreSQL: it can be cut, and it can look like a connection pooler."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Between:
    """One listening address in front of the server.

    `pooled`: the process id that a client is told is not that of the backend which answers it, as behind a pooler.
    """

    def __init__(self, conninfo: str, *, pooled: bool) -> None:
        self._to = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
        self._pooled = pooled
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.conninfo = ""

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        self.conninfo = make_conninfo("", **{**self._to, "host": "127.0.0.1", "port": str(port), **plain})

    async def cut(self) -> None:
        """Listen no more and drop every connection."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._to.get("host", "localhost"), int(self._to.get("port", "5432"))
        if host.startswith("/"):
            far_reader, far_writer = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        self._open |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, far_writer))
                group.create_task(self._answer(far_reader, writer))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, far_writer):
                self._open.discard(each)
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
        raise ConnectionResetError

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._pooled:
            kind, size = struct.unpack("!cI", await reader.readexactly(5))
            body = await reader.readexactly(size - 4)
            if kind == b"K":
                (pid,) = struct.unpack("!I", body[:4])
                body = struct.pack("!I", pid + 1) + body[4:]
            writer.write(struct.pack("!cI", kind, size) + body)
            if kind == b"K":
                break
        await self._pass(reader, writer)


@asynccontextmanager
async def between(conninfo: str, *, pooled: bool = False) -> AsyncIterator[Between]:
    relay = Between(conninfo, pooled=pooled)
    await relay.listen()
    try:
        yield relay
    finally:
        await relay.cut()
