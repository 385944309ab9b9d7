"""append: events become Steps, many Runs in one statement. Evidence never touches a Run (EVT-6, EVT-9).

Asked again with the same event ids, it answers the same: a stored row with our id is success, one with another id is
a conflict that is reported and never overwritten (ruling 10).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from runs.ledger.connection import LedgerConnection


class StepRow(Protocol):
    """One event to store. `data_json` and `meta_json` are JSON text."""

    @property
    def id(self) -> uuid.UUID: ...
    @property
    def run_id(self) -> uuid.UUID: ...
    @property
    def tenant(self) -> str: ...
    @property
    def epoch(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def node(self) -> str | None: ...
    @property
    def data_json(self) -> str: ...
    @property
    def meta_json(self) -> str: ...
    @property
    def at(self) -> datetime: ...
    @property
    def tokens_before(self) -> int: ...


class Appended(StrEnum):
    """What became of one row."""

    WRITTEN = "written"
    ALREADY = "already"
    CONFLICT = "conflict"
    NO_RUN = "no_run"


SQL = """
with wanted as (
    select w.* from rows from (json_to_recordset(%(batch)s::json) as (
        id uuid, run_id uuid, tenant text, epoch text, seq int, kind text, node text, at timestamptz,
        tokens_before int, data jsonb, meta jsonb)) with ordinality
        as w(id, run_id, tenant, epoch, seq, kind, node, at, tokens_before, data, meta, ord)
),
written as (
    insert into runs_step (id, run_id, tenant, epoch, seq, kind, node, at, tokens_before, data, meta)
    select w.id, w.run_id, w.tenant, w.epoch, w.seq, w.kind, w.node, w.at, w.tokens_before, w.data, w.meta
    from wanted w
    where exists (select 1 from runs_run r where r.id = w.run_id)
    order by w.run_id, w.seq
    on conflict do nothing
    returning id
)
select id from written
"""

LOOK = """
select w.id, s.id, exists (select 1 from runs_run r where r.id = w.run_id)
from json_to_recordset(%(batch)s::json) as w(id uuid, run_id uuid, seq int, kind text)
left join lateral (
    select s.id from runs_step s
    where s.run_id = w.run_id and (s.seq = w.seq or (w.kind = 'done' and s.kind = 'done'))
    order by (s.id = w.id) desc
    limit 1
) s on true
"""


def _text(row: StepRow) -> str:
    head = json.dumps(
        {
            "id": str(row.id),
            "run_id": str(row.run_id),
            "tenant": row.tenant,
            "epoch": row.epoch,
            "seq": row.seq,
            "kind": row.kind,
            "node": row.node,
            "at": row.at.isoformat(),
            "tokens_before": row.tokens_before,
        }
    )
    return f'{head[:-1]},"data":{row.data_json},"meta":{row.meta_json}}}'


class Steps:
    """The store behind the evidence writer, which appends one batch at a time."""

    def __init__(self, connection: LedgerConnection) -> None:
        self._connection = connection

    async def append(self, rows: Sequence[StepRow], /) -> list[Appended]:
        """`append` on the writer's own connection."""
        return await append(self._connection, rows)


async def append(connection: LedgerConnection, rows: Sequence[StepRow]) -> list[Appended]:
    """Store events as Steps.

    Returns:
        One answer for each row, in order.

    Raises:
        Unknown: the database did not answer; ask again with the same rows.
        psycopg.Error: the database refused the whole batch; no row of it was written.
    """
    written: set[Any] = {
        found[0] for found in await connection.fetch(SQL, {"batch": "[" + ",".join(_text(row) for row in rows) + "]"})
    }
    if len(written) == len(rows):
        return [Appended.WRITTEN] * len(rows)
    rest = [row for row in rows if row.id not in written]
    batch = json.dumps(
        [{"id": str(row.id), "run_id": str(row.run_id), "seq": row.seq, "kind": row.kind} for row in rest]
    )
    answers: dict[Any, Appended] = {}
    for wanted, stored, run_exists in await connection.fetch(LOOK, {"batch": batch}):
        if not run_exists:
            answers[wanted] = Appended.NO_RUN
        else:
            answers[wanted] = Appended.ALREADY if stored == wanted else Appended.CONFLICT
    return [Appended.WRITTEN if row.id in written else answers[row.id] for row in rows]
