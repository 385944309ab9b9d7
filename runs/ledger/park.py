"""park: RUNNING → AWAITING_…, with its exact owner, its delivery → SETTLED, by the claimant alone (WAIT-2, WAIT-3).

One short transaction: the Run is locked first (the guard that claims and parks share), then the owner is proved and
locked on the same connection, then both rows change.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import LOOK, look_batch, reason_not_mine, standing
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.script import Script, Statement
from runs.states import RunStatus


@dataclass(frozen=True, slots=True)
class Park:
    """A hop that wants to wait for `owner_id`; `proof` is the kind's `park_proof`."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    status: RunStatus
    kind: str
    owner_id: uuid.UUID
    proof: str


LOCK = """
select d.id
from runs_run r
join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = %(seq)s::int
where r.id = %(run)s::uuid
  and r.status = 'running'
  and r.enqueue_seq = %(seq)s::int
  and d.state = 'claimed'
  and d.claim_id = %(claim)s::uuid
for no key update of r, d
"""

PARK = """
with run as (
    update runs_run
    set status = %(status)s::text, wait_kind = %(kind)s::text, wait_owner = %(owner)s::uuid, wait_since = now(),
        error_code = null, error_message = null, error_node = null, containment_error = null,
        updated_at = now()
    where id = %(run)s::uuid
    returning id
)
update runs_rundelivery d
set state = 'settled', settled_at = now(), updated_at = now()
from run
where d.run_id = run.id and d.id = %(delivery)s::bigint
returning d.id
"""


def park(request: Park) -> Script[Outcome[None]]:
    """Park the Run on its owner.

    Returns:
        `Won` (`again` when this very park had been committed before and its answer was lost), or `Lost`:
        NO_OWNER when the owner is not this Run's or cannot be waited for, else why the hop may not write.
    """
    params: dict[str, Any] = {
        "run": str(request.run_id),
        "seq": request.seq,
        "claim": str(request.claim_id),
        "status": request.status.value,
        "kind": request.kind,
        "owner": str(request.owner_id),
    }
    locked = yield Statement(LOCK, params)
    if not locked:
        return (yield from _explain(request, params))
    if not (yield Statement(request.proof, params)):
        return Lost(Reason.NO_OWNER, None)
    yield Statement(PARK, {**params, "delivery": locked[0][0]})
    return Won(None)


PARKED_HERE = """
select r.wait_owner = %(owner)s::uuid and d.state = 'settled' and d.claim_id = %(claim)s::uuid
from runs_run r
join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = %(seq)s::int
where r.id = %(run)s::uuid and r.enqueue_seq = %(seq)s::int and r.status = %(status)s::text
"""


def _explain(request: Park, params: dict[str, Any]) -> Script[Outcome[None]]:
    mine = yield Statement(PARKED_HERE, params)
    if mine and mine[0][0]:
        return Won(None, again=True)
    rows = yield Statement(LOOK, {"batch": look_batch([request])})
    now = standing(rows[0])
    return Lost(reason_not_mine(request, now) or Reason.STATUS, now)
