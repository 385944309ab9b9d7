"""A wire to PostgreSQL that can be cut at the worst moment: after the commit, before the answer arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# The last message of every answer that ends a statement: the server is ready, idle or within a transaction.
READY = (b"Z\x00\x00\x00\x05I", b"Z\x00\x00\x00\x05T", b"Z\x00\x00\x00\x05E")


class Wire:
    """Forwards every connection; it hangs up instead of an answer, keeps answers to itself, or refuses to open."""

    def __init__(self, dsn: str) -> None:
        parts = conninfo_to_dict(dsn)
        self._host = str(parts.get("host") or "127.0.0.1")
        self._port = int(parts.get("port") or 5432)
        self._dsn = dsn
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._cuts = 0
        self._passed = 0
        self.mute = False
        self.dsn = ""
        self.cut = 0

    def cut_answers(self, how_many: int, *, after: int = 0) -> None:
        """The next answers but `after` never arrive, although what they answer has happened."""
        self._cuts, self._passed = how_many, after

    async def open_door(self) -> None:
        """Listen, at the same place as before."""
        port = int(conninfo_to_dict(self.dsn)["port"] or 0) if self.dsn else 0
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        port = self._server.sockets[0].getsockname()[1]
        self.dsn = make_conninfo(self._dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")

    async def close_door(self) -> None:
        """Cut every connection and refuse new ones."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._host.startswith("/"):
                upstream = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
            else:
                upstream = await asyncio.open_connection(self._host, self._port)
            try:
                ends = [
                    asyncio.create_task(self._questions(reader, upstream[1])),
                    asyncio.create_task(self._answers(upstream[0], writer)),
                ]
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for end in ends:
                        end.cancel()
                    await asyncio.gather(*ends, return_exceptions=True)
            finally:
                upstream[1].close()
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _questions(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.mute:
                continue
            if self._cuts and self._passed:
                self._passed -= data.endswith(READY)
            elif self._cuts:
                if data.endswith(READY):
                    self._cuts -= 1
                    self.cut += 1
                    return
                continue
            writer.write(data)


@asynccontextmanager
async def a_wire(dsn: str) -> AsyncGenerator[Wire]:
    """A wire to the database of `dsn`, with its door open."""
    wire = Wire(dsn)
    await wire.open_door()
    try:
        yield wire
    finally:
        await wire.close_door()
