"""Standing policies: matched when a question is opened, consumed in one guarded statement, synced from files at start.

Nothing here decides for a person: a policy's yes is written as the policy's, and is validated again when it is read.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from consents.models import Risk
from runs import payloads
from runs.errors import Refused
from runs.ledger.script import Script, Statement
from runs.waits import Ask


class BadPolicy(Refused):
    """A standing policy is not written correctly; none of the files' policies took effect."""

    code, title = "bad_policy", "Bad standing policy"


@dataclass(frozen=True, slots=True)
class Policy:
    """One rule of a file."""

    slug: str
    granted_by: str
    tenant: str = "default"
    title: str = ""
    priority: int = 50
    sigil: str = "*"
    pattern: str = "*"
    node: str = "*"
    max_risk: str = "low"
    constraints: Mapping[str, Any] | None = None
    expires_at: str | None = None
    max_uses: int | None = None

    @property
    def digest(self) -> str:
        """Over everything that the rule says."""
        return payloads.digest(
            {
                "slug": self.slug,
                "tenant": self.tenant,
                "sigil": self.sigil,
                "pattern": self.pattern,
                "node": self.node,
                "max_risk": self.max_risk,
                "constraints": dict(self.constraints or {}),
                "expires_at": self.expires_at,
                "max_uses": self.max_uses,
                "granted_by": self.granted_by,
            }
        )


CANDIDATES = """
select p.id, p.slug, p.sigil, p.pattern, p.node, p.max_risk, p.constraints::text, p.digest
from consents_standingpolicy p
where p.tenant = %(tenant)s::text and p.enabled and p.source_present
  and (p.expires_at is null or p.expires_at > now())
  and (p.max_uses is null or p.uses < p.max_uses)
order by p.priority desc, p.slug
limit 500
"""

CONSUME = """
with used as (
    update consents_standingpolicy p
    set uses = p.uses + 1, updated_at = now()
    where p.id = %(policy)s::uuid and p.enabled and p.source_present
      and (p.expires_at is null or p.expires_at > now())
      and (p.max_uses is null or p.uses < p.max_uses)
      and p.digest = %(digest)s::text
    returning p.id, p.slug, p.digest
)
update consents_consent c
set status = 'granted', decided_by = 'policy:' || used.slug, decided_at = now(), surface = 'policy',
    policy_id = used.id, policy_digest = used.digest
from used
where c.id = %(consent)s::uuid and c.status = 'pending'
returning c.id
"""


def consume(ask: Ask, _shown: str) -> Script[bool]:
    """Let the first matching policy answer a question that was opened in this transaction.

    A Consent that needs several people, a permission or a group is never answered by a policy.

    Returns:
        Whether one did.
    """
    asked = ask.request
    if asked["quorum"] > 1 or asked["permission"] or asked["group"]:
        return False
    for found in (yield Statement(CANDIDATES, {"tenant": ask.tenant})):
        policy, slug, sigil, pattern, node, max_risk, constraints, digest = found
        del slug
        if not (
            fnmatchcase(ask.sigil_name, sigil)
            and fnmatchcase(ask.pattern_key, pattern)
            and fnmatchcase(ask.node, node)
            and _order(asked["risk"]) <= _order(max_risk)
            and _fits(json.loads(constraints), asked["facts"])
        ):
            continue
        params = {"policy": str(policy), "digest": digest, "consent": str(ask.owner_id)}
        if (yield Statement(CONSUME, params)):
            return True
    return False


def _order(risk: str) -> int:
    return list(Risk).index(Risk(risk))


def _fits(constraints: Mapping[str, Any], facts: Any) -> bool:
    """Each constraint names a fact: equal to a value, or within `{"max": n}` / `{"min": n}` / `{"in": […]}`."""
    if not isinstance(facts, Mapping):
        return not constraints
    for name, wanted in constraints.items():
        if name not in facts:
            return False
        value: Any = facts[name]
        if isinstance(wanted, Mapping):
            if "max" in wanted and not (_is_number(value) and value <= wanted["max"]):
                return False
            if "min" in wanted and not (_is_number(value) and value >= wanted["min"]):
                return False
            if "in" in wanted and value not in wanted["in"]:
                return False
        elif value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
            return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


UPSERT = """
insert into consents_standingpolicy (
    id, tenant, slug, title, priority, sigil, pattern, node, max_risk, constraints, expires_at, max_uses, uses,
    enabled, source_present, granted_by, digest, created_at, updated_at)
values (gen_random_uuid(), %(tenant)s::text, %(slug)s::text, %(title)s::text, %(priority)s::smallint, %(sigil)s::text,
    %(pattern)s::text, %(node)s::text, %(max_risk)s::text, %(constraints)s::jsonb, %(expires_at)s::timestamptz,
    %(max_uses)s::int, 0, true, true, %(granted_by)s::text, %(digest)s::text, now(), now())
on conflict (slug) do update
set title = excluded.title, priority = excluded.priority, sigil = excluded.sigil, pattern = excluded.pattern,
    node = excluded.node, max_risk = excluded.max_risk, constraints = excluded.constraints,
    expires_at = excluded.expires_at, max_uses = excluded.max_uses, source_present = true,
    granted_by = excluded.granted_by, digest = excluded.digest, updated_at = now()
where consents_standingpolicy.tenant = excluded.tenant
returning id
"""

ABSENT = """
update consents_standingpolicy set source_present = false, updated_at = now()
where source_present and not (slug = any(%(slugs)s::text[]))
returning slug
"""


def sync(policies: Sequence[Policy]) -> Script[int]:
    """Make the table say what the files say, all or nothing; usage and the operators' switch are kept (1.6).

    Returns:
        How many rules are present.

    Raises:
        BadPolicy: a slug occurs twice, or belongs to another tenant.
    """
    slugs = [policy.slug for policy in policies]
    if len(set(slugs)) != len(slugs):
        twice = sorted({slug for slug in slugs if slugs.count(slug) > 1})
        raise BadPolicy(f"These standing policies are declared twice: {', '.join(twice)}.")
    for policy in policies:
        params = {
            "tenant": policy.tenant,
            "slug": policy.slug,
            "title": policy.title,
            "priority": policy.priority,
            "sigil": policy.sigil,
            "pattern": policy.pattern,
            "node": policy.node,
            "max_risk": policy.max_risk,
            "constraints": payloads.canonical(dict(policy.constraints or {})),
            "expires_at": policy.expires_at,
            "max_uses": policy.max_uses,
            "granted_by": policy.granted_by,
            "digest": policy.digest,
        }
        if not (yield Statement(UPSERT, params)):
            raise BadPolicy(f"The standing policy {policy.slug!r} belongs to another tenant.")
    yield Statement(ABSENT, {"slugs": slugs})
    return len(slugs)


def load(paths: Sequence[Path]) -> list[Policy]:
    """The rules of TOML files, each a list of `[[policy]]` tables.

    Raises:
        BadPolicy: a file cannot be read, or a rule is not valid; the sentence names file and rule.
    """
    found: list[Policy] = []
    for path in paths:
        try:
            content = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise BadPolicy(f"{path}: {error}.") from error
        for number, table in enumerate(content.get("policy", []), 1):
            found.append(_policy(f"{path}, policy {number}", table))
    return found


def _policy(where: str, table: Mapping[str, Any]) -> Policy:
    values = dict(table)
    if isinstance(values.get("expires_at"), datetime):
        values["expires_at"] = values["expires_at"].isoformat()
    try:
        policy = Policy(**values)
    except TypeError as error:
        raise BadPolicy(f"{where}: {error}.") from error
    if not policy.slug or not policy.granted_by:
        raise BadPolicy(f"{where}: slug and granted_by are needed.")
    if policy.max_risk not in set(Risk):
        raise BadPolicy(f"{where}: max_risk is one of {', '.join(Risk)}, not {policy.max_risk!r}.")
    if isinstance(policy.priority, bool) or not 0 <= policy.priority <= 100:
        raise BadPolicy(f"{where}: priority is 0 to 100.")
    if policy.max_uses is not None and (isinstance(policy.max_uses, bool) or policy.max_uses < 0):
        raise BadPolicy(f"{where}: max_uses is a number of uses.")
    return policy
