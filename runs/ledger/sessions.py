"""Turns of sessions: what a Run was asked in a conversation. Replies are written by `settle`."""

from __future__ import annotations

import uuid

from runs.errors import Conflict, NotFound
from runs.ledger.script import Script, Statement


class OtherTurn(Conflict):
    """This Run already has another turn in a session."""

    code, title = "other_turn", "Run has another turn"


LOCK = "select id from runs_session where id = %(session)s::uuid for no key update"

INSERT = """
insert into runs_sessionturn (session_id, run_id, tenant, request, status, created_at, updated_at)
select %(session)s::uuid, r.id, r.tenant, %(request)s::jsonb, 'open', now(), now()
from runs_run r where r.id = %(run)s::uuid
on conflict (run_id) do nothing
returning id
"""

SAME = """
select t.session_id = %(session)s::uuid and t.request = %(request)s::jsonb
from runs_sessionturn t where t.run_id = %(run)s::uuid
"""


def append_turn(session_id: uuid.UUID, run_id: uuid.UUID, request_json: str) -> Script[bool]:
    """Append the turn of a Run; doing it again is the same turn (ADM-26). Turns of one session take turns.

    Returns:
        Whether the turn is new.

    Raises:
        NotFound: the session or the Run is gone.
        OtherTurn: the Run already has a different turn.
    """
    params = {"session": str(session_id), "run": str(run_id), "request": request_json}
    if not (yield Statement(LOCK, params)):
        raise NotFound("There is no such session.")
    if (yield Statement(INSERT, params)):
        return True
    same = yield Statement(SAME, params)
    if not same:
        raise NotFound("There is no such Run.")
    if not same[0][0]:
        raise OtherTurn
    return False
