"""contain: end what one kind of owner may still do for a Run, under the guard that claims and parks share (SET-7).

The guard is locked and proved in the same transaction in which the kind withdraws its owners: a late failure can so
neither touch the effects of the next hop nor undo a park whose answer was lost. Why something is not contained is kept
on the Run, for people.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import LOOK, look_batch, reason_not_mine, standing
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.script import Script, Statement

type Withdraw = Callable[[uuid.UUID, str], Script[int]]


@dataclass(frozen=True, slots=True)
class Guard:
    """Whose effects may be ended: those of a claimed hop that failed; without `claim_id` those of a cancelling Run."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID | None


CLAIMED = """
select r.id
from runs_run r
join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = %(seq)s::int
where r.id = %(run)s::uuid
  and r.status in ('running', 'awaiting_hardware')
  and r.enqueue_seq = %(seq)s::int
  and d.state = 'claimed'
  and d.claim_id = %(claim)s::uuid
for no key update of r
"""

# A cancelled Run may be swept again (CAN-8); nothing of it can be running for a good reason.
CANCELLING = """
select r.id from runs_run r
where r.id = %(run)s::uuid and r.status in ('cancelling', 'cancelled') and r.enqueue_seq = %(seq)s::int
for no key update of r
"""


def contain(guard: Guard, withdraw: Withdraw, principal: str) -> Script[Outcome[int]]:
    """Withdraw the open owners of one kind.

    Args:
        withdraw: the kind's `contain`.
        principal: in whose name, for the receipts.

    Returns:
        `Won` with how many were withdrawn, or `Lost` with the reason why this hop may not end anything.
    """
    params: dict[str, Any] = {
        "run": str(guard.run_id),
        "seq": guard.seq,
        "claim": str(guard.claim_id) if guard.claim_id else None,
    }
    if not (yield Statement(CANCELLING if guard.claim_id is None else CLAIMED, params)):
        rows = yield Statement(LOOK, {"batch": look_batch([guard])})
        now = standing(rows[0])
        reason = reason_not_mine(guard, now) if guard.claim_id is not None else None
        return Lost(reason or Reason.STATUS, now)
    return Won((yield from withdraw(guard.run_id, principal)))


NOTE = """
update runs_run set containment_error = %(error)s::text, updated_at = now()
where id = %(run)s::uuid and enqueue_seq = %(seq)s::int and status not in ('done', 'failed', 'cancelled')
  and containment_error is distinct from %(error)s::text
returning id
"""


def note_containment(run_id: uuid.UUID, seq: int, error: str | None) -> Script[bool]:
    """Keep on an unfinished Run what could not be contained yet, in a sentence; None when that is over.

    Returns:
        Whether anything changed.
    """
    rows = yield Statement(NOTE, {"run": str(run_id), "seq": seq, "error": error[:2000] if error else None})
    return bool(rows)
