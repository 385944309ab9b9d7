"""Rows for the admin's pages, many at a time: written as SQL, since no edge makes a hundred thousand Runs in a test."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client

from lychd.sigils.models import Membership, User

# A thousand times the same, so that pages of equal times occur.
_MANY = """
insert into runs_run (
    id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source, surface, sigil_name, scopes,
    intent, idempotency_key, request_digest, input, status, priority, queue_name, enqueue_seq, error_code,
    error_message, finished_at, created_at, updated_at
)
select gen_random_uuid(), %(tenant)s, 'vessel', %(pattern)s, '1', repeat('0', 64), '{}', %(source)s, 'rest', 'bot',
       '[]', '{}', %(tenant)s || '-' || %(pattern)s || '-' || n, repeat('0', 64), '{"n": 1}', %(status)s, 50, 'runs', 0,
       case when %(status)s = 'failed' then 'internal' end, case when %(status)s = 'failed' then 'It broke.' end,
       case when %(status)s in ('done', 'failed', 'cancelled') then now() end,
       now() - make_interval(secs => (n / 7) * 7 + %(offset)s), now()
  from generate_series(1, %(count)s) n
"""


def many_runs(count: int, *, offset: int = 0, **values: Any) -> None:
    """Insert Runs, the first the newest; seven at a time share their time."""
    facts = {"tenant": "default", "pattern": "inventory", "source": "api", "status": "done", **values}
    with connection.cursor() as cursor:
        cursor.execute(_MANY, {**facts, "count": count, "offset": offset})


_ONE = """
insert into runs_run (
    id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source, surface, sigil_name, scopes,
    intent, idempotency_key, request_digest, input, output, status, priority, queue_name, enqueue_seq, error_code,
    error_message, error_node, finished_at, quarantined_at, quarantine_reason, session_id, created_at, updated_at,
    wait_kind, wait_owner, wait_since, started_at
)
values (%(id)s, %(tenant)s, 'vessel', 'inventory', '1', repeat('0', 64), %(manifest)s, 'cli', 'cli', 'operator', '[]',
        %(intent)s, %(key)s, repeat('0', 64), %(input)s, %(output)s, %(status)s, 50, 'runs', 1, %(error)s, %(error)s,
        %(error)s, case when %(status)s in ('done', 'failed', 'cancelled') then now() end,
        case when %(quarantine)s::text is not null then now() end, %(quarantine)s, %(session)s,
        now() - interval '3 minutes', now(),
        case when %(owner)s::uuid is not null then 'consent' end, %(owner)s::uuid,
        case when %(owner)s::uuid is not null then now() end, now() - interval '2 minutes')
"""


def a_run(*, input: Any = None, output: Any = None, **values: Any) -> uuid.UUID:  # noqa: A002 the column's name
    """One Run as raw as it stands in the table."""
    facts: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "tenant": "default",
        "status": "done",
        "manifest": "{}",
        "intent": json.dumps({"input": input}),
        "key": None,
        "error": None,
        "quarantine": None,
        "session": None,
        "owner": None,
        **values,
    }
    raw = values.get("input_text") or json.dumps(input)
    with connection.cursor() as cursor:
        cursor.execute(_ONE, {**facts, "input": raw, "output": None if output is None else json.dumps(output)})
    return uuid.UUID(facts["id"])


_AROUND = """
insert into runs_rundelivery (run_id, tenant, enqueue_seq, queue_name, priority, resume, state, publish_attempts,
                              settled_at, last_error, created_at, updated_at)
select %(run)s, %(tenant)s, n, 'runs', 50, false, 'settled', 1, now(), 'a <b>bad</b> word', now(), now()
  from generate_series(0, %(hops)s - 1) n;
insert into runs_step (id, run_id, tenant, epoch, seq, tokens_before, kind, node, data, meta, at)
select gen_random_uuid(), %(run)s, %(tenant)s, 'e1', n, 0, case when n = %(steps)s - 1 then 'done' else 'log' end,
       'count', %(data)s::jsonb, '{}', now()
  from generate_series(0, %(steps)s - 1) n;
insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at, updated_at)
values (%(run)s, %(tenant)s, 0, gen_random_uuid(), %(data)s::jsonb, now(), now());
insert into runs_checkpointarchive (run_id, tenant, enqueue_seq, snapshots, archived_at)
values (%(run)s, %(tenant)s, 0, %(data)s::jsonb, now());
insert into runs_journalentry (run_id, tenant, visit, name, occurrence, args_digest, result, enqueue_seq, created_at)
values (%(run)s, %(tenant)s, 0, 'charge', 0, repeat('0', 64), %(data)s::jsonb, 0, now());
"""


def surround(run_id: uuid.UUID, data: Any, *, tenant: str = "default", hops: int = 2, steps: int = 3) -> None:
    """Hops, Steps, checkpoint, archive and journal of a Run, all with the same payload."""
    with connection.cursor() as cursor:
        cursor.execute(
            _AROUND,
            {"run": str(run_id), "tenant": tenant, "data": json.dumps(data), "hops": hops, "steps": steps},
        )


_REST = """
insert into runs_session (id, tenant, channel, title, sigil_name, meta, created_at, updated_at)
values (%(session)s, %(tenant)s, 'rest', 'A talk', 'bot', %(data)s::jsonb, now(), now());
insert into runs_boot (id, host, pid, profile, version, url, started_at, report)
values (%(boot)s, 'here', 1, 'durable', '0', '', now(), '{"a": 1}');
insert into runs_vesselslot (id, boot_id, taken_at) values (1, %(boot)s, now());
insert into runs_runtombstone (id, tenant, request_digest, status, pruned_at)
values (%(tombstone)s, %(tenant)s, repeat('0', 64), 'done', now());
"""
_TURN = """
insert into runs_sessionturn (session_id, run_id, tenant, request, reply, status, created_at, updated_at)
values (%(session)s, %(run)s, %(tenant)s, %(data)s::jsonb, %(data)s::jsonb, 'done', now(), now())
"""


def everything(data: Any, tenant: str = "default") -> dict[str, Any]:
    """One row of each table of the substrate; the ids by their names."""
    ids: dict[str, Any] = {name: uuid.uuid4() for name in ("session", "boot", "tombstone")}
    facts = {**{name: str(value) for name, value in ids.items()}, "tenant": tenant, "data": json.dumps(data)}
    with connection.cursor() as cursor:
        cursor.execute(_REST, facts)
        run = a_run(input=data, output=data, session=facts["session"], tenant=tenant)
        cursor.execute(_TURN, {**facts, "run": str(run)})
    surround(run, data, tenant=tenant)
    return {**ids, "run": run}


def root() -> Client:
    """A superuser, logged in."""
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def staff(*permissions: str, tenants: tuple[str, ...] = ("default",), name: str = "staff") -> Client:
    """A member of staff with these permissions of the app, logged in."""
    user = User.objects.create_user(name, is_staff=True)
    for tenant in tenants:
        Membership.objects.create(user=user, tenant=tenant)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="runs", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


VIEWS = tuple(
    f"view_{model}"
    for model in (
        "run",
        "rundelivery",
        "step",
        "checkpoint",
        "checkpointarchive",
        "journalentry",
        "session",
        "sessionturn",
        "boot",
        "vesselslot",
        "runtombstone",
    )
)
