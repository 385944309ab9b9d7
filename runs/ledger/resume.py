"""resume: AWAITING_… → QUEUED with the next hop PENDING in resume mode, proved on the exact owner (WAIT-5..WAIT-8).

The Run is locked before its owner. A surface without a broker leaves a word for the Vessel in the same transaction
(ruling 30). The verdict itself was committed before, in a transaction of its own (ruling 5).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.notify import CHANNEL, NOTIFY
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.script import Script, Statement
from runs.states import RunStatus


@dataclass(frozen=True, slots=True)
class Resume:
    """A parked Run whose owner has answered; `proof` is the kind's `resume_proof`.

    `boot_id` is of the Vessel that publishes the hop itself; None for a surface without a broker.
    """

    run_id: uuid.UUID
    status: RunStatus
    kind: str
    owner_id: uuid.UUID
    proof: str
    boot_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The hop that carries the Run on."""

    run_id: uuid.UUID
    seq: int
    queue: str
    priority: int
    tenant: str


LOCK = """
select r.enqueue_seq
from runs_run r
where r.id = %(run)s::uuid
  and r.status = %(status)s::text
  and r.wait_kind = %(kind)s::text
  and r.wait_owner = %(owner)s::uuid
  and r.road = 'vessel'
  and r.quarantined_at is null
  and (%(boot)s::uuid is null or exists (select 1 from runs_vesselslot v where v.boot_id = %(boot)s::uuid))
for no key update of r
"""

_CHANGE = """
    update runs_run
    set status = 'queued', enqueue_seq = enqueue_seq + 1,
        wait_kind = null, wait_owner = null, wait_since = null,
        error_code = null, error_message = null, error_node = null, updated_at = now()
    where id = %(run)s::uuid {proved}
    returning id, tenant, enqueue_seq, queue_name, priority
"""
_HOP = """
insert into runs_rundelivery (
    run_id, tenant, enqueue_seq, queue_name, priority, resume, state, publish_attempts, created_at, updated_at)
select id, tenant, enqueue_seq, queue_name, priority, true, 'pending', 0, now(), now() from run
returning enqueue_seq, queue_name, priority, tenant
"""

RESUME = f"with run as ({_CHANGE.format(proved='')}) {_HOP}"

# The same in one statement, for a surface without a broker that has many to send: Run, owner, change, word.
_AT_ONCE = """
with locked as ({lock}),
proved as (select 1 from locked cross join lateral ({proof}) as o),
run as ({change}),
hop as ({hop}),
told as (select pg_notify(%(channel)s::text, %(run)s::text) from hop)
select h.enqueue_seq from hop h cross join told
"""


def at_once(request: Resume) -> Statement:
    """The whole of `resume` as one statement: a row if it won, none if it lost. Leaves the word for the Vessel."""
    sql = _AT_ONCE.format(
        lock=LOCK,
        proof=request.proof,
        change=_CHANGE.format(proved="and exists (select 1 from proved)"),
        hop=_HOP,
    )
    return Statement(sql, {**_params(request), "channel": CHANNEL})


def resume(request: Resume) -> Script[Outcome[Resumed]]:
    """Bring the Run back.

    Returns:
        `Won` with the new hop. `Lost(STATUS)` when the Run is not parked on this owner (any more): a historical owner
        moves nothing (WAIT-12). `Lost(NO_OWNER)` when the owner has not answered, or was cancelled (WAIT-6).
    """
    params = _params(request)
    if not (yield Statement(LOCK, params)):
        return Lost(Reason.STATUS, None)
    if not (yield Statement(request.proof, params)):
        return Lost(Reason.NO_OWNER, None)
    rows = yield Statement(RESUME, params)
    seq, queue, priority, tenant = rows[0]
    if request.boot_id is None:
        yield Statement(NOTIFY, {"channel": CHANNEL, "run": str(request.run_id)})
    return Won(Resumed(request.run_id, seq, queue, priority, tenant))


def _params(request: Resume) -> dict[str, Any]:
    return {
        "run": str(request.run_id),
        "status": request.status.value,
        "kind": request.kind,
        "owner": str(request.owner_id),
        "boot": str(request.boot_id) if request.boot_id else None,
    }
