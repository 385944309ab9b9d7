"""settle: RUNNING or AWAITING_HARDWARE → DONE or FAILED, its delivery → SETTLED, by the claimant alone (SET-1, SET-3).

In the same statement: the session's turn gets its reply (ruling 20), and a failed Run's checkpoint is copied to the
archive (ruling 36). The checkpoint itself is deleted afterwards by `discard_checkpoint` (SET-2).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Literal

from runs.ledger.edge import Edge, reason_not_mine, row
from runs.ledger.outcomes import Lost, Outcome, Standing, Won
from runs.states import DeliveryState


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a hop that ends its Run. DONE carries `output_json`, FAILED code, message and node."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    status: Literal["done", "failed"]
    output_json: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    error_node: str | None = None


SQL = """
with {wanted},
locked as (
    select w.*, r.session_id, r.tenant, d.id as delivery_id
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status in ('running', 'awaiting_hardware')
      and r.enqueue_seq = w.seq
      and d.state = 'claimed'
      and d.claim_id = w.claim_id
      and w.status in ('done', 'failed')
    order by r.id
    for no key update of r, d {skip}
),
run as (
    update runs_run r
    set status = l.status, output = l.output,
        error_code = l.error_code, error_message = l.error_message, error_node = l.error_node,
        containment_error = null, finished_at = now(), updated_at = now()
    from locked l
    where r.id = l.run_id
    returning l.ord
),
delivery as (
    update runs_rundelivery d
    set state = 'settled', settled_at = now(), updated_at = now()
    from locked l
    where d.id = l.delivery_id
    returning l.ord
),
turn as (
    update runs_sessionturn t
    set status = l.status,
        reply = case when l.status = 'done' then l.output
                     else jsonb_build_object('error', l.error_code, 'message', l.error_message) end,
        updated_at = now()
    from locked l
    where t.run_id = l.run_id and l.session_id is not null and t.status = 'open'
),
archive as (
    insert into runs_checkpointarchive (run_id, tenant, enqueue_seq, snapshots, archived_at)
    select c.run_id, c.tenant, c.enqueue_seq, c.snapshots, now()
    from locked l join runs_checkpoint c on c.run_id = l.run_id
    where l.status = 'failed'
    on conflict (run_id) do nothing
)
select run.ord from run join delivery on delivery.ord = run.ord
"""


def _judge(request: Settlement, now: Standing | None) -> Outcome[None] | None:
    if (
        now is not None
        and now.status.value == request.status
        and now.enqueue_seq == request.seq
        and now.claim_id == request.claim_id
        and now.delivery == DeliveryState.SETTLED
    ):
        return Won(None, again=True)
    reason = reason_not_mine(request, now)
    return Lost(reason, now) if reason is not None else None


def _nothing(_request: Any, _found: tuple[Any, ...]) -> None:
    return None


SETTLE: Edge[Settlement, None] = Edge(
    name="settle",
    columns=(
        "run_id uuid, seq int, claim_id uuid, status text, error_code text, error_message text, error_node text, "
        "output jsonb"
    ),
    sql=SQL,
    encode=lambda request: row(
        {"output": request.output_json},
        run_id=str(request.run_id),
        seq=request.seq,
        claim_id=str(request.claim_id),
        status=request.status,
        error_code=request.error_code,
        error_message=request.error_message,
        error_node=request.error_node,
    ),
    decode=_nothing,
    judge=_judge,
    hot=True,
)
