"""The SQL of a lane, each statement one transaction; the pump runs them one at a time on one connection.

Times are the database's clock: `started`, `touched` and `completed` in milliseconds, `scheduled` and `expire_at` in
seconds, as SAQ reads them. The stored job is merged, never rewritten from a copy, so nothing that another hand wrote
into it is lost.
"""

from __future__ import annotations

from typing import LiteralString

# The finished rows are active and the taken ones queued, so the two updates of a turn never meet. Only keys of Runs
# are taken. The order of RETURNING is not promised, so priority and time come along and are sorted by the caller.
TURN: LiteralString = """
WITH finished AS (
  UPDATE saq_jobs j
  SET status = f.status,
      job = convert_to((convert_from(j.job, 'UTF8')::jsonb || f.patch::jsonb
              || jsonb_build_object('completed', (extract(epoch FROM now()) * 1000)::bigint))::text, 'UTF8'),
      expire_at = extract(epoch FROM now())::bigint + %(ttl)s::int
  FROM unnest(%(keys)s::text[], %(statuses)s::text[], %(patches)s::text[]) AS f (key, status, patch)
  WHERE j.key = f.key AND j.status NOT IN ('aborted', 'complete', 'failed')
), picked AS MATERIALIZED (
  SELECT key, job
  FROM saq_jobs
  WHERE status = 'queued' AND queue = %(queue)s::text
    AND scheduled <= extract(epoch FROM now())::bigint
    AND priority BETWEEN 0 AND 32767 AND key LIKE 'run:%%'
  ORDER BY priority, scheduled
  LIMIT %(free)s::int
  FOR UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
  SELECT key, convert_from(job, 'UTF8')::jsonb AS job FROM picked
)
UPDATE saq_jobs j
SET status = 'active',
    job = convert_to((taken.job || jsonb_build_object(
            'status', 'active',
            'started', (extract(epoch FROM now()) * 1000)::bigint,
            'touched', (extract(epoch FROM now()) * 1000)::bigint,
            'worker_id', %(worker)s::text,
            'attempts', coalesce((taken.job ->> 'attempts')::int, 0) + 1,
            'meta', coalesce(taken.job -> 'meta', '{}') || jsonb_build_object('boot', %(boot)s::text)))::text, 'UTF8')
FROM taken
WHERE j.key = taken.key
RETURNING j.key, j.job, j.priority, j.scheduled
"""

BEAT: LiteralString = """
UPDATE saq_jobs j
SET job = convert_to((convert_from(j.job, 'UTF8')::jsonb || jsonb_build_object(
            'touched', (extract(epoch FROM now()) * 1000)::bigint))::text, 'UTF8')
WHERE j.key = ANY(%(keys)s::text[]) AND j.status IN ('active', 'aborting')
RETURNING j.key
"""

ABORTED: LiteralString = """
SELECT key, convert_from(job, 'UTF8')::jsonb ->> 'error'
FROM saq_jobs
WHERE key = ANY(%(keys)s::text[]) AND status IN ('aborting', 'aborted')
"""

# A row that an abort reached first is ended, not queued again.
GIVE_BACK: LiteralString = """
UPDATE saq_jobs j
SET status = CASE j.status WHEN 'active' THEN 'queued' ELSE 'aborted' END,
    expire_at = CASE j.status WHEN 'active' THEN NULL ELSE extract(epoch FROM now())::bigint + %(ttl)s::int END,
    job = convert_to((convert_from(j.job, 'UTF8')::jsonb - 'started' - 'touched' - 'worker_id' - 'attempts' - 'meta'
            || jsonb_build_object('status', CASE j.status WHEN 'active' THEN 'queued' ELSE 'aborted' END)
          )::text, 'UTF8')
WHERE j.queue = %(queue)s::text AND j.status IN ('active', 'aborting')
  AND CASE WHEN %(lost)s
      THEN j.key <> ALL(%(keys)s::text[]) AND convert_from(j.job, 'UTF8')::jsonb ->> 'worker_id' = %(worker)s::text
      ELSE j.key = ANY(%(keys)s::text[]) END
RETURNING j.key
"""

STUCK: LiteralString = """
UPDATE saq_jobs j
SET status = 'aborted', expire_at = extract(epoch FROM now())::bigint + %(ttl)s::int,
    job = convert_to((convert_from(j.job, 'UTF8')::jsonb || jsonb_build_object(
            'status', 'aborted', 'error', 'swept',
            'completed', (extract(epoch FROM now()) * 1000)::bigint))::text, 'UTF8')
WHERE j.queue = %(queue)s::text AND j.status IN ('active', 'aborting') AND j.key <> ALL(%(keys)s::text[])
  AND (extract(epoch FROM now()) * 1000)::bigint
      - coalesce((convert_from(j.job, 'UTF8')::jsonb ->> 'touched')::bigint, 0)
      > 1000 * coalesce(nullif((convert_from(j.job, 'UTF8')::jsonb ->> 'heartbeat')::int, 0), %(heartbeat)s::int)
RETURNING j.key
"""

NEXT: LiteralString = """
SELECT key FROM saq_jobs
WHERE status = 'queued' AND queue = %(queue)s::text AND key LIKE 'run:%%'
ORDER BY priority, scheduled LIMIT 64
"""
READABLE: LiteralString = (
    "SELECT coalesce((convert_from(job, 'UTF8')::jsonb ->> 'attempts')::int, 0), "
    "coalesce(convert_from(job, 'UTF8')::jsonb -> 'meta', '{}') || '{}' FROM saq_jobs WHERE key = %(key)s"
)
SET_ASIDE: LiteralString = """
UPDATE saq_jobs SET status = 'failed', expire_at = extract(epoch FROM now())::bigint + %(ttl)s::int
WHERE key = %(key)s AND status = 'queued'
"""
