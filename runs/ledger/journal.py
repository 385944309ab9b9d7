"""journal: the recorded result of one `ctx.step`, kept once for ever under its stable key (BYD-4, ruling 26)."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import Edge, reason_not_mine, row
from runs.ledger.outcomes import Lost, Outcome, Standing


@dataclass(frozen=True, slots=True)
class RecordStep:
    """The result of one step, to be recorded under (run, visit, name, occurrence)."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    visit: int
    name: str
    occurrence: int
    args_digest: str
    result_json: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the journal holds now: our result, or the one that was there before us."""

    args_digest: str
    result: Any
    fresh: bool


SQL = """
with {wanted},
locked as (
    select w.*, r.tenant
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status in ('running', 'awaiting_hardware')
      and r.enqueue_seq = w.seq
      and d.state = 'claimed'
      and d.claim_id = w.claim_id
    order by r.id
    for no key update of r {skip}
),
written as (
    insert into runs_journalentry (
        run_id, tenant, visit, name, occurrence, args_digest, result, enqueue_seq, created_at)
    select l.run_id, l.tenant, l.visit, l.name, l.occurrence, l.args_digest, l.result, l.seq, now() from locked l
    on conflict (run_id, visit, name, occurrence) do nothing
    returning run_id
)
select l.ord,
       coalesce(j.args_digest, l.args_digest),
       coalesce(case when j.run_id is null then l.result::text else j.result::text end, 'null'),
       j.run_id is null
from locked l
left join runs_journalentry j
    on j.run_id = l.run_id and j.visit = l.visit and j.name = l.name and j.occurrence = l.occurrence
left join written on written.run_id = l.run_id
-- Neither: another statement recorded it after our snapshot was taken. No answer then, and the next try reads it.
where j.run_id is not null or written.run_id is not null
"""


def _judge(request: RecordStep, now: Standing | None) -> Outcome[Recorded] | None:
    reason = reason_not_mine(request, now)
    return Lost(reason, now) if reason is not None else None


RECORD_STEP: Edge[RecordStep, Recorded] = Edge(
    name="journal",
    columns=(
        "run_id uuid, seq int, claim_id uuid, visit int, name text, occurrence int, args_digest text, result jsonb"
    ),
    sql=SQL,
    encode=lambda request: row(
        {"result": request.result_json},
        run_id=str(request.run_id),
        seq=request.seq,
        claim_id=str(request.claim_id),
        visit=request.visit,
        name=request.name,
        occurrence=request.occurrence,
        args_digest=request.args_digest,
    ),
    decode=lambda _request, found: Recorded(found[0], json.loads(found[1]), found[2]),
    judge=_judge,
    hot=True,
)
