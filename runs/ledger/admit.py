"""admit: a Run QUEUED and its delivery at sequence 0, HELD or PENDING, in one statement (ADM-3, ADM-4).

Admissions that ask for a session's fence are never coalesced: `admit_in_session` locks the session first (ruling 8).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.ledger.edge import Edge, row
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing, Won
from runs.ledger.script import Script, Statement
from runs.states import NONTERMINAL


@dataclass(frozen=True, slots=True)
class Admission:
    """A Run to be. `*_json` fields are JSON text that was checked at the door.

    `boot_id` is the Vessel's boot; None on sync surfaces, which admit without a Vessel (ruling 30).
    `retains` starts the delivery HELD.
    """

    run_id: uuid.UUID
    tenant: str
    pattern_key: str
    pattern_revision: str
    pattern_digest: str
    manifest_json: str
    source: str
    surface: str
    sigil_id: uuid.UUID | None
    user_id: uuid.UUID | None
    sigil_name: str
    scopes: tuple[str, ...]
    intent_json: str
    idempotency_key: str | None
    request_digest: str
    input_json: str
    session_id: uuid.UUID | None
    priority: int
    queue_name: str
    retains: bool
    boot_id: uuid.UUID | None
    ancestor_id: uuid.UUID | None = None
    seq: int = 0


COLUMNS = (
    "run_id uuid, tenant text, pattern_key text, pattern_revision text, pattern_digest text, source text, "
    "surface text, sigil_id uuid, user_id uuid, sigil_name text, "
    " scopes jsonb, idempotency_key text, request_digest text, "
    "session_id uuid, priority smallint, queue_name text, state text, boot_id uuid, ancestor_id uuid, "
    "manifest jsonb, intent jsonb, input jsonb"
)

SQL = """
with {wanted},
run as (
    insert into runs_run (
        id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source, surface,
        sigil_id, user_id, sigil_name, scopes, intent, idempotency_key, request_digest, input, session_id, ancestor_id,
        status, priority, queue_name, enqueue_seq, created_at, updated_at)
    select w.run_id, w.tenant, 'vessel', w.pattern_key, w.pattern_revision, w.pattern_digest, w.manifest, w.source,
        w.surface, w.sigil_id, w.user_id, w.sigil_name, w.scopes, w.intent, w.idempotency_key, w.request_digest, w.input,
        w.session_id, w.ancestor_id, 'queued', w.priority, w.queue_name, 0, now(), now()
    from wanted w
    where (w.boot_id is null or exists (select 1 from runs_vesselslot v where v.boot_id = w.boot_id))
      and not exists (select 1 from runs_runtombstone t where t.id = w.run_id)
    order by w.run_id
    on conflict (id) do nothing
    returning id, created_at
),
delivery as (
    insert into runs_rundelivery (
        run_id, tenant, enqueue_seq, queue_name, priority, resume, state, publish_attempts, created_at, updated_at)
    select w.run_id, w.tenant, 0, w.queue_name, w.priority, false, w.state, 0, now(), now()
    from run join wanted w on w.run_id = run.id
    returning run_id
)
select w.ord, run.created_at
from delivery
join run on run.id = delivery.run_id
join wanted w on w.run_id = run.id
-- {skip}
"""


def _encode(request: Admission) -> str:
    return row(
        {"manifest": request.manifest_json, "intent": request.intent_json, "input": request.input_json},
        run_id=str(request.run_id),
        tenant=request.tenant,
        pattern_key=request.pattern_key,
        pattern_revision=request.pattern_revision,
        pattern_digest=request.pattern_digest,
        source=request.source,
        surface=request.surface,
        sigil_id=str(request.sigil_id) if request.sigil_id else None,
        user_id=str(request.user_id) if request.user_id else None,
        sigil_name=request.sigil_name,
        scopes=sorted(request.scopes),
        idempotency_key=request.idempotency_key,
        request_digest=request.request_digest,
        session_id=str(request.session_id) if request.session_id else None,
        priority=request.priority,
        queue_name=request.queue_name,
        state="held" if request.retains else "pending",
        boot_id=str(request.boot_id) if request.boot_id else None,
        ancestor_id=str(request.ancestor_id) if request.ancestor_id else None,
    )


def _judge(request: Admission, now: Standing | None) -> Outcome[Any] | None:
    # A prior row under this id: the engine reads it and decides between replay and conflict (ruling 18).
    # None: a tombstone or another boot's Vessel; the engine asks which.
    del request
    return Lost(Reason.STATUS if now is not None else Reason.NO_RUN, now)


ADMIT: Edge[Admission, Any] = Edge(
    name="admit",
    columns=COLUMNS,
    sql=SQL,
    encode=_encode,
    decode=lambda _request, found: found[0],
    judge=_judge,
    hot=True,
)


@dataclass(frozen=True, slots=True)
class Fenced:
    """The session already has an unfinished Run; nothing was admitted."""

    live_run_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class ForeignSession:
    """The session belongs to another tenant; nothing was admitted and nothing is disclosed."""


LOCK_SESSION = """
insert into runs_session (id, tenant, channel, title, sigil_name, meta, created_at, updated_at)
values (%(session)s::uuid, %(tenant)s::text, %(surface)s::text, '', %(sigil)s::text, '{}'::jsonb, now(), now())
on conflict (id) do update set updated_at = now() where runs_session.tenant = excluded.tenant
returning id
"""

# Written as the partial index of unfinished Runs is: the planner does not prove it from "not done" (S030).
_UNFINISHED = ", ".join(f"'{status.value}'" for status in sorted(NONTERMINAL))

LIVE_IN_SESSION = f"""
select r.id from runs_run r
where r.tenant = %(tenant)s::text
  and r.session_id = %(session)s::uuid
  and r.status in ({_UNFINISHED})
  and r.id <> %(run)s::uuid
limit 1
"""  # noqa: S608 - only constants are put together

TOUCH_SESSION = """
update runs_session set last_run_id = %(run)s::uuid, updated_at = now() where id = %(session)s::uuid returning id
"""


def admit_in_session(request: Admission, *, fence: bool) -> Script[Won[Any] | Lost | Fenced | ForeignSession]:
    """Admit a Run of a session: get or create the session, and with `fence` refuse a second unfinished Run (ADM-30).

    The session row is locked from the first statement to the commit, so two submissions to one session take turns.
    An id that exists already is answered with `Lost(STATUS)` and judged by the engine as a replay.
    """
    assert request.session_id is not None
    params = {
        "session": str(request.session_id),
        "tenant": request.tenant,
        "surface": request.surface,
        "sigil": request.sigil_name,
        "run": str(request.run_id),
    }
    if not (yield Statement(LOCK_SESSION, params)):
        return ForeignSession()
    if fence:
        live = yield Statement(LIVE_IN_SESSION, params)
        if live:
            return Fenced(live[0][0])
    rows = yield Statement(ADMIT.statement(skip_locked=False), {"batch": f"[{_encode(request)}]"})
    if not rows:
        return Lost(Reason.STATUS, None)
    yield Statement(TOUCH_SESSION, params)
    return Won(rows[0][1])
