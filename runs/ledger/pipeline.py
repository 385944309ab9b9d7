"""Many statements over Django's connection without a round trip each: all are sent, then all answers are read.

Each is a transaction of its own, so none undoes another. A thread that shares its process with a busy loop waits for
its turn after every answer; here it waits for a few instead of for thousands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, LiteralString, cast

import psycopg
import structlog
from django.db import connections

from runs.errors import first_line
from runs.ledger.script import Statement

log = structlog.get_logger(__name__)


def each_alone(statements: Iterable[Statement], *, using: str = "default") -> list[list[tuple[Any, ...]] | None]:
    """Run each statement in a transaction of its own.

    Returns:
        The rows of each, in the order given; None where it failed or its answer was lost: it may have been committed.
        All None inside a transaction, where none of them could be one of its own.
    """
    wanted = list(statements)
    connection = connections[using]
    if connection.in_atomic_block:
        return [None] * len(wanted)
    connection.ensure_connection()
    raw: psycopg.Connection[Any] = connection.connection
    cursors: list[psycopg.Cursor[Any]] = []
    try:
        with raw.pipeline() as pipeline:
            for statement in wanted:
                # Django's own cursor binds on the client, which a pipeline cannot send.
                cursor = psycopg.Cursor(raw)
                cursor.execute(cast("LiteralString", statement.sql), statement.params)
                cursors.append(cursor)
                pipeline.sync()
    except psycopg.Error as error:
        log.warning("pipeline.failed", sent=len(cursors), of=len(wanted), error=first_line(error))
    answers = [_rows(cursor) for cursor in cursors]
    return [*answers, *[None] * (len(wanted) - len(answers))]


def _rows(cursor: psycopg.Cursor[Any]) -> list[tuple[Any, ...]] | None:
    try:
        return cursor.fetchall() if cursor.description else None
    except psycopg.Error:
        return None
