"""claim: QUEUED → RUNNING and its delivery → CLAIMED, for exactly one claimant of exactly one hop."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runs.ledger.edge import Edge, reason_not_mine, reason_not_queued, reason_not_this_vessel, row
from runs.ledger.outcomes import Lost, Outcome, Reason, Standing
from runs.states import DeliveryState


@dataclass(frozen=True, slots=True)
class Claim:
    """A request to carry one hop. `claim_id` is minted by the claimant, so a lost answer can be asked for again."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    boot_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Claimed:
    """All that a hop needs, from the ledger alone (CLM-1). `manifest` is the pinned one as JSON text."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    tenant: str
    pattern_key: str
    pattern_revision: str
    pattern_digest: str
    manifest: str
    input: Any
    sigil_id: uuid.UUID | None
    user_id: uuid.UUID | None
    sigil_name: str
    scopes: list[str]
    source: str
    session_id: uuid.UUID | None
    resume: bool
    snapshots: list[dict[str, Any]] | None
    next_step: int
    started_at: datetime


SQL = """
with {wanted},
locked as (
    select w.ord, w.claim_id, w.boot_id, r.id as run_id, d.id as delivery_id
    from wanted w
    join runs_run r on r.id = w.run_id
    join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    where r.status = 'queued'
      and r.enqueue_seq = w.seq
      and r.road = 'vessel'
      and r.quarantined_at is null
      and d.state in ('pending', 'published')
      and exists (select 1 from runs_vesselslot v where v.boot_id = w.boot_id)
    order by r.id
    for no key update of r, d {skip}
),
run as (
    update runs_run r
    set status = 'running',
        started_at = coalesce(r.started_at, now()),
        error_code = null, error_message = null, error_node = null,
        updated_at = now()
    from locked l
    where r.id = l.run_id
    returning l.ord, r.*
),
delivery as (
    update runs_rundelivery d
    set state = 'claimed', claim_id = l.claim_id, boot_id = l.boot_id, claimed_at = now(), updated_at = now()
    from locked l
    where d.id = l.delivery_id
    returning l.ord, d.resume
)
select run.ord, run.tenant, run.pattern_key, run.pattern_revision, run.pattern_digest, run.manifest::text,
       run.input::text, run.sigil_id, run.user_id, run.sigil_name, run.scopes::text, run.source, run.session_id,
       delivery.resume, c.snapshots::text,
       coalesce((select max(s.seq) + 1 from runs_step s where s.run_id = run.id), 0),
       run.started_at
from run
join delivery on delivery.ord = run.ord
left join runs_checkpoint c on c.run_id = run.id
"""


def _encode(request: Claim) -> str:
    return row(
        run_id=str(request.run_id),
        seq=request.seq,
        claim_id=str(request.claim_id),
        boot_id=str(request.boot_id),
    )


def _decode(request: Claim, found: tuple[Any, ...]) -> Claimed:
    (tenant, key, revision, digest, manifest, given, sigil_id, user_id, sigil_name, scopes, source, session_id) = found[
        :12
    ]
    resume, snapshots, next_step, started_at = found[12:]
    return Claimed(
        run_id=request.run_id,
        seq=request.seq,
        claim_id=request.claim_id,
        tenant=tenant,
        pattern_key=key,
        pattern_revision=revision,
        pattern_digest=digest,
        manifest=manifest,
        input=json.loads(given),
        sigil_id=sigil_id,
        user_id=user_id,
        sigil_name=sigil_name,
        scopes=json.loads(scopes),
        source=source,
        session_id=session_id,
        resume=resume,
        snapshots=json.loads(snapshots) if snapshots is not None else None,
        next_step=next_step,
        started_at=started_at,
    )


def _judge(request: Claim, now: Standing | None) -> Outcome[Claimed] | None:
    reason = reason_not_queued(request.seq, now)
    if reason is not None:
        return Lost(reason, now)
    assert now is not None
    if now.delivery == DeliveryState.HELD:
        return Lost(Reason.HELD, now)
    if now.quarantined:
        return Lost(Reason.QUARANTINED, now)
    other = reason_not_this_vessel(request.boot_id, now)
    return Lost(other, now) if other is not None else None


CLAIM: Edge[Claim, Claimed] = Edge(
    name="claim",
    columns="run_id uuid, seq int, claim_id uuid, boot_id uuid",
    sql=SQL,
    encode=_encode,
    decode=_decode,
    judge=_judge,
    hot=True,
)

RECLAIM_SQL = """
with {wanted}
select w.ord, r.tenant, r.pattern_key, r.pattern_revision, r.pattern_digest, r.manifest::text,
       r.input::text, r.sigil_id, r.user_id, r.sigil_name, r.scopes::text, r.source, r.session_id,
       d.resume, c.snapshots::text,
       coalesce((select max(s.seq) + 1 from runs_step s where s.run_id = r.id), 0),
       r.started_at
from wanted w
join runs_run r on r.id = w.run_id and r.enqueue_seq = w.seq and r.status in ('running', 'awaiting_hardware')
join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
    and d.state = 'claimed' and d.claim_id = w.claim_id and d.boot_id = w.boot_id
left join runs_checkpoint c on c.run_id = r.id
"""

# Reads back a claim whose acknowledgement was lost (ruling 6). Writes nothing.
RECLAIM: Edge[Claim, Claimed] = Edge(
    name="reclaim",
    columns="run_id uuid, seq int, claim_id uuid, boot_id uuid",
    sql=RECLAIM_SQL + "-- {skip}",
    encode=_encode,
    decode=_decode,
    judge=lambda request, now: Lost(reason_not_mine(request, now) or Reason.NOT_MINE, now),
)
