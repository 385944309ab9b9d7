"""The examination of `lychd doctor`: configuration, database, connections, broker, Vessel, readiness, work.

Only looks: takes no lock, writes no row, starts no Vessel. Each check stands alone; what it cannot see it says.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS
from django.db import Error as DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.utils import ConnectionHandler

from lychd import wiring
from lychd.cli.connection import NOTE, URL
from lychd.cli.refusal import examine_refusal
from lychd.cli.report import Report
from lychd.cli.stuck import examine as examine_work
from lychd.cli.stuck import examine_pinned
from lychd.cli.texts import harmless
from lychd.client.wire import Wire
from lychd.config import Config
from lychd.postgres import urls
from lychd.postgres.budget import LIMITS
from lychd.postgres.budget import Limits as ServerLimits
from lychd.postgres.errors import TooFewConnections
from lychd.postgres.guard import LOCK_KEY
from runs.errors import LychdError
from runs.patterns import PatternRegistry

# Older servers are not maintained by their makers any more.
OLDEST = 14
CONNECT_SECONDS = 5
STATEMENT_MILLISECONDS = 15_000
READY_SECONDS = 10.0
SHOWN_MIGRATIONS = 3

SERVER = """
select current_setting('server_version'), current_setting('server_version_num')::int, current_database(),
       pg_is_in_recovery(), (select count(*) from pg_stat_activity where datname = current_database())
"""
RECORDED = "select to_regclass('django_migrations') is not null"
APPLIED = "select app, name from django_migrations"
BROKER = "select to_regclass('saq_jobs') is not null, to_regclass('saq_stats') is not null"
GUARD = """
select a.pid from pg_locks l join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.granted and l.objsubid = 1
  and l.classid::bigint = %(high)s and l.objid::bigint = %(low)s
  and l.database = (select oid from pg_database where datname = current_database())
"""
SLOT = """
select b.id, b.host, b.pid, b.started_at, b.ended_at, b.end_reason
from runs_vesselslot v join runs_boot b on b.id = v.boot_id
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a Vessel holds the database, and which was the last to."""

    running: bool
    boot: uuid.UUID | None = None
    who: str = ""
    ended: datetime | None = None


def examine(config: Config, data: Path, database_url: str) -> Report:
    """Look at everything.

    Args:
        config: the settings that a Vessel here would have.
        data: the data folder.
        database_url: of the database that it would use.
    """
    report = Report()
    registry = _configuration(report)
    try:
        with _direct_connection(database_url) as connection, connection.cursor() as cursor:
            _server(cursor, report)
            _budget(cursor, report, config)
            if not _migrations(cursor, report):
                return report
            standing = _vessel(cursor, report)
            examine_refusal(cursor, report, registry=registry, kinds=_wait_kinds(report), running=standing.running)
            broker = _broker(cursor, report, running=standing.running)
            if standing.running:
                _readiness(report, data, standing)
            examine_work(cursor, report, boot=standing.boot if standing.running else None, broker=broker)
            if registry is not None:
                examine_pinned(cursor, report, registry)
    except DatabaseError as error:
        reason = _first_line(error)
        report.fact("database", f"not usable: {reason}")
        remedy = "Start it, or correct DATABASE_URL; without DATABASE_URL `lychd up` brings its own."
        report.find("database", f"The database cannot be used: {reason.rstrip('.')}.", remedy)
    return report


def _configuration(report: Report) -> PatternRegistry | None:
    registry = None
    try:
        found = checks.run_checks()
        registry = wiring.registry()
    except (LychdError, ImportError, ImproperlyConfigured) as error:
        remedy = "Correct the Pattern or the app that brings it."
        report.find("configuration", f"The Patterns cannot be loaded: {_first_line(error).rstrip('.')}.", remedy)
        report.fact("configuration", "Patterns cannot be loaded")
        return None
    for problem in found:
        if problem.level >= checks.ERROR and not problem.is_silenced():
            said = harmless(f"{problem.msg}").rstrip(".")
            report.find("configuration", f"{said} ({problem.id}).", problem.hint or "Correct the settings.")
    names = [f"{pattern.key} {pattern.revision}" for pattern in registry.active()]
    report.fact("configuration", f"Patterns {', '.join(names)}" if names else "no Patterns", names)
    return registry


def _wait_kinds(report: Report) -> list[str]:
    try:
        return [kind.name for kind in wiring.wait_kinds()]
    except LychdError as error:
        report.find("configuration", f"{harmless(error.detail).rstrip('.')}.", "Correct the apps that declare it.")
        return []


@contextmanager
def _direct_connection(url: str) -> Generator[BaseDatabaseWrapper]:
    """A connection of our own: a pool would wait long and say little when the server is not there."""
    settings = urls.django_database(url, pool=1)
    options = {name: value for name, value in settings["OPTIONS"].items() if name != "pool"}
    limits = f"-c statement_timeout={STATEMENT_MILLISECONDS} -c default_transaction_read_only=on"
    options |= {
        "connect_timeout": str(CONNECT_SECONDS),
        "application_name": "lychd doctor",
        "options": f"{options.get('options', '')} {limits}".strip(),
    }
    handler = ConnectionHandler({DEFAULT_DB_ALIAS: {**settings, "OPTIONS": options}})
    connection: Any = handler[DEFAULT_DB_ALIAS]
    try:
        yield connection
    finally:
        connection.close()


def _server(cursor: Any, report: Report) -> None:
    cursor.execute(SERVER)
    version, number, name, standby, used = cursor.fetchone()
    report.fact(
        "database",
        f"PostgreSQL {version}, database {name}, {used} connections in use",
        {"version": version, "name": name, "connections": used},
    )
    if number < OLDEST * 10_000:
        report.find("database", f"PostgreSQL {version} is too old.", f"Use version {OLDEST} or later.")
    if standby:
        report.find("database", "This PostgreSQL is a standby that cannot be written.", "Name the primary instead.")


def _budget(cursor: Any, report: Report, config: Config) -> None:
    budget = wiring.budget(config)
    cursor.execute(LIMITS)
    limits = ServerLimits.of(tuple(cursor.fetchone()))
    shares = {share.name: share.most for share in budget.shares}
    facts = {"shares": shares, "total": budget.total, "available": limits.available, "most": limits.most}
    report.fact("connections", budget.table(limits), facts)
    try:
        budget.check(limits)
    except TooFewConnections as error:
        sentence, _, remedy = error.detail.rstrip(".").partition(": ")
        report.find("connections", f"{sentence}.", f"{remedy[:1].upper()}{remedy[1:]}.")


def _migrations(cursor: Any, report: Report) -> bool:
    """Compare the migrations that the code has with those that were applied; returns whether the tables are ours."""
    cursor.execute(RECORDED)
    recorded = cursor.fetchone()[0]
    if recorded:
        cursor.execute(APPLIED)
    applied = {(str(app), str(name)) for app, name in cursor.fetchall()} if recorded else set[tuple[str, str]]()
    loader = MigrationLoader(None)
    pending = [
        migration
        for key, migration in sorted(loader.disk_migrations.items())
        if key not in applied and not (migration.replaces and applied.issuperset(migration.replaces))
    ]
    known = {*loader.disk_migrations, *(old for one in loader.disk_migrations.values() for old in one.replaces)}
    ours = {app for app, _ in loader.disk_migrations}
    ahead = [key for key in applied - known if key[0] in ours]
    facts = {
        "pending": [f"{migration.app_label}.{migration.name}" for migration in pending],
        "unknown": [f"{app}.{name}" for app, name in sorted(ahead)],
    }
    if pending:
        names = ", ".join(facts["pending"][:SHOWN_MIGRATIONS])
        report.fact("migrations", f"{len(pending)} not applied", facts)
        report.find("migrations", f"{len(pending)} migrations are not applied ({names}).", "Run `lychd migrate`.")
        return False
    if ahead:
        report.fact("migrations", f"{len(ahead)} of a later version", facts)
        remedy = "Install the version that made them."
        report.find(
            "migrations", f"The database was migrated by a later version ({', '.join(facts['unknown'])}).", remedy
        )
        return True
    report.fact("migrations", "all applied", facts)
    return True


def _broker(cursor: Any, report: Report, *, running: bool) -> bool:
    cursor.execute(BROKER)
    there = all(cursor.fetchone())
    if there:
        report.fact("broker", "tables are there", {"tables": True})
    elif running:
        report.fact("broker", "tables are missing", {"tables": False})
        report.find("broker", "The broker's tables are missing.", "Restart the Vessel: it makes them when it starts.")
    else:
        report.fact("broker", "no tables: a Vessel makes them when it starts", {"tables": False})
    return there


def _vessel(cursor: Any, report: Report) -> Standing:
    cursor.execute(GUARD, {"high": LOCK_KEY >> 32, "low": LOCK_KEY & 0xFFFF_FFFF})
    held = cursor.fetchone() is not None
    cursor.execute(SLOT)
    row = cursor.fetchone()
    if row is None:
        report.fact("vessel", "starting for the first time" if held else "none was ever here", {"running": held})
        return Standing(held)
    boot, host, pid, since, ended, reason = row
    who = f"host {harmless(host)}, pid {pid}, boot {boot}, since {since:%Y-%m-%d %H:%M:%S} UTC"
    running = held and ended is None
    facts = {"running": running, "boot": str(boot), "host": host, "pid": pid, "since": since.isoformat()}
    if running:
        report.fact("vessel", f"running: {who}", facts)
    elif held:
        report.fact("vessel", "starting", facts)
    elif ended is not None:
        report.fact(
            "vessel", f"none runs; the last ended {ended:%Y-%m-%d %H:%M:%S} UTC ({harmless(str(reason))})", facts
        )
    else:
        report.fact("vessel", f"none runs; the last died without a word: {who}", facts)
    return Standing(running, boot, who, ended)


def _readiness(report: Report, data: Path, standing: Standing) -> None:
    url = _url(data, standing)
    if url is None:
        report.fact("readiness", f"not asked: the Vessel's address is not in {data / NOTE}; {URL} may name it", {})
        return
    try:
        answer = asyncio.run(_ready(url))
        conditions: list[dict[str, Any]] = [one for one in answer.get("checks", []) if isinstance(one, dict)]
    except LychdError as error:
        report.fact("readiness", f"no answer from {url}", {})
        remedy = "See the Vessel's log; if it hangs, restart it."
        report.find("readiness", f"The Vessel does not answer: {error.detail.rstrip('.')}.", remedy)
        return
    bad = [one for one in conditions if not one.get("ok")]
    report.fact("readiness", f"{len(conditions) - len(bad)} of {len(conditions)} conditions are met", conditions)
    for one in bad:
        name, reason = harmless(str(one.get("name"))), harmless(str(one.get("reason") or "no reason given"))
        report.find("readiness", f"{name}: {reason.rstrip('.')}.", "See the Vessel's log about this part.")


async def _ready(url: str) -> dict[str, Any]:
    wire = Wire(url, None, READY_SECONDS)
    try:
        return await wire.ready()
    finally:
        await wire.aclose()


def _url(data: Path, standing: Standing) -> str | None:
    """Where the Vessel that holds this database answers, as far as this machine knows."""
    try:
        note: Any = json.loads((data / NOTE).read_text())
        if note.get("boot") == str(standing.boot):
            return str(note["url"])
    except (OSError, ValueError, AttributeError, KeyError):
        pass
    return os.environ.get(URL) or None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
