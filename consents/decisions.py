"""decide: the one home of a person's verdict, for admin, REST and CLI alike.

One transaction: lock the Consent, judge permission and expiry by the database's clock, write the vote, and with the
deciding vote the receipt. The first verdict stands. Resuming the Run is another transaction (ruling 5).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from consents.models import ConsentStatus
from runs import payloads
from runs.errors import Conflict, Forbidden, NotFound, TooLarge
from runs.ledger.script import Script, Statement

COMMENT_LIMIT = 10_000
DECIDE = "consents.decide_consent"


class AlreadySettled(Conflict):
    """The Consent was settled before."""

    code, title = "already_settled", "Already settled"


class QuestionChanged(Conflict):
    """What was shown is not what is asked."""

    code, title = "question_changed", "The question is another"


class AlreadyVoted(Conflict):
    """This person has voted the other way already."""

    code, title = "already_voted", "Already voted"


@dataclass(frozen=True, slots=True)
class Voter:
    """A person who decides. `permissions` are those that count here; a superuser has all."""

    user_id: uuid.UUID
    name: str
    tenants: frozenset[str]
    permissions: frozenset[str]
    groups: frozenset[str]
    superuser: bool = False

    def may(self, permission: str) -> bool:
        return self.superuser or permission in self.permissions


@dataclass(frozen=True, slots=True)
class Vote:
    """One decision to record. `digest` is of what the voter was shown; None where the surface showed nothing else."""

    consent_id: uuid.UUID
    grant: bool
    surface: str
    comment: str = ""
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """How the Consent stands after the vote. `changed` is False when it stood so before."""

    consent_id: uuid.UUID
    run_id: uuid.UUID
    status: ConsentStatus
    changed: bool
    grants: int
    quorum: int


LOCK = """
select c.run_id, c.tenant, c.status, c.digest, c.permission, c."group", c.quorum, c.self_approval, c.asked_by,
       c.expires_at is not null and c.expires_at <= now(), c.decided_by, c.decided_at
from consents_consent c where c.id = %(id)s::uuid
for no key update
"""

EXPIRE = """
update consents_consent
set status = 'expired', decided_by = 'clock', decided_at = now(), surface = 'relay', updated_at = now()
where id = %(id)s::uuid and status = 'pending' returning id
"""

VOTE = """
insert into consents_consentvote (consent_id, user_id, name, granted, comment, surface, digest, at)
values (%(id)s::uuid, %(user)s::uuid, %(name)s::text, %(granted)s::boolean, %(comment)s::text, %(surface)s::text,
        %(digest)s::text, now())
on conflict (consent_id, user_id) do nothing
returning id
"""

MINE = "select granted from consents_consentvote where consent_id = %(id)s::uuid and user_id = %(user)s::uuid"

GRANTS = "select count(*) from consents_consentvote where consent_id = %(id)s::uuid and granted"

TOUCH = "update consents_consent set updated_at = now() where id = %(id)s::uuid returning id"

SETTLE = """
update consents_consent
set status = %(status)s::text, decided_by = %(name)s::text, decided_at = now(), surface = %(surface)s::text,
    comment = %(comment)s::text, updated_at = now()
where id = %(id)s::uuid and status = 'pending'
returning id
"""

# The common case as one statement: pending, in time, unchanged, never voted on by this person, and this vote decides.
PLAIN = """
with locked as (
    select c.id, c.digest
    from consents_consent c
    where c.id = %(id)s::uuid and c.tenant = any(%(tenants)s::text[]) and c.status = 'pending'
      and (c.expires_at is null or c.expires_at > now())
      and c.digest = %(digest)s::text
      and (c.quorum = 1 or not %(granted)s::boolean)
    for no key update skip locked
),
voted as (
    insert into consents_consentvote (consent_id, user_id, name, granted, comment, surface, digest, at)
    select l.id, %(user)s::uuid, %(name)s::text, %(granted)s::boolean, %(comment)s::text, %(surface)s::text,
           l.digest, now()
    from locked l
    on conflict (consent_id, user_id) do nothing
    returning consent_id
)
update consents_consent c
set status = %(status)s::text, decided_by = %(name)s::text, decided_at = now(), surface = %(surface)s::text,
    comment = %(comment)s::text, updated_at = now()
from voted v
where c.id = v.consent_id and c.status = 'pending'
returning c.run_id
"""


def plain(voter: Voter, vote: Vote) -> Statement:
    """The common case of `decide`: a row with the Run if it settled the Consent, none for everything else.

    For many votes at once. Who gets no row asks `decide`, which tells why. The caller has asked `authorise` with what
    this Consent asks for, which never changes, and has checked the comment.
    """
    params = {
        "id": str(vote.consent_id),
        "user": str(voter.user_id),
        "tenants": list(voter.tenants),
        "name": voter.name,
        "granted": vote.grant,
        "comment": vote.comment,
        "surface": vote.surface,
        "digest": vote.digest,
        "status": (ConsentStatus.GRANTED if vote.grant else ConsentStatus.DENIED).value,
    }
    return Statement(PLAIN, params)


def decide(voter: Voter, vote: Vote) -> Script[Decided | Conflict]:
    """Record a vote, and the verdict if it decides.

    Returns:
        How the Consent stands, or the conflict to raise after the commit (an expiry found here is written first).

    Raises:
        NotFound: there is no such Consent in the voter's tenants.
        Forbidden: the voter may not decide this one, and why.
        TooLarge: the comment is too long. Invalid: it cannot be stored.
    """
    check_comment(vote.comment)
    key = {"id": str(vote.consent_id), "user": str(voter.user_id)}
    found = yield Statement(LOCK, key)
    if not found or found[0][1] not in voter.tenants:
        raise NotFound("There is no such Consent.")
    run_id, _, status, digest, permission, group, quorum, self_approval, asked_by, due, by, at = found[0]
    authorise(voter, permission, group, self_approval=self_approval, asked_by=asked_by)
    wanted = ConsentStatus.GRANTED if vote.grant else ConsentStatus.DENIED
    if status != ConsentStatus.PENDING:
        if status == wanted:
            grants = (yield Statement(GRANTS, key))[0][0]
            return Decided(vote.consent_id, run_id, wanted, changed=False, grants=grants, quorum=quorum)
        return AlreadySettled(f"It was {status} by {by} at {at:%Y-%m-%d %H:%M:%S} UTC; that stands.", status=status)
    if due:
        yield Statement(EXPIRE, key)
        return AlreadySettled("It has expired; the answer is no.", status="expired")
    if vote.digest is not None and vote.digest != digest:
        return QuestionChanged()
    params = {
        **key,
        "name": voter.name,
        "granted": vote.grant,
        "comment": vote.comment,
        "surface": vote.surface,
        "digest": digest,
        "status": wanted.value,
    }
    voted = bool((yield Statement(VOTE, params)))
    if not voted:
        mine = yield Statement(MINE, key)
        if mine and mine[0][0] != vote.grant:
            return AlreadyVoted()
    # A vote that decides alone needs no count.
    alone = vote.grant and quorum == 1
    grants = 1 if alone else (yield Statement(GRANTS, key))[0][0]
    if not vote.grant or grants >= quorum:
        yield Statement(SETTLE, params)
        return Decided(vote.consent_id, run_id, wanted, changed=True, grants=grants, quorum=quorum)
    yield Statement(TOUCH, key)
    return Decided(vote.consent_id, run_id, ConsentStatus.PENDING, changed=voted, grants=grants, quorum=quorum)


def check_comment(comment: str) -> None:
    """A comment that can be kept.

    Raises:
        TooLarge: it is too long. Invalid: it cannot be stored.
    """
    if len(comment) > COMMENT_LIMIT:
        error = {"pointer": "/comment", "detail": f"has at most {COMMENT_LIMIT:,} characters", "code": "too_large"}
        raise TooLarge(f"A comment has at most {COMMENT_LIMIT:,} characters.", errors=[error])
    payloads.check(comment, "comment")


def authorise(voter: Voter, permission: str, group: str, *, self_approval: bool, asked_by: Any) -> None:
    """Whether this person may decide a Consent that asks for this much; its status is not looked at.

    Raises:
        Forbidden: they may not, and what is missing.
    """
    if not voter.may(DECIDE):
        raise Forbidden(f"{voter.name} may not decide Consents ({DECIDE}).")
    if permission and not voter.may(permission):
        raise Forbidden(f"This Consent needs the permission {permission}, which {voter.name} does not have.")
    if group and not voter.superuser and group not in voter.groups:
        raise Forbidden(f"This Consent needs a member of the group {group}, which {voter.name} is not.")
    if not self_approval and asked_by is not None and asked_by == voter.user_id:
        raise Forbidden("This Consent must be decided by somebody other than the person who asked for it.")


def said(vote: Vote, decided: Decided) -> str:
    """The decision as one line of JSON, for Django's admin log."""
    told = {
        "verdict": "grant" if vote.grant else "deny",
        "status": decided.status.value,
        "grants": decided.grants,
        "quorum": decided.quorum,
        "digest": vote.digest,
        "comment": vote.comment,
        "surface": vote.surface,
    }
    return json.dumps(told, ensure_ascii=False)


NOTE = """
insert into django_admin_log (
    action_time, user_id, content_type_id, object_id, object_repr, action_flag, change_message)
select now(), %(user)s::uuid, t.id, c.id::text, c.title, 2, %(said)s::text
from consents_consent c
join django_content_type t on t.app_label = 'consents' and t.model = 'consent'
where c.id = %(consent)s::uuid
returning id
"""


def note(voter: Voter, vote: Vote, decided: Decided) -> Script[bool]:
    """The entry in Django's admin log for a decision that was not made on one of its pages.

    A transaction of its own, after the verdict's: an entry that fails never undoes a verdict (ruling 5).
    """
    params = {"user": str(voter.user_id), "consent": str(vote.consent_id), "said": said(vote, decided)}
    return bool((yield Statement(NOTE, params)))
