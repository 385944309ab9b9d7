"""enter and leave AWAITING_HARDWARE: the same hop, the same claim, the generic status writer's only two ways."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.errors import Corrupt
from runs.ledger.edge import Edge, reason_not_mine, row
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing, Won
from runs.states import GENERIC, RunStatus


@dataclass(frozen=True, slots=True)
class Move:
    """From one status to another within a claimed hop."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    from_status: RunStatus
    to_status: RunStatus

    def __post_init__(self) -> None:
        if (self.from_status, self.to_status) not in GENERIC and self.from_status != self.to_status:
            raise Corrupt(f"No edge leads from {self.from_status} to {self.to_status} this way.")


SQL = """
with {wanted},
locked as (
    select w.ord, w.to_status, r.id as run_id
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status = w.from_status
      and r.status in ('running', 'awaiting_hardware')
      and r.enqueue_seq = w.seq
      and d.state = 'claimed'
      and d.claim_id = w.claim_id
    order by r.id
    for no key update of r {skip}
)
update runs_run r
set status = l.to_status, updated_at = now()
from locked l
where r.id = l.run_id
returning l.ord
"""


def _judge(request: Move, now: Standing | None) -> Outcome[None] | None:
    reason = reason_not_mine(request, now)
    if reason is not None:
        return Lost(reason, now)
    assert now is not None
    if now.status == request.to_status:
        return Won(None, again=True)
    return None if now.status == request.from_status else Lost(Reason.STATUS, now)


def _nothing(_request: Any, _found: tuple[Any, ...]) -> None:
    return None


MOVE: Edge[Move, None] = Edge(
    name="move",
    columns="run_id uuid, seq int, claim_id uuid, from_status text, to_status text",
    sql=SQL,
    encode=lambda request: row(
        run_id=str(request.run_id),
        seq=request.seq,
        claim_id=str(request.claim_id),
        from_status=request.from_status.value,
        to_status=request.to_status.value,
    ),
    decode=_nothing,
    judge=_judge,
)
