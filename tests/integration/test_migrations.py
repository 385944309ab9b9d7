"""The tables come from zero, go back, and are never changed under live Runs that the new code could not carry on."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from typing import Any, LiteralString, cast

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from psycopg import sql
from psycopg.conninfo import make_conninfo

from lychd.postgres import urls
from runs.migrations import _live_runs
from runs.migrations._live_runs import LiveRuns
from tests.support.scratch import drop
from tests.support.waiting import eventually_sync

ALIAS = "scratch"
INITIAL = ("runs", "0001_initial")
HEAD = ("runs", "0002_live_runs")

A_RUN = """
insert into runs_run (id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source, surface,
    sigil_name, scopes, intent, request_digest, input, status, priority, queue_name, enqueue_seq, finished_at)
values (%s, 'default', 'vessel', 'p', '1', 'd', '{"nodes": []}', 'cli', 'cli', 'op', '[]', '{}', 'r', '{}',
    %s, 50, 'runs', 0, case when %s in ('done', 'cancelled') then now() end)
"""
A_DELIVERY = """
insert into runs_rundelivery (run_id, tenant, enqueue_seq, queue_name, priority, resume, state, publish_attempts,
    claim_id, boot_id, claimed_at)
values (%s, 'default', 0, 'runs', %s, false, %s, 0, gen_random_uuid(), gen_random_uuid(), now())
"""


class Scratch:
    """An empty database of its own, reached through Django as `scratch` and through a plain connection."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)

    def execute(self, text: str, *args: Any) -> list[Any]:
        cursor = self.connection.execute(cast("LiteralString", text), args)
        return cursor.fetchall() if cursor.description else []

    def migrate(self, *target: str) -> None:
        try:
            call_command("migrate", *target, database=ALIAS, verbosity=0, interactive=False, skip_checks=True)
        finally:
            # As the end of its process: Django leaves the transaction open when deferred DDL fails.
            connections[ALIAS].close()
            del connections[ALIAS]

    def applied(self) -> set[tuple[str, str]]:
        return {(app, name) for app, name in self.execute("select app, name from django_migrations")}

    def tables(self) -> set[str]:
        return {name for (name,) in self.execute("select tablename from pg_tables where schemaname = 'public'")}

    def schema(self) -> list[Any]:
        """Every column, constraint and index of the product's tables."""
        return self.execute(
            "select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns"
            " where table_schema = 'public' and table_name like 'runs%%'"
        ) + self.execute("select indexdef from pg_indexes where schemaname = 'public' and tablename like 'runs%%'")

    def a_run(self, status: str = "queued", delivery: str | None = None, priority: int = 50) -> uuid.UUID:
        run_id = uuid.uuid4()
        self.execute(A_RUN, run_id, status, status)
        if delivery is not None:
            self.execute(A_DELIVERY, run_id, priority, delivery)
        return run_id


@pytest.fixture
def scratch(django_db_blocker: Any) -> Iterator[Scratch]:
    name = f"lychd_migrations_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        settings = {**connections.settings["default"], "NAME": name, "OPTIONS": {}, "CONN_MAX_AGE": 0}
        connections.settings[ALIAS] = settings
        scratch = Scratch(make_conninfo(urls.conninfo(os.environ["DATABASE_URL"]), dbname=name))
        try:
            with django_db_blocker.unblock():
                yield scratch
        finally:
            scratch.connection.close()
            connections[ALIAS].close()
            del connections[ALIAS]
            del connections.settings[ALIAS]
            drop(os.environ["DATABASE_URL"], name)


@pytest.fixture
def before(scratch: Scratch) -> Scratch:
    """The tables as they were before the guard."""
    scratch.migrate(*INITIAL)
    return scratch


def test_a_database_is_migrated_from_zero_to_the_head_and_a_second_time_nothing_is_left_to_do(scratch: Scratch) -> None:
    scratch.migrate()
    assert {INITIAL, HEAD} <= scratch.applied()
    assert {"runs_run", "runs_rundelivery", "runs_step", "runs_checkpoint", "runs_journalentry"} <= scratch.tables()
    executor = MigrationExecutor(connections[ALIAS])
    assert executor.migration_plan(executor.loader.graph.leaf_nodes()) == []


def test_an_empty_database_goes_back_to_nothing_and_forth_to_the_same_tables(scratch: Scratch) -> None:
    scratch.migrate("runs")
    there = sorted(map(str, scratch.schema()))
    scratch.migrate("runs", "zero")
    assert {table for table in scratch.tables() if table.startswith("runs_")} == set()
    scratch.migrate("runs")
    assert sorted(map(str, scratch.schema())) == there


@pytest.mark.django_db
def test_the_models_have_no_change_without_a_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.contract("ADM-50")
@pytest.mark.parametrize(
    ("status", "delivery", "priority"),
    [
        ("queued", None, 50),
        ("queued", "claimed", 50),
        ("queued", "pending", 60),
        ("running", None, 50),
        ("running", "published", 50),
        ("awaiting_hardware", "held", 50),
        ("cancelling", None, 50),
    ],
)
def test_s032_a_live_run_of_another_shape_is_refused_by_name_and_nothing_changes(
    before: Scratch, status: str, delivery: str | None, priority: int
) -> None:
    run_id = before.a_run(status, delivery, priority)
    schema, rows = before.schema(), before.execute("select * from runs_run")
    with pytest.raises(LiveRuns, match=f"cannot carry on 1 live Run.*{run_id} is {status} and has.*migrate again"):
        before.migrate(*HEAD)
    assert HEAD not in before.applied()
    assert before.schema() == schema
    assert before.execute("select * from runs_run") == rows
    assert len(before.execute("select * from runs_rundelivery")) == (delivery is not None)


@pytest.mark.contract("ADM-50")
def test_live_runs_that_this_version_knows_and_ended_ones_without_history_are_taken_as_they_are(
    before: Scratch,
) -> None:
    for status, delivery in (
        ("queued", "held"),
        ("queued", "pending"),
        ("queued", "published"),
        ("running", "claimed"),
        ("awaiting_hardware", "claimed"),
        ("cancelling", "claimed"),
        ("done", None),
        ("cancelled", None),
    ):
        before.a_run(status, delivery)
    rows = before.execute("select * from runs_run order by id")
    before.migrate(*HEAD)
    assert HEAD in before.applied()
    assert before.execute("select * from runs_run order by id") == rows
    assert len(before.execute("select * from runs_rundelivery")) == 6


@pytest.mark.contract("ADM-50")
def test_s032_a_refused_database_passes_after_it_was_drained_and_runs_put_aside_do_not_count(before: Scratch) -> None:
    ended, aside = before.a_run(), before.a_run()
    with pytest.raises(LiveRuns, match="2 live Run"):
        before.migrate(*HEAD)
    before.execute("update runs_run set status = 'cancelled', finished_at = now() where id = %s", ended)
    before.execute("update runs_run set quarantined_at = now(), quarantine_reason = 'old' where id = %s", aside)
    before.migrate(*HEAD)
    assert HEAD in before.applied()


@pytest.mark.contract("ADM-50")
def test_the_sentence_stays_short_however_many_runs_there_are(before: Scratch) -> None:
    for _ in range(20):
        before.a_run()
    with pytest.raises(LiveRuns) as refused:
        before.migrate(*HEAD)
    assert "20 live Run" in refused.value.detail
    assert len(refused.value.detail) < 800


@pytest.mark.contract("ADM-50")
def test_s032_the_way_back_is_refused_while_work_is_live(before: Scratch) -> None:
    run_id = before.a_run("queued", "published")
    before.migrate(*HEAD)
    for target in (INITIAL, ("runs", "zero")):
        with pytest.raises(LiveRuns, match=f"older version.*{run_id}"):
            before.migrate(*target)
    assert HEAD in before.applied()
    assert "runs_run" in before.tables()
    before.execute("update runs_run set status = 'cancelled', finished_at = now() where id = %s", run_id)
    before.migrate("runs", "zero")
    assert "runs_run" not in before.tables()


@pytest.mark.contract("ADM-50")
def test_s033_a_migration_that_fails_in_the_middle_leaves_nothing_behind(scratch: Scratch) -> None:
    """The index's name is taken, so the tables before it had been made when it failed."""
    scratch.execute("create table stranger (n int)")
    scratch.execute("create index runs_delivery_unsettled on stranger (n)")
    with pytest.raises(Exception, match="runs_delivery_unsettled"):
        scratch.migrate("runs")
    assert {table for table in scratch.tables() if table.startswith("runs_")} == set()
    assert not any(app == "runs" for app, _ in scratch.applied())
    scratch.execute("drop table stranger")
    scratch.migrate("runs")
    assert HEAD in scratch.applied()


@pytest.mark.contract("ADM-50")
def test_s034_an_old_writer_that_was_first_is_waited_for_and_seen(before: Scratch) -> None:
    refused: list[BaseException] = []

    def migrate() -> None:
        try:
            before.migrate(*HEAD)
        except LiveRuns as error:
            refused.append(error)

    run_id = uuid.uuid4()
    with psycopg.connect(before.dsn) as writer:
        writer.execute(A_RUN, (run_id, "queued", "queued"))
        thread = threading.Thread(target=migrate)
        thread.start()
        eventually_sync(
            lambda: before.execute(
                "select 1 from pg_locks l join pg_database d on d.oid = l.database where d.datname = current_database()"
                " and not l.granted and l.mode = 'AccessExclusiveLock'"
            )
        )
    thread.join(30)
    assert len(refused) == 1
    assert str(run_id) in str(refused[0])
    assert HEAD not in before.applied()


@pytest.mark.contract("ADM-50")
def test_s034_an_old_writer_that_comes_during_the_migration_waits_for_its_commit(before: Scratch) -> None:
    with connections[ALIAS].schema_editor(atomic=True) as editor:
        _live_runs.forwards(None, editor)
        with (
            psycopg.connect(before.dsn, options="-c lock_timeout=100") as writer,
            pytest.raises(psycopg.errors.LockNotAvailable),
        ):
            writer.execute(A_RUN, (uuid.uuid4(), "queued", "queued"))
    before.a_run("queued", "pending")


@pytest.mark.contract("ADM-50")
def test_a_vessel_that_keeps_the_table_busy_ends_the_migration_in_bounded_time(
    before: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_live_runs, "LOCK_SECONDS", 0.1)
    with psycopg.connect(before.dsn) as writer:
        writer.execute(A_RUN, (uuid.uuid4(), "queued", "queued"))
        with pytest.raises(LiveRuns, match="Stop the Vessel"):
            before.migrate(*HEAD)
        writer.rollback()
    before.migrate(*HEAD)
    assert HEAD in before.applied()
