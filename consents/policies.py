"""Standing policies: matched when a question is opened, consumed in one guarded statement, synced from files at start.

Nothing here decides for a person: a policy's yes is written as the policy's, and is validated again when it is read.
"""

from __future__ import annotations

import json
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from consents.models import Risk
from runs import payloads
from runs.errors import Invalid, Refused, first_line
from runs.ledger.script import Script, Statement
from runs.reads import rfc3339
from runs.waits import Ask


class BadPolicy(Refused):
    """A standing policy is not written correctly; none of the files' policies took effect."""

    code, title = "bad_policy", "Bad standing policy"


type Name = Annotated[str, Field(min_length=1, max_length=100)]
type Glob = Annotated[str, Field(min_length=1, max_length=100)]


class Policy(BaseModel):
    """One rule of a file: which Consents it answers with yes, in whose name, how often and until when."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    slug: Name
    granted_by: Annotated[str, Field(min_length=1, max_length=150)]
    tenant: Name = "default"
    title: Annotated[str, Field(max_length=200)] = ""
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    sigil: Glob = "*"
    pattern: Glob = "*"
    node: Glob = "*"
    max_risk: Literal["low", "medium", "high", "critical"] = "low"
    constraints: dict[str, Any] = Field(default_factory=dict[str, Any])
    expires_at: AwareDatetime | None = None
    max_uses: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None

    @field_validator("constraints")
    @classmethod
    def _comparable(cls, value: dict[str, Any]) -> dict[str, Any]:
        payloads.check(value, "constraints", 64 * 1024)
        for name, wanted in value.items():
            if isinstance(wanted, dict):
                bounds = cast("dict[str, Any]", wanted)
                if not bounds or not set(bounds) <= {"min", "max", "in"}:
                    raise ValueError(f"{name}: a table holds min, max or in, and nothing else")
                if not all(_is_number(bounds[key]) for key in ("min", "max") if key in bounds):
                    raise ValueError(f"{name}: min and max are numbers")
                if "in" in bounds and not isinstance(bounds["in"], list):
                    raise ValueError(f"{name}: in is a list")
        return value

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
                "constraints": self.constraints,
                "expires_at": rfc3339(self.expires_at),
                "max_uses": self.max_uses,
                "granted_by": self.granted_by,
            }
        )


CANDIDATES = """
select p.id, p.sigil, p.pattern, p.node, p.max_risk, p.constraints::text, p.digest
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
    policy_id = used.id, policy_digest = used.digest, updated_at = now()
from used
where c.id = %(consent)s::uuid and c.status = 'pending'
returning c.id
"""


def consume(ask: Ask) -> Script[bool]:
    """Let the first matching policy answer a question that was opened in this transaction.

    A Consent that needs several people, a permission or a group is never answered by a policy.

    Returns:
        Whether one did.
    """
    asked = ask.request
    if asked["quorum"] > 1 or asked["permission"] or asked["group"]:
        return False
    for found in (yield Statement(CANDIDATES, {"tenant": ask.tenant})):
        policy, sigil, pattern, node, max_risk, constraints, digest = found
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


SWITCH = """
update consents_standingpolicy set enabled = %(on)s::bool, updated_at = now()
where id = %(policy)s::uuid and enabled is distinct from %(on)s::bool
returning slug
"""


def switch(policy_id: uuid.UUID, *, on: bool) -> Script[bool]:
    """An operator's switch: whether a policy may answer. Files do not touch it, and what it answered before stands.

    A Run that has not acted on a yes of a policy that was switched off meanwhile reads it as no (1.5).

    Returns:
        Whether that changed anything.
    """
    return bool((yield Statement(SWITCH, {"policy": str(policy_id), "on": on})))


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
            if "in" in wanted and not any(_same(value, one) for one in wanted["in"]):
                return False
        elif not _same(value, wanted):
            return False
    return True


def _same(value: Any, wanted: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return payloads.canonical(value) == payloads.canonical(wanted) or (
        _is_number(value) and _is_number(wanted) and value == wanted
    )


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
            "constraints": payloads.canonical(policy.constraints),
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
            raise BadPolicy(f"{path}: {first_line(error)}.") from error
        others = sorted(set(content) - {"policy"})
        tables = content.get("policy", [])
        if others or not isinstance(tables, list):
            raise BadPolicy(f"{path}: only [[policy]] tables stand here, not {', '.join(others) or 'one [policy]'}.")
        found += [_policy(f"{path}, policy {number}", table) for number, table in enumerate(cast("Any", tables), 1)]
    return found


def _policy(where: str, table: Any) -> Policy:
    try:
        return Policy.model_validate(table)
    except ValidationError as error:
        told = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in told["loc"]) or "it"
        raise BadPolicy(f"{where}: {name}: {told['msg']}.") from error
    except Invalid as error:
        raise BadPolicy(f"{where}: {error.detail}") from error
