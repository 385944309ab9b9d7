"""quarantine and release from it: one bad old Run must not keep every Vessel from starting (ruling 15).

A quarantined Run is out of claims, relays and the required part of recovery, and is shown until somebody decides.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.script import Script, Statement
from runs.states import TERMINAL, RunStatus

LOCK = "select r.status, r.quarantined_at is not null from runs_run r where r.id = %(run)s::uuid for no key update of r"
SET = """
update runs_run set quarantined_at = now(), quarantine_reason = %(reason)s::text, updated_at = now()
where id = %(run)s::uuid returning id
"""
CLEAR = """
update runs_run set quarantined_at = null, quarantine_reason = null, updated_at = now()
where id = %(run)s::uuid returning id
"""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Take a Run out, with the reason; or with `reason` None let it in again."""

    run_id: uuid.UUID
    reason: str | None


def quarantine(request: Quarantine) -> Script[Outcome[RunStatus]]:
    """Set or clear the quarantine.

    Returns:
        `Won` with the Run's status (`again` when it stood so before); `Lost(NO_RUN)`, or `Lost(TERMINAL)` for a Run
        that has ended and disturbs nobody.
    """
    params = {"run": str(request.run_id), "reason": request.reason}
    found = yield Statement(LOCK, params)
    if not found:
        return Lost(Reason.NO_RUN, None)
    status, is_in = RunStatus(found[0][0]), bool(found[0][1])
    if request.reason is None:
        if is_in:
            yield Statement(CLEAR, params)
        return Won(status, again=not is_in)
    if status in TERMINAL:
        return Lost(Reason.TERMINAL, None)
    yield Statement(SET, params)
    return Won(status, again=is_in)
