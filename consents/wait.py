"""The wait kind `consent`: opens the question, proves it on park and resume, reads the verdict, expires what is due."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from consents import policies
from consents.models import ConsentStatus, Risk
from consents.rows import one
from runs import payloads
from runs.errors import Conflict, Invalid
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.script import Script, Statement
from runs.patterns import Verdict
from runs.patterns.verdict import shown_digest
from runs.reads import Reads
from runs.states import RunStatus
from runs.waits import Ask, Pending, Place

BODY_LIMIT = 64 * 1024


class QuestionDiffers(Conflict):
    """This activation of the node asked something else before; an answer to that is no answer to this."""

    code, title = "question_differs", "Question differs"


PERMISSION = re.compile(r"[a-z_][a-z0-9_]*\.[a-z0-9_]+", re.ASCII)

PARK_PROOF = """
select 1 from consents_consent o
where o.id = %(owner)s::uuid and o.run_id = %(run)s::uuid and o.status <> 'cancelled'
for share of o
"""

RESUME_PROOF = """
select 1 from consents_consent o
where o.id = %(owner)s::uuid and o.run_id = %(run)s::uuid
  and o.status in ('granted', 'denied', 'expired')
  and o.decided_by is not null and o.decided_at is not null
for share of o
"""

INSERT = """
insert into consents_consent (
    id, run_id, tenant, node, visit, pattern_key, sigil_name, asked_by, title, body, facts, risk, effect, digest,
    permission, "group", quorum, self_approval, status, requested_at, expires_at, comment, policy_digest, updated_at)
select %(id)s::uuid, r.id, r.tenant, %(node)s::text, %(visit)s::int, %(pattern)s::text, %(sigil)s::text,
    %(asked_by)s::uuid,
    %(title)s::text, %(body)s::text, %(facts)s::jsonb, %(risk)s::text, %(effect)s::jsonb, %(digest)s::text,
    %(permission)s::text, %(group)s::text, %(quorum)s::smallint, %(self_approval)s::boolean, 'pending', now(),
    now() + make_interval(secs => %(expires_in)s::float8), '', '', now()
from runs_run r
join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq
where r.id = %(run)s::uuid and r.status = 'running' and r.enqueue_seq = %(seq)s::int
  and d.state = 'claimed' and d.claim_id = %(claim)s::uuid
for share of r
on conflict (id) do nothing
returning id
"""

ASKED = "select status, digest, run_id from consents_consent where id = %(id)s::uuid"

EXPIRE_DUE = """
update consents_consent c
set status = 'expired', decided_by = 'clock', decided_at = now(), surface = 'relay', updated_at = now()
where c.id in (
    select d.id from consents_consent d
    where d.status = 'pending' and d.expires_at is not null and d.expires_at <= now()
    order by d.expires_at
    limit %(limit)s::int
    for update skip locked)
returning c.id
"""

ANSWERED = """
select r.id, c.id, c.decided_at
from runs_run r
join consents_consent c on c.id = r.wait_owner
where r.status = 'awaiting_consent' and r.road = 'vessel' and r.quarantined_at is null
  and c.status in ('granted', 'denied', 'expired')
  and (%(at)s::timestamptz is null or (c.decided_at, c.id) > (%(at)s::timestamptz, %(id)s::uuid))
order by c.decided_at, c.id
limit %(limit)s::int
"""

LATEST = """
select c.id, c.status from consents_consent c
where c.run_id = %(run)s::uuid order by c.visit desc limit 1
"""

STRAYS = """
select r.id from runs_run r
left join consents_consent c on c.id = r.wait_owner and c.run_id = r.id
where r.status = 'awaiting_consent' and r.road = 'vessel' and r.quarantined_at is null and c.id is null
limit %(limit)s::int
"""

CANCEL_PENDING = """
update consents_consent
set status = 'cancelled', decided_by = %(principal)s::text, decided_at = now(), surface = 'engine', updated_at = now()
where run_id = %(run)s::uuid and status = 'pending'
returning id
"""


class ConsentWait:
    """See `runs.waits.WaitKind`."""

    name = "consent"
    status = RunStatus.AWAITING_CONSENT
    shown_in = "consents"
    park_proof = PARK_PROOF
    resume_proof = RESUME_PROOF

    def prove(self, request: Mapping[str, Any]) -> None:
        """Refuse a question that cannot be shown or stored."""
        payloads.check(dict(request), "question", 1024 * 1024)
        title, body, quorum, span = (request[name] for name in ("title", "body", "quorum", "expires_in"))
        if not isinstance(title, str) or not title.strip() or len(title) > 200 or len(title.splitlines()) > 1:
            raise Invalid("A Consent's title is one line of 1 to 200 characters.")
        if not isinstance(body, str) or len(body.encode()) > BODY_LIMIT:
            raise Invalid(f"A Consent's body is text of at most {BODY_LIMIT:,} bytes.")
        if request["risk"] not in set(Risk):
            raise Invalid(f"A Consent's risk is one of {', '.join(Risk)}, not {request['risk']!r}.")
        if not isinstance(quorum, int) or isinstance(quorum, bool) or not 1 <= quorum <= 50:
            raise Invalid(f"A Consent's quorum is 1 to 50 people, not {quorum!r}.")
        if span is not None and not 0 < span <= 366 * 86400:
            raise Invalid("A Consent expires within a year and not in the past.")
        permission, group = request["permission"], request["group"]
        if permission and not (isinstance(permission, str) and PERMISSION.fullmatch(permission)):
            raise Invalid(f"A Consent's permission is of the form app.codename, not {permission!r}.")
        if not isinstance(group, str) or max(len(permission), len(group)) > 150:
            raise Invalid("A Consent's permission and group are names of at most 150 characters.")
        if not isinstance(request["self_approval"], bool):
            raise Invalid("A Consent's self_approval is True or False.")

    def open(self, ask: Ask) -> Script[bool]:
        """Insert the question, and let a standing policy answer it in the same transaction."""
        asked = ask.request
        digest = shown_digest(
            title=asked["title"], body=asked["body"], facts=asked["facts"], risk=asked["risk"], effect=asked["effect"]
        )
        params = {
            "id": str(ask.owner_id),
            "run": str(ask.run_id),
            "seq": ask.seq,
            "claim": str(ask.claim_id),
            "node": ask.node,
            "visit": ask.visit,
            "pattern": ask.pattern_key,
            "sigil": ask.sigil_name,
            "asked_by": str(ask.asked_by) if ask.asked_by else None,
            "title": asked["title"],
            "body": asked["body"],
            "facts": payloads.canonical(asked["facts"]),
            "risk": asked["risk"],
            "effect": payloads.canonical(asked["effect"]) if asked["effect"] is not None else None,
            "digest": digest,
            "permission": asked["permission"],
            "group": asked["group"],
            "quorum": asked["quorum"],
            "self_approval": asked["self_approval"],
            "expires_in": asked["expires_in"],
        }
        if (yield Statement(INSERT, params)):
            return (yield from policies.consume(ask))
        found = yield Statement(ASKED, params)
        if not found:
            # The hop may not write any more; its park says why.
            return False
        status, asked_before, run_id = found[0]
        if run_id == ask.run_id and asked_before != digest:
            raise QuestionDiffers
        return status != ConsentStatus.PENDING

    async def answer(self, reads: Reads, owner_id: uuid.UUID) -> Verdict | None:
        """The durable verdict."""
        row = await one(reads, owner_id)
        return row.verdict() if row is not None else None

    async def describe(self, reads: Reads, owner_id: uuid.UUID) -> dict[str, Any] | None:
        """The Consent of the interface."""
        row = await one(reads, owner_id)
        return row.to_json() if row is not None else None

    async def tick(self, ledger: Ledger, reads: Reads, limit: int, after: Place | None = None) -> Iterable[Pending]:
        """Expire what is due by the database's clock, then find parked Runs whose Consent has an answer."""
        await ledger.script(ScriptFactory[int](_expire, limit))
        at, owner = after or (None, None)
        params = {"limit": limit, "at": at, "id": str(owner) if owner else None}
        rows = await reads.fetch_all(ANSWERED, params)
        return [Pending(run_id, owner_id, (decided, owner_id)) for run_id, owner_id, decided in rows]

    async def is_latest(self, reads: Reads, run_id: uuid.UUID, owner_id: uuid.UUID) -> bool:
        """Whether it is the Run's newest Consent and not cancelled."""
        found = await reads.fetch_one(LATEST, {"run": str(run_id)})
        return found is not None and found[0] == owner_id and found[1] != ConsentStatus.CANCELLED

    async def strays(self, reads: Reads, limit: int) -> list[uuid.UUID]:
        """Parked Runs without their Consent."""
        return [found[0] for found in await reads.fetch_all(STRAYS, {"limit": limit})]

    async def halt(self, run_id: uuid.UUID, principal: str) -> None:
        """A Consent acts by nobody but its Run: withdrawn is contained."""
        del run_id, principal

    def contain(self, run_id: uuid.UUID, principal: str) -> Script[int]:
        """Cancel every pending Consent of a Run; returns how many (CAN-3)."""
        rows = yield Statement(CANCEL_PENDING, {"run": str(run_id), "principal": principal})
        return len(rows)


def _expire(limit: int) -> Script[int]:
    rows = yield Statement(EXPIRE_DUE, {"limit": limit})
    return len(rows)
