"""Every SELECT on Consents that an edge needs: one, a page, what changed. Rows out, never a write."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from consents.models import ConsentStatus
from runs.patterns import Verdict
from runs.reads import Reads, rfc3339

# What is over by the database's clock is told as expired even before the relay has written it.
_DUE = "c.status = 'pending' and c.expires_at is not null and c.expires_at <= now()"
_COLUMNS = f"""
    c.id, c.run_id, c.node, c.title, c.body, c.facts::text, c.risk,
    case when {_DUE} then 'expired' else c.status end, c.requested_at, c.expires_at,
    case when {_DUE} then 'clock' else c.decided_by end, case when {_DUE} then c.expires_at else c.decided_at end,
    c.comment, case when {_DUE} then 'relay' else c.surface end, p.slug, c.digest, c.quorum, c.permission, c."group",
    c.self_approval, c.pattern_key, c.sigil_name, c.effect::text, c.tenant, c.asked_by,
    (select count(*) from consents_consentvote v where v.consent_id = c.id and v.granted),
    (c.policy_id is null or (p.enabled and p.source_present and p.digest = c.policy_digest
                             and (p.expires_at is null or p.expires_at > now()))),
    c.updated_at
"""

SELECT = f"select {_COLUMNS} from consents_consent c left join consents_standingpolicy p on p.id = c.policy_id"
ONE = f"{SELECT} where c.id = %(id)s::uuid"


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
    updated_at: datetime

    @property
    def size(self) -> int:
        """About how many characters it takes."""
        return len(self.body) + len(self.facts_json) + len(self.effect_json or "") + len(self.comment)

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
            "updated_at": rfc3339(self.updated_at),
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


@dataclass(frozen=True, slots=True)
class ConsentFilter:
    """Which Consents a list shows; None shows all."""

    status: str | None = None
    run: uuid.UUID | None = None


async def one(reads: Reads, consent_id: uuid.UUID) -> ConsentRow | None:
    """One Consent of any tenant; edges compare the tenant."""
    found = await reads.fetch_one(ONE, {"id": str(consent_id)})
    return ConsentRow(*found) if found else None


async def page(
    reads: Reads, tenant: str, where: ConsentFilter, *, before: tuple[datetime, uuid.UUID] | None, limit: int
) -> list[ConsentRow]:
    """Consents of a tenant, newest first, `before` a (requested_at, id) key."""
    clauses = ["c.tenant = %(tenant)s::text"]
    params: dict[str, Any] = {"tenant": tenant, "limit": limit}
    if where.status is not None:
        clauses.append("c.status = %(status)s::text")
        params["status"] = where.status
        if where.status == ConsentStatus.PENDING:
            clauses.append(f"not ({_DUE})")
    if where.run is not None:
        clauses.append("c.run_id = %(run)s::uuid")
        params["run"] = str(where.run)
    if before is not None:
        clauses.append("(c.requested_at, c.id) < (%(at)s::timestamptz, %(id)s::uuid)")
        params |= {"at": before[0], "id": str(before[1])}
    found = await reads.fetch_all(
        f"{SELECT} where {' and '.join(clauses)} order by c.requested_at desc, c.id desc limit %(limit)s::int", params
    )
    return [ConsentRow(*row) for row in found]


async def changes(reads: Reads, tenant: str, *, after: tuple[datetime, uuid.UUID], limit: int) -> list[ConsentRow]:
    """Consents of a tenant in the order of their last change, after an (updated_at, id) key."""
    found = await reads.fetch_all(
        f"{SELECT} where c.tenant = %(tenant)s::text and (c.updated_at, c.id) > (%(at)s::timestamptz, %(id)s::uuid) "
        "order by c.updated_at, c.id limit %(limit)s::int",
        {"tenant": tenant, "at": after[0], "id": str(after[1]), "limit": limit},
    )
    return [ConsentRow(*row) for row in found]


async def latest(reads: Reads, tenant: str, limit: int) -> list[ConsentRow]:
    """The Consents of a tenant that changed last, the latest first."""
    found = await reads.fetch_all(
        f"{SELECT} where c.tenant = %(tenant)s::text order by c.updated_at desc, c.id desc limit %(limit)s::int",
        {"tenant": tenant, "limit": limit},
    )
    return [ConsentRow(*row) for row in found]
