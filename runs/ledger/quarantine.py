"""quarantine and release from it: one bad old Run must not keep every Vessel from starting (ruling 15).

A quarantined Run is out of claims, relays and the required part of recovery, and is shown until somebody decides.
A Run that has ended can be set aside only where its evidence does not say so, since that too stops a start.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from runs.ledger.notify import CHANNEL
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.script import Script, Statement
from runs.states import TERMINAL, RunStatus

LOCK = """
select r.status, r.quarantined_at is not null,
       exists (select 1 from runs_step s where s.run_id = r.id and s.kind = 'done' and s.data->>'status' = r.status)
from runs_run r where r.id = %(run)s::uuid for no key update of r
"""
SET = """
update runs_run set quarantined_at = now(), quarantine_reason = %(reason)s::text, updated_at = now()
where id = %(run)s::uuid returning id
"""
CLEAR = """
update runs_run set quarantined_at = null, quarantine_reason = null, updated_at = now()
where id = %(run)s::uuid returning id
"""
NOTIFY = "select pg_notify(%(channel)s::text, %(run)s::text)"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Take a Run out, with the reason; or with `reason` None let it in again."""

    run_id: uuid.UUID
    reason: str | None


def quarantine(request: Quarantine) -> Script[Outcome[RunStatus]]:
    """Set or clear the quarantine; a Vessel that runs hears of a Run that is let in again.

    Returns:
        `Won` with the Run's status (`again` when it stood so before); `Lost(NO_RUN)`, or `Lost(TERMINAL)` for a Run
        that has ended, with evidence that says the same, and disturbs nobody.
    """
    params = {"run": str(request.run_id), "reason": request.reason, "channel": CHANNEL}
    found = yield Statement(LOCK, params)
    if not found:
        return Lost(Reason.NO_RUN, None)
    status, is_in, proved = RunStatus(found[0][0]), bool(found[0][1]), bool(found[0][2])
    if request.reason is None:
        if is_in:
            yield Statement(CLEAR, params)
            yield Statement(NOTIFY, params)
        return Won(status, again=not is_in)
    if status in TERMINAL and proved:
        return Lost(Reason.TERMINAL, None)
    yield Statement(SET, params)
    return Won(status, again=is_in)
