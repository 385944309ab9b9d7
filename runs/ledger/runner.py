"""Runs an edge on Django's connection: a batch of one, inside the caller's transaction if there is one.

For the admin, commands and tests. The same statement as the coalesced road of `runs.ledger.coalescer`.
"""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction

from runs.errors import Unknown
from runs.ledger.edge import LOOK, Edge, Request, look_batch, standing
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing, Won
from runs.ledger.script import Script


def run_once[Req: Request, T](edge: Edge[Req, T], request: Req, *, using: str = "default") -> Outcome[T]:
    """Try the edge for one request.

    Returns:
        `Won` with the edge's value, or `Lost` with the reason and the row as it stands.

    Raises:
        django.db.Error: as the database raises it; the transaction around it is then for the caller to end.
        Unknown: the row stayed out of reach although its guard held.
    """
    batch = f"[{edge.encode(request)}]"
    now: Standing | None = None
    for _ in range(3):
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(edge.statement(skip_locked=False), {"batch": batch})
            found = cursor.fetchone()
        if found is not None:
            return Won(edge.decode(request, found[1:]))
        with connections[using].cursor() as cursor:
            cursor.execute(LOOK, {"batch": look_batch([request])})
            seen = cursor.fetchone()
        now = standing(seen) if seen is not None else None
        outcome = edge.judge(request, now)
        if outcome is not None:
            return outcome
    return Lost(Reason.BUSY, now)


def run_script[T](script: Script[T], *, using: str = "default") -> T:
    """Run a several-statement edge in one transaction on Django's connection."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        try:
            statement = next(script)
            while True:
                cursor.execute(statement.sql, statement.params)
                rows: list[Any] = cursor.fetchall() if cursor.description else []
                statement = script.send(rows)
        except StopIteration as done:
            return done.value
    raise Unknown
