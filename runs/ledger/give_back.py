"""give_back: RUNNING → QUEUED with the next hop PENDING, for a claimed hop that stops at a boundary (BYD-3, BYD-5).

The claimant of a draining Vessel yields this way, and recovery in the name of one that died. With `snapshots` the
boundary is written in the same statement, so there is no moment at which the Run stands between two hops.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import Edge, reason_not_mine, row
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A claimed hop to be followed by another.

    Attributes:
        resume: whether the next hop returns from the checkpoint; False starts the Pattern anew.
        reason: why, for the settled delivery.
        snapshots_json: the checkpoint to return from; None leaves the stored one.
        boot_id: the Vessel that acts in a dead claimant's name; None for the claimant itself.
    """

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    resume: bool
    reason: str
    snapshots_json: str | None = None
    boot_id: uuid.UUID | None = None


SQL = """
with {wanted},
locked as (
    select w.ord, w.claim_id, w.resume, w.reason, w.snapshots, r.id as run_id, r.tenant, r.enqueue_seq,
           d.id as delivery_id
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status in ('running', 'awaiting_hardware')
      and r.enqueue_seq = w.seq
      and d.state = 'claimed'
      and d.claim_id = w.claim_id
      and (w.boot_id is null or exists (select 1 from runs_vesselslot v where v.boot_id = w.boot_id))
    order by r.id
    for no key update of r, d {skip}
),
saved as (
    insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at, updated_at)
    select l.run_id, l.tenant, l.enqueue_seq, l.claim_id, l.snapshots, now(), now()
    from locked l where l.snapshots is not null
    on conflict (run_id) do update
    set enqueue_seq = excluded.enqueue_seq, claim_id = excluded.claim_id,
        snapshots = excluded.snapshots, updated_at = now()
),
settled as (
    update runs_rundelivery d
    set state = 'settled', settled_at = now(), updated_at = now(), last_error = l.reason
    from locked l
    where d.id = l.delivery_id
    returning l.ord, l.resume, d.run_id, d.tenant, d.enqueue_seq, d.queue_name, d.priority
),
run as (
    update runs_run r
    set status = 'queued', enqueue_seq = s.enqueue_seq + 1, containment_error = null, updated_at = now()
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


def _judge(request: GiveBack, now: Standing | None) -> Outcome[int] | None:
    reason = reason_not_mine(request, now)
    if reason is not None:
        return Lost(reason, now)
    if request.boot_id is not None and now is not None and now.current_boot != request.boot_id:
        return Lost(Reason.OTHER_BOOT, now)
    return None


def _next_seq(_request: Any, found: tuple[Any, ...]) -> int:
    return found[0]


GIVE_BACK: Edge[GiveBack, int] = Edge(
    name="give_back",
    columns="run_id uuid, seq int, claim_id uuid, resume bool, reason text, boot_id uuid, snapshots jsonb",
    sql=SQL,
    encode=lambda request: row(
        {"snapshots": request.snapshots_json},
        run_id=str(request.run_id),
        seq=request.seq,
        claim_id=str(request.claim_id),
        resume=request.resume,
        reason=request.reason[:2000],
        boot_id=str(request.boot_id) if request.boot_id else None,
    ),
    decode=_next_seq,
    judge=_judge,
)
