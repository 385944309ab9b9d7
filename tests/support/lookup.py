"""The reading port of authentication over one real connection, and applications that find it in their ASGI state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from django.db import connection


class ConnectionLookup:
    """`Lookup` over a psycopg connection; counts its statements."""

    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn
        self.statements = 0

    async def fetch_one(self, sql: str, params: dict[str, Any]) -> Any:
        self.statements += 1
        cursor = await self._conn.execute(sql, params)  # pyright: ignore[reportArgumentType]
        return await cursor.fetchone()


@asynccontextmanager
async def a_lookup() -> AsyncIterator[ConnectionLookup]:
    """A lookup on the database of the tests."""
    parts = connection.get_connection_params()
    wanted = {key: parts[key] for key in ("dbname", "host", "port", "user", "password") if parts.get(key)}
    conn = await psycopg.AsyncConnection.connect(**wanted, autocommit=True)
    try:
        yield ConnectionLookup(conn)
    finally:
        await conn.close()


@dataclass
class Doorkeeper:
    """As much of a Vessel as the door needs."""

    reads: ConnectionLookup


def with_state(application: Any, vessel: Any) -> Any:
    """The application as a server with a lifespan calls it."""

    async def wrapped(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await application({**scope, "state": {"vessel": vessel} if vessel is not None else {}}, receive, send)

    return wrapped
