"""Counts the SQL statements of this process and kills it with SIGKILL at one of them.

psycopg is wrapped where a statement is handed to libpq: cursors of every kind, sync and async, Django's binding on the
client, prepared statements, and the transaction commands of a connection. So the ledger, the reads, the guard, Django
and SAQ's pools are all counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from signal import SIGKILL
from typing import Any, NoReturn

from psycopg._connection_base import BaseConnection
from psycopg._cursor_base import BaseCursor
from psycopg.client_cursor import ClientCursorMixin

BEFORE, SENT = "before", "sent"


class Fuse:
    """Kills at the statement `at` (from 1; 0: never): instead of sending it, or once the kernel has it to send.

    Every statement is written to the file `log` as it comes, without a buffer that would die with the process.
    """

    def __init__(self, at: int, when: str, log: str) -> None:
        if when not in {BEFORE, SENT}:
            raise ValueError(f"when must be {BEFORE} or {SENT}, not {when!r}")
        self._at, self._when = at, when
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()
        self._count = 0

    def comes(self, connection: str, statement: bytes) -> int:
        """The number of this statement, which is about to be sent."""
        words = b" ".join(statement.split())[:200].decode(errors="replace")
        with self._lock:
            self._count += 1
            number = self._count
            os.write(self._log, f"{number}\t{connection}\t{words}\n".encode())
            if number == self._at and self._when == BEFORE:
                die()
        return number

    def went(self, number: int) -> None:
        """It was sent; nobody has read an answer."""
        if number == self._at and self._when == SENT:
            die()


def die() -> NoReturn:
    """As a power cut would."""
    os.kill(os.getpid(), SIGKILL)
    raise AssertionError("unreachable")


def burn(fuse: Fuse) -> None:
    """Count every statement of this process from now on."""

    def sending(original: Callable[..., None], query_at: int) -> Callable[..., None]:
        def send(cursor: Any, *args: Any, **how: Any) -> None:
            number = fuse.comes(_name(cursor._pgconn), args[query_at].query)
            original(cursor, *args, **how)
            fuse.went(number)

        return send

    def command(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(connection: Any, what: Any, *args: Any, **how: Any) -> Generator[Any, Any, Any]:
            text = what if isinstance(what, bytes) else what if isinstance(what, str) else what.as_string(connection)
            number = fuse.comes(_name(connection.pgconn), text if isinstance(text, bytes) else text.encode())
            result = yield from original(connection, what, *args, **how)
            fuse.went(number)
            return result

        return run

    # A class with its own way of sending does not call the one that it inherits, so nothing is counted twice.
    for cursor in (BaseCursor, ClientCursorMixin):
        cursor._execute_send = sending(cursor._execute_send, 0)  # type: ignore[method-assign]
    BaseCursor._send_query_prepared = sending(BaseCursor._send_query_prepared, 1)  # type: ignore[method-assign]
    BaseConnection._exec_command = command(BaseConnection._exec_command)  # type: ignore[method-assign]


def _name(pgconn: Any) -> str:
    name: bytes | None = pgconn.parameter_status(b"application_name")
    return (name or b"").decode() or "django"
