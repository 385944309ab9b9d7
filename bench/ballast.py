"""What earlier boots left behind, by the hundred thousand: rows made in the database, as a dead Vessel leaves them.

Live Runs: half of them queued, half parked on Consents; among the queued ones every state in which a hop and the
broker's row can be found. Ended Runs: with their settled hops and Steps; one in a thousand lacks its terminal Step, one
in a thousand still has its checkpoint. `bench.recovery` compares what recovery counts with `expected`.
"""

from __future__ import annotations

import json
import uuid
from typing import LiteralString

import psycopg

from runs.patterns import AnyPattern

# Hops that the dead Vessel was about to run, that it ran, and that it was cancelling.
AT_WORK = 32

# Time-ordered ids, as those of Runs are; the last digits tell the kinds apart.
_ID: LiteralString = """
create function pg_temp.id(kind int, n int) returns uuid immutable language sql as
$$ select (lpad(to_hex(1760000000000 + n), 12, '0') || '70008000' || lpad(to_hex(kind), 4, '0')
           || lpad(to_hex(n), 8, '0'))::uuid $$
"""
_RUNS: LiteralString = """
insert into runs_run (
    id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source, surface, sigil_name, scopes,
    intent, request_digest, input, output, status, priority, queue_name, enqueue_seq,
    wait_kind, wait_owner, wait_since, error_code, error_message, cancelled_by, cancel_requested_at,
    created_at, updated_at, started_at, finished_at)
select pg_temp.id(%(kind)s::int, n), 'default', 'vessel', %(key)s::text, %(revision)s::text, %(digest)s::text,
    %(manifest)s::jsonb, 'rest', 'rest', 'bench', '["runs:read", "runs:submit"]', '{"pattern": "bench", "input": {}}',
    repeat('d', 64), '{}', case when s.status = 'done' then '{"nodes": 3}'::jsonb end, s.status, 50, 'runs', 0,
    case when s.status = 'awaiting_consent' then 'consent' end,
    case when s.status = 'awaiting_consent' then pg_temp.id(100, n) end,
    case when s.status = 'awaiting_consent' then now() end,
    case when s.status = 'failed' then 'broke' end, case when s.status = 'failed' then 'it broke' end,
    case when s.status in ('cancelling', 'cancelled') then 'bench' end,
    case when s.status in ('cancelling', 'cancelled') then now() end,
    t.at, t.at, case when s.status <> 'queued' then t.at end,
    case when s.status in ('done', 'failed', 'cancelled') then t.at end
from generate_series(1, %(count)s::int) n
cross join lateral (select now() - interval '30 days' + n * interval '1 second' as at) t
cross join lateral (
    select coalesce(%(status)s::text,
        case when n %% 20 = 0 then 'failed' when n %% 50 = 1 then 'cancelled' else 'done' end) as status
) s
"""
_HOPS: LiteralString = """
insert into runs_rundelivery (
    run_id, tenant, enqueue_seq, queue_name, priority, resume, state, claim_id, boot_id, publish_attempts,
    published_at, claimed_at, settled_at, created_at, updated_at)
select pg_temp.id(%(kind)s::int, n), 'default', 0, 'runs', 50, false, s.state,
    case when s.state in ('claimed', 'settled') then pg_temp.id(200, n) end,
    case when s.state in ('claimed', 'settled') then %(boot)s::uuid end, 1,
    case when s.state <> 'pending' then now() end,
    case when s.state in ('claimed', 'settled') then now() end,
    case when s.state = 'settled' then now() end, now(), now()
from generate_series(1, %(count)s::int) n
cross join lateral (
    select coalesce(%(state)s::text, case when n %% 100 < 40 or n %% 100 = 98 then 'pending' else 'published' end)
        as state
) s
"""
# Of the queued hops: 0 to 39 and 90 to 97 of a hundred were never, or are no longer, at the broker.
_JOBS: LiteralString = """
insert into saq_jobs (key, job, queue, status, priority, scheduled, expire_at)
select k.key, convert_to(jsonb_build_object(
        'function', 'perform_run', 'kwargs', jsonb_build_object('run_id', k.run_id, 'seq', 0), 'queue', 'runs',
        'key', k.key, 'timeout', 0, 'heartbeat', 120, 'retries', 0, 'queued', k.ms, 'started', k.ms, 'touched', k.ms,
        'status', s.status, 'meta', jsonb_build_object('boot', %(boot)s::text))::text, 'UTF8'),
    'runs', s.status, 50, 0, case when s.status = 'complete' then extract(epoch from now())::bigint + 600 end
from generate_series(1, %(count)s::int) n
cross join lateral (
    select pg_temp.id(%(kind)s::int, n) as run_id, 'run:' || pg_temp.id(%(kind)s::int, n) || ':0' as key,
        (extract(epoch from now()) * 1000)::bigint as ms
) k
cross join lateral (
    select coalesce(%(status)s::text, case when n %% 100 = 99 then 'complete' else 'queued' end) as status
) s
where %(status)s::text is not null or n %% 100 between 40 and 89 or n %% 100 in (98, 99)
"""
_STEPS: LiteralString = """
insert into runs_step (id, run_id, tenant, epoch, seq, tokens_before, kind, data, meta, at)
select pg_temp.id(300 + 2 * %(kind)s::int + seq, n), r.id, 'default', 'e', seq, 0,
    case seq when 0 then 'status' else 'done' end,
    case seq when 0 then '{"status": "running"}'::jsonb else jsonb_build_object('status', r.status, 'hop', 0) end,
    '{}', now()
from generate_series(1, %(count)s::int) n
cross join generate_series(0, %(last)s::int) seq
join runs_run r on r.id = pg_temp.id(%(kind)s::int, n)
where seq = 0 or n %% 1000 <> 7
"""
_CHECKPOINTS: LiteralString = """
insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at, updated_at)
select pg_temp.id(%(kind)s::int, n), 'default', 0, pg_temp.id(200, n), '[{"kind": "node", "state": {"nodes": 1}}]',
    now(), now()
from generate_series(1, %(count)s::int) n where n %% %(every)s::int = 0
"""
# One Consent in ten was granted, and its Run not yet brought back.
_CONSENTS: LiteralString = """
insert into consents_consent (
    id, run_id, tenant, node, visit, pattern_key, sigil_name, title, body, facts, risk, digest, permission, "group",
    quorum, self_approval, status, requested_at, decided_by, decided_at, surface, comment, policy_digest, updated_at)
select pg_temp.id(100, n), pg_temp.id(%(kind)s::int, n), 'default', 'ask', 0, 'bench_gate', 'bench', 'Go on?', '',
    '{"n": 1}', 'low', repeat('d', 64), '', '', 1, true, case when n %% 10 = 0 then 'granted' else 'pending' end, now(),
    case when n %% 10 = 0 then 'somebody' end, case when n %% 10 = 0 then now() end,
    case when n %% 10 = 0 then 'rest' end, '', '', now()
from generate_series(1, %(count)s::int) n
"""
# What is queued after a recovery, so that another start finds nothing to do and the Vessel stays idle.
_UNQUEUE: tuple[LiteralString, ...] = (
    "delete from saq_jobs",
    "delete from runs_rundelivery d using runs_run r where r.id = d.run_id and r.status in ('queued', 'running')",
    "delete from runs_run where status in ('queued', 'running')",
    "vacuum analyze",
)

QUEUED, PARKED, ENDED, ACTIVE, RUNNING, CANCELLING = range(1, 7)


def fill(conninfo: str, *, live: int, ended: int, work: AnyPattern, gate: AnyPattern) -> None:
    """Write the rows into an empty, migrated database.

    Args:
        live: queued and parked Runs together.
        ended: terminal Runs.
        work: the Pattern of all Runs but the parked ones.
        gate: the Pattern of the parked ones.
    """
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_ID)
        # The rows are whole; checking each key again would take longer than writing it.
        connection.execute("set session_replication_role = replica")
        for kind, status, count in (
            (QUEUED, "queued", live // 2),
            (PARKED, "awaiting_consent", live // 2),
            (ENDED, None, ended),
            (ACTIVE, "queued", AT_WORK),
            (RUNNING, "running", AT_WORK),
            (CANCELLING, "cancelling", AT_WORK),
        ):
            _fill(connection, kind, status, count, gate if kind == PARKED else work)
        connection.execute("vacuum analyze")


def _fill(
    connection: psycopg.Connection[tuple[object, ...]], kind: int, status: str | None, count: int, pattern: AnyPattern
) -> None:
    state = {PARKED: "settled", ENDED: "settled", ACTIVE: "published", RUNNING: "claimed", CANCELLING: "claimed"}
    params = {
        "kind": kind,
        "count": count,
        "status": status,
        "state": state.get(kind),
        "key": pattern.key,
        "revision": pattern.revision,
        "digest": pattern.digest,
        "manifest": json.dumps({**pattern.manifest.to_json(), "schemas": {}}),
        "boot": str(uuid.UUID(int=1)),
        "last": 1 if kind == ENDED else 0,
        "every": 1000 if kind == ENDED else 1,
    }
    connection.execute(_RUNS, params)
    connection.execute(_HOPS, params)
    connection.execute(_STEPS, params)
    if kind in {QUEUED, ACTIVE, RUNNING, CANCELLING}:
        connection.execute(_JOBS, {**params, "status": None if kind == QUEUED else "active"})
    if kind in {PARKED, RUNNING, ENDED}:
        connection.execute(_CHECKPOINTS, params)
    if kind == PARKED:
        connection.execute(_CONSENTS, params)


def unqueue(conninfo: str) -> None:
    """Forget what is queued or at work; what is parked and what has ended stays."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        for statement in _UNQUEUE:
            connection.execute(statement)


def expected(live: int, ended: int) -> dict[str, int]:
    """What recovery must say it did with these rows."""
    queued, parked = live // 2, live // 2
    of = [_among(queued, rest) for rest in range(100)]
    return {
        "republished": sum(of[:40]) + sum(of[90:98]),
        "marked": of[98],
        "rotated": of[99] + AT_WORK,
        "resumed": parked // 10,
        "cancelled": AT_WORK,
        "dead_failed": AT_WORK,
        "evidence_repaired": (ended + 1000 - 7) // 1000,
        # Those of the cancelled and of the failed Runs went with their ends.
        "checkpoints_deleted": ended // 1000,
    }


def _among(count: int, rest: int) -> int:
    """How many of 1 to `count` leave `rest` when divided by a hundred."""
    return count // 100 + (1 if 0 < rest <= count % 100 else 0)
