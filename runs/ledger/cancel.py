"""elect and finish_cancel: the two writes of a cancellation. In between the Run is honestly CANCELLING (CAN-2, CAN-4).

The election freezes the Run's exact hop: no claim, rotation, publication note, park or resume is possible any more.
Only when every authority has acknowledged may the second write say CANCELLED.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import Edge, row
from runs.ledger.notify import CHANNEL
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing, Won
from runs.ledger.script import Script, Statement
from runs.states import TERMINAL, RunStatus


@dataclass(frozen=True, slots=True)
class Election:
    """A wish to cancel.

    Attributes:
        principal: who wishes it, for the record.
        tenant: whose Run it must be; None where the caller may cancel any.
        boot_id: the Vessel that acts; None from a surface without one.
    """

    run_id: uuid.UUID
    principal: str
    tenant: str | None = None
    boot_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Elected:
    """The frozen Run, or the terminal one that needs no cancelling. `by` wished it first."""

    run_id: uuid.UUID
    tenant: str
    pattern_key: str
    status: RunStatus
    seq: int
    queue: str
    by: str | None = None


LOOK = """
select r.tenant, r.pattern_key, r.status, r.enqueue_seq, r.queue_name, r.cancelled_by
from runs_run r
where r.id = %(run)s::uuid
  and r.road = 'vessel'
  and (%(tenant)s::text is null or r.tenant = %(tenant)s::text)
  and (%(boot)s::uuid is null or exists (select 1 from runs_vesselslot v where v.boot_id = %(boot)s::uuid))
for no key update of r
"""

ELECT = """
update runs_run
set status = 'cancelling', wait_kind = null, wait_owner = null, wait_since = null,
    error_code = null, error_message = null, error_node = null,
    cancelled_by = %(principal)s::text, cancel_requested_at = now(), containment_error = null, updated_at = now()
where id = %(run)s::uuid
returning id
"""

NOTIFY = "select pg_notify(%(channel)s::text, %(run)s::text)"
HOLDS = "select 1 from runs_vesselslot v where v.boot_id = %(boot)s::uuid"


def elect(request: Election) -> Script[Outcome[Elected]]:
    """Freeze the Run as CANCELLING and wake the Vessel; a terminal Run, or one that is cancelling, is left as it is.

    Returns:
        `Won` with the Run as it stands now (`again` unless this call froze it); `Lost(NO_RUN)` when there is no such
        Run for this tenant, `Lost(OTHER_BOOT)` when this Vessel does not hold the database any more.
    """
    params: dict[str, Any] = {
        "run": str(request.run_id),
        "tenant": request.tenant,
        "boot": str(request.boot_id) if request.boot_id else None,
        "principal": request.principal[:150],
        "channel": CHANNEL,
    }
    found = yield Statement(LOOK, params)
    if not found:
        cut_off = request.boot_id is not None and not (yield Statement(HOLDS, params))
        return Lost(Reason.OTHER_BOOT if cut_off else Reason.NO_RUN, None)
    tenant, pattern, status, seq, queue, by = found[0]
    now = RunStatus(status)
    if now in TERMINAL or now == RunStatus.CANCELLING:
        if now == RunStatus.CANCELLING and request.boot_id is None:
            # Whoever asks again wants it tried again (CAN-5).
            yield Statement(NOTIFY, params)
        return Won(Elected(request.run_id, tenant, pattern, now, seq, queue, by), again=True)
    yield Statement(ELECT, params)
    yield Statement(NOTIFY, params)
    return Won(Elected(request.run_id, tenant, pattern, RunStatus.CANCELLING, seq, queue, params["principal"]))


@dataclass(frozen=True, slots=True)
class FinishCancel:
    """Everything is contained: end the frozen hop."""

    run_id: uuid.UUID
    seq: int
    boot_id: uuid.UUID | None


FINISH_SQL = """
with {wanted},
locked as (
    select w.ord, r.id as run_id, r.session_id, d.id as delivery_id
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status = 'cancelling'
      and r.enqueue_seq = w.seq
      and (w.boot_id is null or exists (select 1 from runs_vesselslot v where v.boot_id = w.boot_id))
    order by r.id
    for no key update of r, d {skip}
),
run as (
    update runs_run r
    set status = 'cancelled', containment_error = null, finished_at = now(), updated_at = now()
    from locked l
    where r.id = l.run_id
    returning l.ord
),
delivery as (
    update runs_rundelivery d
    set state = 'settled', settled_at = coalesce(d.settled_at, now()), updated_at = now()
    from locked l
    where d.id = l.delivery_id
    returning l.ord
),
turn as (
    update runs_sessionturn t
    set status = 'cancelled', updated_at = now()
    from locked l
    where t.run_id = l.run_id and l.session_id is not null and t.status = 'open'
),
archive as (
    insert into runs_checkpointarchive (run_id, tenant, enqueue_seq, snapshots, archived_at)
    select c.run_id, c.tenant, c.enqueue_seq, c.snapshots, now()
    from locked l join runs_checkpoint c on c.run_id = l.run_id
    on conflict (run_id) do nothing
)
select run.ord from run join delivery on delivery.ord = run.ord
"""


def _judge(request: FinishCancel, now: Standing | None) -> Outcome[None] | None:
    if now is None:
        return Lost(Reason.NO_RUN, now)
    if now.status == RunStatus.CANCELLED and now.enqueue_seq == request.seq:
        return Won(None, again=True)
    if now.status in TERMINAL:
        return Lost(Reason.TERMINAL, now)
    if now.status != RunStatus.CANCELLING:
        return Lost(Reason.STATUS, now)
    if now.enqueue_seq != request.seq:
        return Lost(Reason.STALE, now)
    if now.delivery is None:
        return Lost(Reason.NO_DELIVERY, now)
    if request.boot_id is not None and now.current_boot != request.boot_id:
        return Lost(Reason.OTHER_BOOT, now)
    return None


def _nothing(_request: Any, _found: tuple[Any, ...]) -> None:
    return None


FINISH_CANCEL: Edge[FinishCancel, None] = Edge(
    name="finish_cancel",
    columns="run_id uuid, seq int, boot_id uuid",
    sql=FINISH_SQL,
    encode=lambda request: row(
        run_id=str(request.run_id),
        seq=request.seq,
        boot_id=str(request.boot_id) if request.boot_id else None,
    ),
    decode=_nothing,
    judge=_judge,
)
