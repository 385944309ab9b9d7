"""rotate: settle an unclaimed hop and mint the next one in its place: same queue, priority and resume flag (REC-14).

The next delivery is inserted from what the settling part returns (ruling 7), or the unique index on unsettled
deliveries would see two.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import Edge, reason_not_queued, reason_not_this_vessel, row
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing
from runs.states import DeliveryState


@dataclass(frozen=True, slots=True)
class Rotation:
    """Replace hop `seq`, whose broker record is spent, by hop `seq + 1`."""

    run_id: uuid.UUID
    seq: int
    boot_id: uuid.UUID | None
    reason: str


SQL = """
with {wanted},
locked as (
    select w.ord, r.id as run_id, d.id as delivery_id, w.reason
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status = 'queued'
      and r.enqueue_seq = w.seq
      and r.road = 'vessel'
      and d.state in ('pending', 'published')
      and (w.boot_id is null or exists (select 1 from runs_vesselslot v where v.boot_id = w.boot_id))
    order by r.id
    for no key update of r, d {skip}
),
settled as (
    update runs_rundelivery d
    set state = 'settled', settled_at = now(), updated_at = now(), last_error = l.reason
    from locked l
    where d.id = l.delivery_id
    returning l.ord, d.run_id, d.tenant, d.enqueue_seq, d.queue_name, d.priority, d.resume
),
run as (
    update runs_run r
    set enqueue_seq = s.enqueue_seq + 1, updated_at = now()
    from settled s
    where r.id = s.run_id
    returning r.id
),
next as (
    insert into runs_rundelivery (
        run_id, tenant, enqueue_seq, queue_name, priority, resume, state, publish_attempts, created_at, updated_at)
    select s.run_id, s.tenant, s.enqueue_seq + 1, s.queue_name, s.priority, s.resume, 'pending', 0, now(), now()
    from settled s join run on run.id = s.run_id
    returning run_id, enqueue_seq
)
select s.ord, next.enqueue_seq from next join settled s on s.run_id = next.run_id
"""


def _judge(request: Rotation, now: Standing | None) -> Outcome[int] | None:
    reason = reason_not_queued(request.seq, now)
    if reason is not None:
        return Lost(reason, now)
    assert now is not None
    if now.delivery == DeliveryState.HELD:
        return Lost(Reason.HELD, now)
    other = reason_not_this_vessel(request.boot_id, now)
    return Lost(other, now) if other is not None else None


def _next_seq(_request: Any, found: tuple[Any, ...]) -> int:
    return found[0]


ROTATE: Edge[Rotation, int] = Edge(
    name="rotate",
    columns="run_id uuid, seq int, boot_id uuid, reason text",
    sql=SQL,
    encode=lambda request: row(
        run_id=str(request.run_id),
        seq=request.seq,
        boot_id=str(request.boot_id) if request.boot_id else None,
        reason=request.reason[:2000],
    ),
    decode=_next_seq,
    judge=_judge,
)
