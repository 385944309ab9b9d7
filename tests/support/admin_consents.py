"""Rows for the admin's pages of Consents, as raw as they stand in the tables, and people who look and decide."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.test import Client

from lychd.sigils.models import Membership, User
from tests.support.admin_runs import a_run

LIST = "/admin/consents/consent/"

_ONE = """
insert into consents_consent (
    id, run_id, tenant, node, visit, pattern_key, sigil_name, asked_by, title, body, facts, risk, effect, digest,
    permission, "group", quorum, self_approval, status, requested_at, expires_at, decided_by, decided_at, surface,
    comment, policy_digest, updated_at)
values (%(id)s, %(run)s, %(tenant)s, 'ask', %(visit)s, %(pattern)s, 'bot', %(asked_by)s, %(title)s, %(body)s,
        %(facts)s, %(risk)s, %(effect)s, %(digest)s, %(permission)s, %(group)s, %(quorum)s, %(self_approval)s,
        %(status)s, now() - interval '3 minutes', now() + make_interval(secs => %(expires_in)s), %(by)s,
        case when %(by)s::text is not null then now() end, %(surface)s, %(comment)s, '', now())
"""


def a_consent(*, facts: Any = None, effect: Any = None, facts_text: str | None = None, **values: Any) -> uuid.UUID:
    """One Consent; pending unless `status` and `by` say otherwise; of a Run that waits for it unless `run` is given."""
    consent_id = values.pop("id", None) or uuid.uuid4()
    tenant = values.get("tenant", "default")
    waits = values.get("status", "pending") == "pending"
    run = values.pop("run", None) or a_run(
        status="awaiting_consent" if waits else "done", owner=str(consent_id) if waits else None, tenant=tenant
    )
    row = {
        "id": str(consent_id),
        "run": str(run),
        "tenant": tenant,
        "visit": 0,
        "pattern": "inventory",
        "asked_by": None,
        "title": "Move 12 files",
        "body": "",
        "risk": "low",
        "digest": "d" * 64,
        "permission": "",
        "group": "",
        "quorum": 1,
        "self_approval": True,
        "status": "pending",
        "expires_in": None,
        "by": None,
        "comment": "",
        **values,
        "facts": facts_text or json.dumps({} if facts is None else facts),
        "effect": None if effect is None else json.dumps(effect),
    }
    row["surface"] = None if row["by"] is None else values.get("surface", "rest")
    with connection.cursor() as cursor:
        cursor.execute(_ONE, row)
    return consent_id


_MANY = """
with runs as (
    insert into runs_run (
        id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source, surface, sigil_name, scopes,
        intent, request_digest, input, status, priority, queue_name, enqueue_seq, finished_at, created_at, updated_at)
    select gen_random_uuid(), %(tenant)s, 'vessel', %(pattern)s, '1', repeat('0', 64), '{}', 'api', 'rest', 'bot',
           '[]', '{}', repeat('0', 64), '{}', 'done', 50, 'runs', 0, now(), now() - make_interval(secs => n), now()
      from generate_series(1, %(count)s) n
    returning id, created_at
)
insert into consents_consent (
    id, run_id, tenant, node, visit, pattern_key, sigil_name, title, body, facts, risk, digest, permission, "group",
    quorum, self_approval, status, requested_at, decided_by, decided_at, surface, comment, policy_digest, updated_at)
select gen_random_uuid(), id, %(tenant)s, 'ask', 0, %(pattern)s, 'bot', 'Move files', '', '{"files": 1}', %(risk)s,
       repeat('d', 64), '', '', 1, true, %(status)s, created_at - make_interval(secs => %(offset)s),
       case when %(status)s <> 'pending' then 'anna' end, case when %(status)s <> 'pending' then now() end,
       case when %(status)s <> 'pending' then 'rest' end, '', '', now()
  from runs
"""


def many_consents(count: int, *, offset: int = 0, **values: Any) -> None:
    """Insert Consents, the first the newest."""
    facts = {"tenant": "default", "pattern": "inventory", "status": "granted", "risk": "low", **values}
    with connection.cursor() as cursor:
        cursor.execute(_MANY, {**facts, "count": count, "offset": offset})


def a_user(name: str, *permissions: str, tenants: tuple[str, ...] = ("default",), groups: tuple[str, ...] = ()) -> User:
    """A member of staff with these permissions (`app.codename`) and groups."""
    user = User.objects.create_user(name, is_staff=True)
    for tenant in tenants:
        Membership.objects.create(user=user, tenant=tenant)
    for permission in permissions:
        app, _, codename = permission.partition(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    user.groups.set(Group.objects.get_or_create(name=group)[0] for group in groups)
    return user


def logged_in(user: User, **how: Any) -> Client:
    """A browser of this person's."""
    client = Client(**how)
    client.force_login(user)
    return client


APPROVER = ("consents.view_consent", "consents.decide_consent", "runs.view_run", "runs.view_step")


def approver(name: str = "anna", **more: Any) -> Client:
    """A browser of somebody who may decide."""
    return logged_in(a_user(name, *APPROVER, **more))


def page_of(consent_id: Any) -> str:
    return f"{LIST}{consent_id}/change/"


def door_of(consent_id: Any) -> str:
    return f"{LIST}{consent_id}/decide/"


def decide(client: Client, consent_id: Any, verdict: str = "grant", *, digest: str = "d" * 64, **form: Any) -> Any:
    """Send the form of the page."""
    return client.post(door_of(consent_id), {"verdict": verdict, "digest": digest, "comment": "", **form})
