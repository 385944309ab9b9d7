"""mark_published and publication errors: what the broker said of a hop. Never moves a claimed or settled one back."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import Edge, reason_not_queued, row
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing
from runs.states import DeliveryState


@dataclass(frozen=True, slots=True)
class Published:
    """The broker holds the job of this hop."""

    run_id: uuid.UUID
    seq: int


@dataclass(frozen=True, slots=True)
class PublicationError:
    """The broker did not take the job of this hop, or did not say so."""

    run_id: uuid.UUID
    seq: int
    message: str


_SQL = """
with {{wanted}},
locked as (
    select w.ord, w.message, d.id as delivery_id
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status = 'queued'
      and r.enqueue_seq = w.seq
      and d.state in ('pending', 'published')
    order by r.id
    for no key update of r, d {{skip}}
)
update runs_rundelivery d
set {change}, publish_attempts = d.publish_attempts + 1, updated_at = now()
from locked l
where d.id = l.delivery_id
returning l.ord
"""


def _judge(request: Any, now: Standing | None) -> Outcome[None] | None:
    reason = reason_not_queued(request.seq, now)
    if reason is not None:
        return Lost(reason, now)
    assert now is not None
    if now.delivery == DeliveryState.HELD:
        return Lost(Reason.HELD, now)
    return None


def _nothing(_request: Any, _found: tuple[Any, ...]) -> None:
    return None


MARK_PUBLISHED: Edge[Published, None] = Edge(
    name="mark_published",
    columns="run_id uuid, seq int, message text",
    sql=_SQL.format(change="state = 'published', published_at = coalesce(d.published_at, now()), last_error = null"),
    encode=lambda request: row(run_id=str(request.run_id), seq=request.seq),
    decode=_nothing,
    judge=_judge,
    hot=True,
)

NOTE_PUBLICATION_ERROR: Edge[PublicationError, None] = Edge(
    name="note_publication_error",
    columns="run_id uuid, seq int, message text",
    sql=_SQL.format(change="last_error = l.message"),
    encode=lambda request: row(run_id=str(request.run_id), seq=request.seq, message=request.message[:2000]),
    decode=_nothing,
    judge=_judge,
)
