"""release and refuse: what becomes of a HELD admission. Exactly one of the two wins (ADM-11).

refuse_queued is for a queued hop that can never run (an unknown Pattern found at startup, say).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import Edge, reason_not_queued, row
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing, Won
from runs.states import TERMINAL, DeliveryState, RunStatus


@dataclass(frozen=True, slots=True)
class Release:
    """HELD → PENDING for this exact hop."""

    run_id: uuid.UUID
    seq: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Run → FAILED and this exact unpublished hop → SETTLED; its turn in a session is closed without a reply."""

    run_id: uuid.UUID
    seq: int
    code: str
    message: str


RELEASE_SQL = """
with {wanted},
locked as (
    select w.ord, d.id as delivery_id
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status = 'queued'
      and r.enqueue_seq = w.seq
      and d.state = 'held'
    order by r.id
    for no key update of r, d {skip}
)
update runs_rundelivery d
set state = 'pending', updated_at = now()
from locked l
where d.id = l.delivery_id
returning l.ord
"""


def _judge_release(request: Release, now: Standing | None) -> Outcome[None] | None:
    if (
        now is not None
        and now.enqueue_seq == request.seq
        and now.status not in {*TERMINAL, RunStatus.CANCELLING}
        and now.delivery in {DeliveryState.PENDING, DeliveryState.PUBLISHED, DeliveryState.CLAIMED}
    ):
        return Won(None, again=True)
    reason = reason_not_queued(request.seq, now)
    return Lost(reason, now) if reason is not None else None


RELEASE: Edge[Release, None] = Edge(
    name="release",
    columns="run_id uuid, seq int",
    sql=RELEASE_SQL,
    encode=lambda request: row(run_id=str(request.run_id), seq=request.seq),
    decode=lambda _request, _found: None,
    judge=_judge_release,
)

_REFUSE_SQL = """
with {{wanted}},
locked as (
    select w.ord, w.code, w.message, r.id as run_id, d.id as delivery_id
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status = 'queued'
      and r.enqueue_seq = w.seq
      and d.state {states}
    order by r.id
    for no key update of r, d {{skip}}
),
run as (
    update runs_run r
    set status = 'failed', error_code = l.code, error_message = l.message, finished_at = now(), updated_at = now()
    from locked l
    where r.id = l.run_id
    returning l.ord
),
turn as (
    update runs_sessionturn t
    set status = 'failed', updated_at = now()
    from locked l
    where t.run_id = l.run_id and t.status = 'open'
)
update runs_rundelivery d
set state = 'settled', settled_at = now(), updated_at = now()
from locked l join run on run.ord = l.ord
where d.id = l.delivery_id
returning l.ord
"""


def _refuse(name: str, states: str, allowed: frozenset[DeliveryState]) -> Edge[Refusal, None]:
    def judge(request: Refusal, now: Standing | None) -> Outcome[None] | None:
        reason = reason_not_queued(request.seq, now)
        if reason is not None:
            return Lost(reason, now)
        assert now is not None
        if now.delivery not in allowed:
            return Lost(Reason.HELD if now.delivery == DeliveryState.HELD else Reason.NOT_HELD, now)
        return None

    return Edge(
        name=name,
        columns="run_id uuid, seq int, code text, message text",
        sql=_REFUSE_SQL.format(states=states),
        encode=lambda request: row(
            run_id=str(request.run_id), seq=request.seq, code=request.code, message=request.message
        ),
        decode=_nothing,
        judge=judge,
    )


def _nothing(_request: Any, _found: tuple[Any, ...]) -> None:
    return None


REFUSE: Edge[Refusal, None] = _refuse("refuse", "= 'held'", frozenset({DeliveryState.HELD}))
REFUSE_QUEUED: Edge[Refusal, None] = _refuse(
    "refuse_queued", "in ('pending', 'published')", frozenset({DeliveryState.PENDING, DeliveryState.PUBLISHED})
)
