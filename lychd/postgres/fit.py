"""Whether a server and a database can carry a Vessel: connections enough, and every migration of this version.

Asked before anything else is opened; opens one connection and closes it.
"""

from __future__ import annotations

import psycopg
from django.db.migrations.loader import MigrationLoader

from lychd.postgres.budget import LIMITS, ConnectionBudget, Limits
from runs.errors import Degraded

TABLE = "select to_regclass('django_migrations') is not null"
APPLIED = "select app, name from django_migrations"
SHOWN = 3


class NotMigrated(Degraded):
    """The database has not been migrated to this version."""

    code, title = "not_migrated", "Database not migrated"


async def prove(conninfo: str, budget: ConnectionBudget) -> None:
    """Refuse a database that cannot carry a Vessel.

    Raises:
        TooFewConnections: the server allows fewer than `budget`.
        NotMigrated: names what is missing.
        psycopg.OperationalError: PostgreSQL cannot be reached.
    """
    async with await psycopg.AsyncConnection.connect(
        conninfo, autocommit=True, application_name="lychd start"
    ) as connection:
        found = await (await connection.execute(LIMITS)).fetchone()
        if found is not None:
            budget.check(Limits.of(tuple(found)))
        there = await (await connection.execute(TABLE)).fetchone()
        if not there or not there[0]:
            raise NotMigrated("The database has no LychD tables yet: run `lychd migrate`, or use `lychd up`.")
        applied = await (await connection.execute(APPLIED)).fetchall()
    missing = sorted(_wanted() - {(str(app), str(name)) for app, name in applied})
    if missing:
        names = ", ".join(f"{app}.{name}" for app, name in missing[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
        raise NotMigrated(f"The database lacks migrations ({names}): run `lychd migrate`, or use `lychd up`.")


def _wanted() -> set[tuple[str, str]]:
    """Every migration of the installed apps, by app and name; reads files only."""
    return {(str(app), str(name)) for app, name in MigrationLoader(None).graph.nodes}
