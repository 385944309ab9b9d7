"""The wait kind `consent`: opens the question, proves it on park and resume, reads the verdict, expires what is due."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from consents import policies
from consents.models import ConsentStatus, Risk
from runs import payloads
from runs.errors import Invalid
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.script import Script, Statement
from runs.patterns import Verdict
from runs.patterns.verdict import shown_digest
from runs.reads import Reads, rfc3339
from runs.states import RunStatus
from runs.waits import Ask, Pending

BODY_LIMIT = 64 * 1024

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
    permission, "group", quorum, self_approval, status, requested_at, expires_at, comment, policy_digest)
select %(id)s::uuid, r.id, r.tenant, %(node)s::text, %(visit)s::int, %(pattern)s::text, %(sigil)s::text,
    %(asked_by)s::uuid,
    %(title)s::text, %(body)s::text, %(facts)s::jsonb, %(risk)s::text, %(effect)s::jsonb, %(digest)s::text,
    %(permission)s::text, %(group)s::text, %(quorum)s::smallint, %(self_approval)s::boolean, 'pending', now(),
    now() + make_interval(secs => %(expires_in)s::float8), '', ''
from runs_run r where r.id = %(run)s::uuid
on conflict (id) do nothing
returning id
"""

STATUS = "select status from consents_consent where id = %(id)s::uuid"

_COLUMNS = """
    c.id, c.run_id, c.node, c.title, c.body, c.facts::text, c.risk, c.status, c.requested_at, c.expires_at,
    c.decided_by, c.decided_at, c.comment, c.surface, p.slug, c.digest, c.quorum, c.permission, c."group",
    c.self_approval, c.pattern_key, c.sigil_name, c.effect::text, c.tenant, c.asked_by,
    (select count(*) from consents_consentvote v where v.consent_id = c.id and v.granted),
    (c.policy_id is null or (p.enabled and p.source_present and p.digest = c.policy_digest
                             and (p.expires_at is null or p.expires_at > now())))
"""

SELECT = f"select {_COLUMNS} from consents_consent c left join consents_standingpolicy p on p.id = c.policy_id"  # noqa: S608 - a constant list of columns
ONE = f"{SELECT} where c.id = %(id)s::uuid"

EXPIRE_DUE = """
update consents_consent c
set status = 'expired', decided_by = 'clock', decided_at = now(), surface = 'relay'
where c.id in (
    select d.id from consents_consent d
    where d.status = 'pending' and d.expires_at is not null and d.expires_at <= now()
    order by d.expires_at
    limit %(limit)s::int
    for update skip locked)
returning c.id
"""

ANSWERED = """
select r.id, c.id
from runs_run r
join consents_consent c on c.id = r.wait_owner
where r.status = 'awaiting_consent' and r.road = 'vessel' and r.quarantined_at is null
  and c.status in ('granted', 'denied', 'expired')
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
set status = 'cancelled', decided_by = %(principal)s::text, decided_at = now(), surface = 'engine'
where run_id = %(run)s::uuid and status = 'pending'
returning id
"""


@dataclass(frozen=True, slots=True)
class ConsentRow:
    """One Consent as readers may see it."""

    id: uuid.UUID
    run_id: uuid.UUID
    node: str
    title: str
    body: str
    facts_json: str
    risk: str
    status: str
    requested_at: datetime
    expires_at: datetime | None
    decided_by: str | None
    decided_at: datetime | None
    comment: str
    surface: str | None
    policy: str | None
    digest: str
    quorum: int
    permission: str
    group: str
    self_approval: bool
    pattern_key: str
    sigil_name: str
    effect_json: str | None
    tenant: str
    asked_by: uuid.UUID | None
    grants: int
    policy_holds: bool

    def to_json(self) -> dict[str, Any]:
        """The Consent of the interface."""
        return {
            "id": str(self.id),
            "run": str(self.run_id),
            "node": self.node,
            "pattern": self.pattern_key,
            "title": self.title,
            "body": self.body,
            "facts": json.loads(self.facts_json),
            "risk": self.risk,
            "effect": json.loads(self.effect_json) if self.effect_json is not None else None,
            "status": self.status,
            "requested_at": rfc3339(self.requested_at),
            "expires_at": rfc3339(self.expires_at),
            "decided_by": self.decided_by,
            "decided_at": rfc3339(self.decided_at),
            "comment": self.comment,
            "surface": self.surface,
            "policy": self.policy,
            "digest": self.digest,
            "requires": {"permission": self.permission or None, "group": self.group or None, "quorum": self.quorum},
            "grants": self.grants,
            "self_approval": self.self_approval,
            "sigil": self.sigil_name,
        }

    def verdict(self) -> Verdict | None:
        """Yes, no, or nothing yet; a policy's yes that does not hold any more reads as no (1.5)."""
        if self.status == ConsentStatus.PENDING or self.decided_by is None or self.decided_at is None:
            return None
        return Verdict(
            owner=self.id,
            granted=self.status == ConsentStatus.GRANTED and self.policy_holds,
            status=self.status,
            by=self.decided_by,
            at=self.decided_at,
            comment=self.comment,
            surface=self.surface or "",
            digest=self.digest,
            shown={
                "title": self.title,
                "body": self.body,
                "facts": json.loads(self.facts_json),
                "risk": self.risk,
            },
        )


async def one(reads: Reads, consent_id: uuid.UUID) -> ConsentRow | None:
    """One Consent of any tenant; edges compare the tenant."""
    found = await reads.fetch_one(ONE, {"id": str(consent_id)})
    return ConsentRow(*found) if found else None


class ConsentWait:
    """See `runs.waits.WaitKind`."""

    name = "consent"
    status = RunStatus.AWAITING_CONSENT
    park_proof = PARK_PROOF
    resume_proof = RESUME_PROOF

    def prove(self, request: Mapping[str, Any]) -> None:
        """Refuse a question that cannot be shown or stored."""
        title = request["title"]
        if not isinstance(title, str) or not title.strip() or len(title) > 200 or "\n" in title:
            raise Invalid("A Consent's title is one line of 1 to 200 characters.")
        if len(request["body"].encode()) > BODY_LIMIT:
            raise Invalid(f"A Consent's body has at most {BODY_LIMIT:,} bytes.")
        if request["risk"] not in set(Risk):
            raise Invalid(f"A Consent's risk is one of {', '.join(Risk)}, not {request['risk']!r}.")
        if not 1 <= request["quorum"] <= 50:
            raise Invalid(f"A Consent's quorum is 1 to 50 people, not {request['quorum']}.")
        if request["expires_in"] is not None and not 0 < request["expires_in"] <= 366 * 86400:
            raise Invalid("A Consent expires within a year and not in the past.")
        payloads.check(dict(request), "question", 1024 * 1024)

    def open(self, ask: Ask) -> Script[bool]:
        """Insert the question, and let a standing policy answer it in the same transaction."""
        asked = ask.request
        digest = shown_digest(
            title=asked["title"], body=asked["body"], facts=asked["facts"], risk=asked["risk"], effect=asked["effect"]
        )
        params = {
            "id": str(ask.owner_id),
            "run": str(ask.run_id),
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
            return (yield from policies.consume(ask, digest))
        found = yield Statement(STATUS, params)
        return bool(found) and found[0][0] != ConsentStatus.PENDING

    async def answer(self, reads: Reads, owner_id: uuid.UUID) -> Verdict | None:
        """The durable verdict."""
        row = await one(reads, owner_id)
        return row.verdict() if row is not None else None

    async def describe(self, reads: Reads, owner_id: uuid.UUID) -> dict[str, Any] | None:
        """The Consent of the interface."""
        row = await one(reads, owner_id)
        return row.to_json() if row is not None else None

    async def tick(self, ledger: Ledger, reads: Reads, limit: int) -> Iterable[Pending]:
        """Expire what is due by the database's clock, then find parked Runs whose Consent has an answer."""
        await ledger.script(ScriptFactory(_expire, limit))
        rows = await reads.fetch_all(ANSWERED, {"limit": limit})
        return [Pending(found[0], found[1]) for found in rows]

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
