"""The decision of an abort, taken under the row's lock in one transaction (QUE-4). Never waits for a worker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import LiteralString

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from runs.broker.jobs import TTL, JobStatus

# Wakes the lane that may hold the job; stock SAQ workers ignore words they do not know and poll.
ABORT_WORD = "lychd:abort"

_LOCK: LiteralString = "SELECT status FROM saq_jobs WHERE key = %s FOR UPDATE"
_WRITE: LiteralString = """
WITH written AS (
  UPDATE saq_jobs j
  SET status = %(status)s::text,
      job = convert_to((convert_from(j.job, 'UTF8')::jsonb
              || jsonb_build_object('status', %(status)s::text, 'error', %(error)s::text)
              || CASE WHEN %(terminal)s::bool
                      THEN jsonb_build_object('completed', (extract(epoch FROM now()) * 1000)::bigint)
                      ELSE '{}'::jsonb END)::text, 'UTF8'),
      expire_at = CASE WHEN %(terminal)s::bool THEN extract(epoch FROM now())::bigint + %(ttl)s::int END
  WHERE j.key = %(key)s
  RETURNING j.queue
)
SELECT pg_notify('saq:' || queue, %(word)s) FROM written
"""


class AbortDecision(StrEnum):
    """What an abort found and did.

    MISSING and TERMINAL changed nothing; ABORTED ended the row; ABORTING left it to the worker that holds it.
    """

    MISSING = "missing"
    TERMINAL = "terminal"
    ABORTED = "aborted"
    ABORTING = "aborting"


@dataclass(frozen=True, slots=True)
class AbortResult:
    """An abort's decision and the status of the row when it returned; None: there is no row."""

    decision: AbortDecision
    status: JobStatus | None


async def decide_abort(conn: AsyncConnection[TupleRow], key: str, reason: str, *, force: bool = False) -> AbortResult:
    """Abort what stands under `key`, judged under its row lock in one explicit transaction.

    Args:
        conn: an autocommit connection outside a transaction.
        reason: kept with the row.
        force: end an active row at once instead of asking its worker (QUE-6).
    """
    async with conn.transaction():
        row = await (await conn.execute(_LOCK, (key,))).fetchone()
        if row is None:
            return AbortResult(AbortDecision.MISSING, None)
        status = JobStatus(row[0])
        if status.terminal:
            return AbortResult(AbortDecision.TERMINAL, status)
        ended = force or status is JobStatus.QUEUED
        decision = AbortDecision.ABORTED if ended else AbortDecision.ABORTING
        new = JobStatus.ABORTED if ended else JobStatus.ABORTING
        parameters = {"status": new.value, "error": clean(reason), "terminal": ended, "key": key}
        await conn.execute(_WRITE, parameters | {"ttl": TTL, "word": ABORT_WORD})
        return AbortResult(decision, new)


def clean(text: str, limit: int = 16_000) -> str:
    """`text` as jsonb can hold it: no NUL, no lone surrogate, bounded."""
    return text[-limit:].encode("utf-8", "backslashreplace").decode().replace("\x00", "\\0")
