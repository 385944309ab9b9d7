"""What needs a person: questions, uncertain outcomes, stuck cancellations, quarantine, a Vessel that is not well.

Bounded reads along indexes, whatever the number of Runs and of Consents; decides nothing.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection
from django.http import HttpRequest

from consents.decisions import DECIDE, Voter, authorise
from consents.people import voter_of
from runs.admin import tenancy
from runs.errors import Forbidden

# How many are named; more are counted up to that bound.
MOST_NAMED = 8
# Consents that are looked at to find those that this person may decide.
MOST_ASKED = 200
# Seconds after which a cancellation that nobody answered counts as stuck.
PATIENCE = 60
# The newest failures among which uncertain ones are looked for, and how old they may be. Hours.
MOST_FAILURES, HOURS = 500, 24

# What waits longest of each tenant, and what will be over by the clock soonest.
ASKED = """
with theirs as (select unnest(%(tenants)s::text[]) as tenant),
found as (
    (select c.id
     from theirs t
     cross join lateral (
        select o.id, o.requested_at from consents_consent o
        where o.tenant = t.tenant and o.status = 'pending'
        order by o.requested_at, o.id
        limit %(most)s::int
     ) c
     order by c.requested_at
     limit %(most)s::int)
    union
    (select o.id from consents_consent o
     where o.status = 'pending' and o.expires_at is not null and o.expires_at > now()
       and o.tenant = any(%(tenants)s::text[])
     order by o.expires_at
     limit %(soonest)s::int)
)
select c.id, c.run_id, c.tenant, c.title, c.risk, c.pattern_key, c.sigil_name, c.requested_at, c.expires_at,
       c.permission, c."group", c.self_approval, c.asked_by,
       exists (select 1 from consents_consentvote v where v.consent_id = c.id and v.user_id = %(user)s::uuid)
from consents_consent c join found f on f.id = c.id
where c.status = 'pending' and (c.expires_at is null or c.expires_at > now())
order by c.expires_at nulls last, c.requested_at, c.id
"""

# Each starts from the index of unfinished Runs, or from the one of the quarantine; written out as those are.
_RUN = "r.id, r.pattern_key, r.tenant, r.status, r.updated_at"
_THEIRS = "(%(tenants)s::text[] is null or r.tenant = any(%(tenants)s::text[]))"

STUCK = f"""
select {_RUN}, coalesce(r.containment_error, 'nothing has answered yet')
from runs_run r
where r.status = 'cancelling' and {_THEIRS}
  and (r.containment_error is not null or r.updated_at < now() - make_interval(secs => %(patience)s::int))
order by r.updated_at, r.id
limit %(limit)s::int
"""  # noqa: S608 - only constants are put together

UNCERTAIN = f"""
(select {_RUN}, r.containment_error
 from runs_run r
 where r.status in ('running', 'awaiting_hardware') and r.containment_error is not null and {_THEIRS}
 order by r.updated_at, r.id
 limit %(limit)s::int)
union all
(select f.id, f.pattern_key, f.tenant, f.status, f.updated_at, f.error_message
 from unnest(%(each)s::text[]) t(tenant)
 cross join lateral (
    select r.* from runs_run r
    where r.tenant = t.tenant and r.status = 'failed' and r.created_at > now() - make_interval(hours => %(hours)s::int)
    order by r.created_at desc, r.id desc
    limit %(failures)s::int
 ) f
 where f.error_code = 'ghoul_lost'
 order by f.updated_at desc
 limit %(limit)s::int)
"""  # noqa: S608 - only constants are put together

QUARANTINED = f"""
select {_RUN}, r.quarantine_reason
from runs_run r
where r.quarantined_at is not null and {_THEIRS}
limit %(limit)s::int
"""  # noqa: S608 - only constants are put together


@dataclass(frozen=True, slots=True)
class Question:
    """A Consent that waits for this person."""

    id: uuid.UUID
    run_id: uuid.UUID
    tenant: str
    title: str
    risk: str
    pattern: str
    asker: str
    requested_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """A Run that will not end well by itself, and the reason as it is recorded."""

    id: uuid.UUID
    pattern: str
    tenant: str
    status: str
    at: datetime
    reason: str


@dataclass(slots=True)
class Needs:
    """Everything that needs this person; None where they may not look.

    Attributes:
        others: how many of the Consents that were looked at only somebody else may decide.
        many: whether more Consents wait than were looked at.
    """

    questions: list[Question] | None = None
    others: int = 0
    many: bool = False
    uncertain: list[Trouble] | None = None
    stuck: list[Trouble] | None = None
    quarantined: list[Trouble] | None = None
    vessel: list[str] = field(default_factory=list[str])

    @property
    def count(self) -> int:
        """How many things; the title of the page shows it."""
        named = (self.questions, self.uncertain, self.stuck, self.quarantined, self.vessel)
        return sum(len(one) for one in named if one)


def needs(request: HttpRequest) -> Needs:
    """What needs the person behind this request, in all tenants that they may see."""
    user: Any = request.user
    found = Needs()
    tenants, own = tenancy.choices(request), tenancy.visible(request)
    if user.has_perm(DECIDE):
        _ask(found, user, tenants)
    if user.has_perm("runs.view_run"):
        seen = None if own is None else sorted(own)
        found.uncertain = _troubles(UNCERTAIN, seen, each=tenants, hours=HOURS, failures=MOST_FAILURES)
        found.stuck = _troubles(STUCK, seen, patience=PATIENCE)
        found.quarantined = _troubles(QUARANTINED, seen)
    return found


def _ask(found: Needs, user: Any, tenants: list[str]) -> None:
    voter = voter_of(user, tenants)
    params = {"tenants": tenants, "most": MOST_ASKED, "soonest": MOST_NAMED * 4, "user": str(user.pk)}
    with connection.cursor() as cursor:
        cursor.execute(ASKED, params)
        rows = cursor.fetchall()
    found.questions = []
    found.many = len(rows) >= MOST_ASKED
    for *facts, permission, group, self_approval, asked_by, voted in rows:
        if not may(voter, permission, group, self_approval=self_approval, asked_by=asked_by):
            found.others += 1
        elif not voted:
            found.questions.append(Question(*facts))


def may(voter: Voter, permission: str, group: str, *, self_approval: bool, asked_by: Any) -> bool:
    """Whether this person may decide a Consent that asks for so much."""
    try:
        authorise(voter, permission, group, self_approval=self_approval, asked_by=asked_by)
    except Forbidden:
        return False
    return True


def _troubles(sql: str, tenants: list[str] | None, **params: Any) -> list[Trouble]:
    with connection.cursor() as cursor:
        cursor.execute(sql, {"tenants": tenants, "limit": MOST_NAMED + 1, **params})
        return [Trouble(*row) for row in cursor.fetchall()]
