"""SAQ's own tables: made by SAQ's own migrations, proved to be there. Never touches a row of a job.

SAQ's `init_db` tries an advisory lock and, where somebody else holds it, skips its work and reports success. Here the
lock is waited for, belongs to the transaction, and the tables are looked at afterwards.
"""

from __future__ import annotations

from typing import LiteralString

from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg.sql import Identifier
from saq.queue.postgres import JOBS_TABLE, STATS_TABLE
from saq.queue.postgres_migrations import get_migrations

from runs.errors import Degraded

_LOCK: LiteralString = "SELECT pg_advisory_xact_lock(0, hashtext('lychd broker tables'))"
_VERSIONS: LiteralString = "CREATE TABLE IF NOT EXISTS saq_versions (version INT)"
_VERSION: LiteralString = "SELECT max(version) FROM saq_versions"
_COLUMNS: LiteralString = """
SELECT count(*)
FROM pg_attribute
WHERE attrelid = to_regclass('saq_jobs') AND NOT attisdropped
  AND attname IN ('key', 'job', 'queue', 'status', 'priority', 'group_key', 'scheduled', 'expire_at')
  AND to_regclass('saq_stats') IS NOT NULL
"""


async def ensure_tables(conn: AsyncConnection[TupleRow]) -> None:
    """Bring the broker's tables to the version of the installed SAQ; safe while others do the same.

    Raises:
        Degraded: the tables are newer than the library, or not what the lanes read.
    """
    steps = get_migrations(jobs_table=Identifier(JOBS_TABLE), stats_table=Identifier(STATS_TABLE))
    target = steps[-1][0]
    async with conn.transaction():
        await conn.execute(_LOCK)
        await conn.execute(_VERSIONS)
        row = await (await conn.execute(_VERSION)).fetchone()
        current: int = (row[0] if row else None) or 0
        if current > target:
            raise Degraded(f"The broker's tables have version {current}; this SAQ knows only up to {target}.")
        if current < target:
            for version, statements in steps:
                if version > current:
                    for statement in statements:
                        await conn.execute(statement)
            await conn.execute("DELETE FROM saq_versions")
            await conn.execute("INSERT INTO saq_versions (version) VALUES (%s)", (target,))
    found = await (await conn.execute(_COLUMNS)).fetchone()
    if found is None or found[0] != 8:
        raise Degraded("The broker's tables are not what SAQ's migrations make; is another schema in the way?")
