"""checkpoint: replace the declared state of a claimed hop; discard: delete it once the Run is terminal.

A settlement that waited for a checkpoint of the same hop copies the one before, which is what its snapshot shows. So
`discard` archives what it deletes of a Run that did not succeed (ruling 36); by then nothing can write another.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import Edge, reason_not_mine, row
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing, Won
from runs.states import TERMINAL


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """The whole snapshot list of a Run, written by the claimant of its current hop."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    snapshots_json: str


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Delete checkpoint and journal of a terminal Run; where it is not DONE its checkpoint stays archived."""

    run_id: uuid.UUID
    seq: int


SAVE_SQL = """
with {wanted},
locked as (
    select w.ord, w.claim_id, w.snapshots, r.id as run_id, r.tenant, r.enqueue_seq
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
saved as (
    insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at, updated_at)
    select l.run_id, l.tenant, l.enqueue_seq, l.claim_id, l.snapshots, now(), now() from locked l
    on conflict (run_id) do update
    set enqueue_seq = excluded.enqueue_seq, claim_id = excluded.claim_id,
        snapshots = excluded.snapshots, updated_at = now()
    returning run_id
)
select l.ord from saved join locked l on l.run_id = saved.run_id
"""

DISCARD_SQL = """
with {wanted},
locked as (
    select w.ord, r.id as run_id, r.status
    from wanted w
    join runs_run r on r.id = w.run_id
    where r.status in ('done', 'failed', 'cancelled')
    order by r.id
    for key share of r {skip}
),
checkpoint as (
    delete from runs_checkpoint c using locked l where c.run_id = l.run_id
    returning c.run_id, c.tenant, c.enqueue_seq, c.snapshots, l.status
),
archive as (
    insert into runs_checkpointarchive (run_id, tenant, enqueue_seq, snapshots, archived_at)
    select c.run_id, c.tenant, c.enqueue_seq, c.snapshots, now() from checkpoint c where c.status <> 'done'
    on conflict (run_id) do update
    set enqueue_seq = excluded.enqueue_seq, snapshots = excluded.snapshots
    where runs_checkpointarchive.snapshots is distinct from excluded.snapshots
),
journal as (delete from runs_journalentry j using locked l where j.run_id = l.run_id)
select l.ord from locked l
"""


def _judge_save(request: SaveCheckpoint, now: Standing | None) -> Outcome[None] | None:
    reason = reason_not_mine(request, now)
    return Lost(reason, now) if reason is not None else None


def _judge_discard(_request: DiscardCheckpoint, now: Standing | None) -> Outcome[None] | None:
    if now is None:
        return Won(None, again=True)
    return None if now.status in TERMINAL else Lost(Reason.STATUS, now)


def _nothing(_request: Any, _found: tuple[Any, ...]) -> None:
    return None


SAVE_CHECKPOINT: Edge[SaveCheckpoint, None] = Edge(
    name="checkpoint",
    columns="run_id uuid, seq int, claim_id uuid, snapshots jsonb",
    sql=SAVE_SQL,
    encode=lambda request: row(
        {"snapshots": request.snapshots_json},
        run_id=str(request.run_id),
        seq=request.seq,
        claim_id=str(request.claim_id),
    ),
    decode=_nothing,
    judge=_judge_save,
    hot=True,
)

DISCARD_CHECKPOINT: Edge[DiscardCheckpoint, None] = Edge(
    name="discard_checkpoint",
    columns="run_id uuid, seq int",
    sql=DISCARD_SQL,
    encode=lambda request: row(run_id=str(request.run_id), seq=request.seq),
    decode=_nothing,
    judge=_judge_discard,
    hot=True,
)
