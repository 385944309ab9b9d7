"""`lychd doctor` on real databases: what is in order is told, what is not is a sentence with a remedy.

Nothing is changed by looking.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lychd import wiring
from lychd.cli.examine import examine
from lychd.cli.report import Finding, Report
from lychd.cli.stuck import SHOWN
from lychd.postgres.guard import LOCK_KEY
from runs import ids
from runs.broker.tables import ensure_tables
from runs.errors import PatternError
from runs.patterns import AnyPattern, PatternRegistry
from runs.states import DeliveryState, RunStatus, is_terminal
from tests.support.commands import lychd_here
from tests.support.demo import PATTERNS, quick
from tests.support.scripted import Answer, Script, scripted
from tests.support.vessels import a_config, living

pytest_plugins = ["tests.support.vessel_fixtures"]

S, D = RunStatus, DeliveryState
HELD, PENDING, PUBLISHED, CLAIMED, SETTLED = D.HELD, D.PENDING, D.PUBLISHED, D.CLAIMED, D.SETTLED

type Look = Callable[[], Report]


@pytest.fixture(autouse=True)
def unblocked(django_db_blocker: Any) -> Iterator[None]:
    """The doctor opens connections of its own to databases of these tests' own."""
    with django_db_blocker.unblock():
        yield


@dataclass(frozen=True, slots=True)
class Row:
    """A Run to be written as rows; the last of its deliveries is the current one."""

    status: RunStatus
    states: tuple[DeliveryState, ...]
    seq: int = 0
    road: str = "vessel"
    quarantined: bool = False
    id: uuid.UUID = field(default_factory=ids.mint)

    @property
    def current(self) -> int:
        return self.seq + max(len(self.states) - 1, 0)


class Desk:
    """A connection of nobody's, for arranging and reading; a boot that is gone holds the slot."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.boot = ids.mint()
        self.execute(
            "insert into runs_boot (id, host, pid, profile, version, url, started_at, report) "
            "values (%s, 'here', 1, 'durable', '0', '', now(), '{}')",
            self.boot,
        )
        self.execute("insert into runs_vesselslot (id, boot_id, taken_at) values (1, %s, now())", self.boot)

    def execute(self, sql: str, *params: Any) -> list[Any]:
        cursor = self.connection.execute(sql, params)  # pyright: ignore[reportArgumentType] - written in the tests
        return cursor.fetchall() if cursor.description else []

    def place(self, *rows: Row) -> None:
        with self.connection.transaction():
            for row in rows:
                parked = row.status.value.startswith("awaiting_") and row.status is not S.AWAITING_HARDWARE
                self.execute(
                    "insert into runs_run (id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest,"
                    " source, surface, sigil_name, scopes, intent, request_digest, input, status, priority, queue_name,"
                    " enqueue_seq, wait_kind, wait_owner, wait_since, finished_at, quarantined_at, quarantine_reason,"
                    " created_at, updated_at)"
                    " select %s, 'default', %s, 'p', '1', 'd', '{}', 'cli', 'cli', 'op', '[]', '{}', 'r', '{}', %s, 50,"
                    " 'runs', %s, case when p then 'consent' end, case when p then gen_random_uuid() end,"
                    " case when p then now() end, case when e then now() end, case when q then now() end,"
                    " case when q then 'bad' end, now(), now() from (values (%s, %s, %s)) as w (p, e, q)",
                    *(row.id, row.road, row.status, row.current),
                    *(parked, is_terminal(row.status), row.quarantined),
                )
                for place, state in enumerate(row.states):
                    self.execute(
                        "insert into runs_rundelivery (run_id, tenant, enqueue_seq, queue_name, priority, resume,"
                        " state, publish_attempts, claim_id, boot_id, claimed_at, settled_at, created_at, updated_at)"
                        " select %s, 'default', %s, 'runs', 50, false, %s, 0, case when c then gen_random_uuid() end,"
                        " case when c then %s::uuid end, case when c then now() end, case when s then now() end,"
                        " now(), now() from (values (%s, %s)) as w (c, s)",
                        *(row.id, row.seq + place, state, self.boot, state is CLAIMED, state is SETTLED),
                    )

    def age(self, seconds: int = 300) -> None:
        """Every Run is older than it was."""
        self.execute("update runs_run set updated_at = updated_at - make_interval(secs => %s)", seconds)

    def everything(self) -> list[Any]:
        """All that is stored of Runs."""
        return self.execute(
            "select to_jsonb(r), to_jsonb(d) from runs_run r "
            "left join runs_rundelivery d on d.run_id = r.id order by r.id"
        )


@pytest.fixture
def desk(vessel_url: str) -> Iterator[Desk]:
    desk = Desk(vessel_url)
    yield desk
    desk.connection.close()


@pytest.fixture
def look(vessel_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """An examination whose registry carries on the Runs that `Desk.place` writes."""
    registry = PatternRegistry(PATTERNS)
    exact = registry.exact

    def known(key: str, revision: str, digest: str) -> AnyPattern:
        return quick if key == "p" else exact(key, revision, digest)

    monkeypatch.setattr(registry, "exact", known)
    monkeypatch.setattr(wiring, "registry", lambda: registry)
    return lambda: examine(a_config(), tmp_path, vessel_url)


def a_row(status: RunStatus, *states: DeliveryState, **more: Any) -> Row:
    return Row(status, states, **more)


def guarded(url: str) -> psycopg.Connection[Any]:
    """A connection that holds the one-Vessel lock, as a Vessel elsewhere would."""
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("select pg_advisory_lock(%s::bigint)", (LOCK_KEY,))
    return connection


async def broker(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await ensure_tables(connection)


def found(report: Report) -> dict[str, Finding]:
    assert len({finding.check for finding in report.findings}) == len(report.findings)
    return {finding.check: finding for finding in report.findings}


def test_a_fresh_database_is_in_order(look: Look) -> None:
    report = look()
    assert report.ok
    assert report.facts["migrations"] == {"pending": [], "unknown": []}
    assert report.facts["connections"]["total"] < 40
    assert report.facts["vessel"] == {"running": False}
    assert report.facts["work"] == {}


def test_a_database_without_our_tables_says_which_command_makes_them(empty_url: str, tmp_path: Path) -> None:
    (finding,) = examine(a_config(), tmp_path, empty_url).findings
    assert finding.check == "migrations"
    assert finding.remedy == "Run `lychd migrate`."


def test_a_database_of_a_later_version_is_told(look: Look, desk: Desk) -> None:
    desk.execute("insert into django_migrations (app, name, applied) values ('runs', '9999_later', now())")
    assert "runs.9999_later" in found(look())["migrations"].sentence


def test_a_server_that_does_not_answer_is_one_finding(tmp_path: Path) -> None:
    (finding,) = examine(a_config(), tmp_path, "postgresql://x@127.0.0.1:1/nothing").findings
    assert finding.check == "database"
    assert finding.sentence.count("\n") == 0


def test_too_few_connections_are_told_with_figures(look: Look, desk: Desk) -> None:
    name = desk.execute("select current_database()")[0][0]
    desk.execute(f"alter database {name} connection limit 7")
    finding = found(look())["connections"]
    assert "PostgreSQL allows it 7" in finding.sentence
    assert finding.remedy.startswith("Raise the database's CONNECTION LIMIT")


def test_patterns_that_cannot_be_loaded_are_told_and_the_rest_is_looked_at(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> PatternRegistry:
        raise PatternError("Node 'a' of 'tidy' leads nowhere.")

    monkeypatch.setattr(wiring, "registry", broken)
    report = look()
    assert "Node 'a' of 'tidy' leads nowhere" in found(report)["configuration"].sentence
    assert "work" in report.facts


def test_work_that_waits_without_a_vessel_names_the_command_that_starts_one(look: Look, desk: Desk) -> None:
    queued = [a_row(S.QUEUED, PENDING), a_row(S.QUEUED, SETTLED, PUBLISHED)]
    running = a_row(S.RUNNING, CLAIMED)
    desk.place(*queued, running)
    report = look()
    assert report.facts["work"] == {"queued": 2, "running": 1}
    assert found(report)["queued"].count == 2
    assert found(report)["queued"].remedy.startswith("Start one: `lychd up`")
    assert found(report)["orphaned"].runs == (str(running.id),)
    assert set(found(report)) == {"queued", "orphaned"}
    assert "died without a word" in dict(report.lines)["vessel"]


async def test_under_a_vessel_only_what_is_really_stuck_is_found(look: Look, desk: Desk, vessel_url: str) -> None:
    await broker(vessel_url)
    healthy = [a_row(S.QUEUED, PENDING), a_row(S.QUEUED, PUBLISHED, seq=3), a_row(S.RUNNING, CLAIMED)]
    healthy += [a_row(S.AWAITING_CONSENT, SETTLED), a_row(S.AWAITING_HARDWARE, CLAIMED), a_row(S.DONE, SETTLED)]
    desk.place(*healthy)
    for run in healthy[:2]:
        key = ids.job_key(run.id, run.current)
        desk.execute("insert into saq_jobs (key, job, queue, status) values (%s, '', 'runs', 'queued')", key)
    desk.age()
    desk.place(a_row(S.QUEUED, PENDING))  # younger than a minute
    with guarded(vessel_url):
        report = await asyncio.to_thread(look)
    assert report.findings == []
    assert dict(report.lines)["vessel"].startswith("running: host here, pid 1")

    desk.execute("update saq_jobs set status = 'failed'")
    desk.execute("update runs_rundelivery set last_error = 'the broker is away'")
    with guarded(vessel_url):
        report = await asyncio.to_thread(look)
    assert found(report)["queued"].count == 2
    assert "(the broker is away)" in found(report)["queued"].sentence


def test_each_kind_of_stuck_work_is_found_with_its_runs(look: Look, desk: Desk, vessel_url: str) -> None:
    held = a_row(S.QUEUED, HELD)
    cancelling = a_row(S.CANCELLING, SETTLED)
    quarantined = a_row(S.QUEUED, PENDING, quarantined=True)
    orphan = a_row(S.RUNNING, CLAIMED)
    odd = [a_row(S.QUEUED), a_row(S.QUEUED, CLAIMED), a_row(S.RUNNING, PENDING), a_row(S.AWAITING_TIMER)]
    foreign = a_row(S.QUEUED, HELD, road="fleet")
    desk.place(held, cancelling, quarantined, orphan, *odd, foreign)
    desk.execute("update runs_rundelivery set boot_id = gen_random_uuid() where run_id = %s", orphan.id)
    desk.age()
    with guarded(vessel_url):
        report = look()
    by_check = {check: (finding.count, set(finding.runs)) for check, finding in found(report).items()}
    assert by_check == {
        "held": (1, {str(held.id)}),
        "cancelling": (1, {str(cancelling.id)}),
        "quarantined": (1, {str(quarantined.id)}),
        "orphaned": (1, {str(orphan.id)}),
        "contradictory": (4, {str(run.id) for run in odd}),
        "broker": (None, set()),
    }
    assert found(report)["quarantined"].sentence == "1 Run quarantined, waiting for a person (bad)."


def test_what_cannot_be_stopped_is_told_at_once_with_its_reason(look: Look, desk: Desk, vessel_url: str) -> None:
    cancelling, failing, fine = a_row(S.CANCELLING, CLAIMED), a_row(S.RUNNING, CLAIMED), a_row(S.CANCELLING, SETTLED)
    desk.place(cancelling, failing, fine)
    desk.execute(
        "update runs_run set containment_error = 'Not contained: consent: it is away.' where id = any(%s)",
        [cancelling.id, failing.id],
    )
    with guarded(vessel_url):
        by_check = found(look())
    assert set(by_check) - {"broker"} == {"uncontained", "custody"}
    assert by_check["uncontained"].runs == (str(cancelling.id),)
    assert by_check["custody"].runs == (str(failing.id),)
    for check in ("uncontained", "custody"):
        assert "(Not contained: consent: it is away.)" in by_check[check].sentence


def test_a_quarantined_run_is_shown_even_when_it_has_ended(look: Look, desk: Desk) -> None:
    run = a_row(S.DONE, SETTLED, quarantined=True)
    desk.place(run)
    assert found(look())["quarantined"].runs == (str(run.id),)


def report_of(desk: Desk, *degraded: tuple[Row | None, str], ready: bool = False, more: int = 0) -> None:
    """The last boot's recovery could not judge these."""
    told = {
        "complete": False,
        "degraded": [{"run": str(row.id) if row else None, "reason": reason} for row, reason in degraded],
        "degraded_more": more,
    }
    desk.execute(
        "update runs_boot set report = %s::jsonb, ended_at = now(), end_reason = 'refused',"
        " ready_at = case when %s then now() end",
        json.dumps(told),
        ready,
    )


@pytest.mark.contract("REC-19")
def test_a_refused_start_names_each_run_with_its_reason_and_what_to_do_as_it_stands_now(look: Look, desk: Desk) -> None:
    bad, cancelling = a_row(S.RUNNING, PENDING), a_row(S.CANCELLING, SETTLED)
    parked, revision, mismatch = a_row(S.AWAITING_TIMER, SETTLED), a_row(S.QUEUED, PENDING), a_row(S.DONE, SETTLED)
    dealt_with, aside, gone = a_row(S.DONE, SETTLED), a_row(S.QUEUED, PENDING, quarantined=True), a_row(S.QUEUED)
    desk.place(bad, cancelling, parked, revision, mismatch, dealt_with, aside)
    desk.execute("update runs_run set wait_kind = 'oracle' where id = %s", parked.id)
    desk.execute("update runs_run set pattern_key = 'lost' where id = %s", revision.id)
    desk.execute(
        "insert into runs_step (id, run_id, tenant, epoch, seq, tokens_before, kind, data, meta, at)"
        " select gen_random_uuid(), r.id, 'default', 'e', 0, 0, 'done', jsonb_build_object('status', s), '{}', now()"
        " from (values (%s::uuid, 'done'), (%s::uuid, 'failed')) as r (id, s)",
        dealt_with.id,
        mismatch.id,
    )
    everyone = (bad, cancelling, parked, revision, mismatch, dealt_with, aside, gone)
    report_of(
        desk, *((row, f"reason of {row.id}\x1b") for row in everyone), (None, "waits: the server is away"), more=7
    )
    finding = found(look())["recovery"]
    assert "was refused: its recovery could not judge 12 Runs. 7 more are not named here." in finding.sentence
    named = {one.run: one for one in finding.named}
    assert set(named) == {*(str(row.id) for row in (bad, cancelling, parked, revision, mismatch)), None}
    assert named[str(bad.id)].reason == f"reason of {bad.id}\\x1b."
    for row, remedy in (
        (bad, f"Start again if the reason has gone. Or: `lychd quarantine {bad.id} --reason"),
        (cancelling, "the cancellation is tried anew"),
        (parked, "Install the app that brings this kind of wait (oracle) again"),
        (revision, "Install lost 1 again"),
        (mismatch, "only its evidence is wrong"),
    ):
        assert remedy in named[str(row.id)].remedy
        assert f"`lychd quarantine {row.id} --reason '…'`" in named[str(row.id)].remedy
    assert named[None].remedy.startswith("Repair what this names")


def test_a_refused_start_whose_runs_were_dealt_with_is_a_fact_and_no_finding(look: Look, desk: Desk) -> None:
    aside = a_row(S.QUEUED, PENDING, quarantined=True)
    desk.place(aside)
    report_of(desk, (aside, "it was bad"))
    report = look()
    assert set(found(report)) == {"quarantined"}
    assert report.facts["recovery"].endswith("start again")


def test_a_vessel_of_the_memory_profile_that_started_nevertheless_is_told_while_it_runs(
    look: Look, desk: Desk, vessel_url: str
) -> None:
    bad = a_row(S.CANCELLING, SETTLED)
    desk.place(bad)
    report_of(desk, (bad, "it was bad"), ready=True)
    assert "recovery" not in found(look())
    desk.execute("update runs_boot set ended_at = null")
    with guarded(vessel_url):
        assert "started although its recovery could not judge 1 Run" in found(look())["recovery"].sentence


def test_many_are_counted_and_some_are_named(look: Look, desk: Desk) -> None:
    desk.place(*[a_row(S.QUEUED, PENDING) for _ in range(1200)])
    finding = found(look())["queued"]
    assert (finding.count, len(finding.runs)) == (1200, SHOWN)
    assert finding.sentence.startswith("1,200 Runs queued")


def test_unfinished_runs_whose_revision_is_gone_are_told(look: Look, desk: Desk) -> None:
    parked = [a_row(S.AWAITING_CONSENT, SETTLED), a_row(S.AWAITING_CONSENT, SETTLED), a_row(S.DONE, SETTLED)]
    desk.place(*parked)
    desk.execute("update runs_run set pattern_key = 'gone'")
    finding = found(look())["pinned"]
    assert finding.count == 2
    assert set(finding.runs) == {str(run.id) for run in parked[:2]}
    assert finding.sentence.startswith("2 Runs of gone 1 cannot go on: ")


async def test_a_running_vessel_is_named_and_asked_whether_it_is_ready(
    vessel_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = a_config()
    script = Script()
    conditions = [
        {"name": "database", "ok": True, "reason": None, "age": 0.1},
        {"name": "relay delivery", "ok": False, "reason": "no pass\x1b for 60 s", "age": 60.0},
    ]
    script.answer("GET", "/readyz", Answer(503, {"ready": False, "checks": conditions}))
    async with living(vessel_url, monkeypatch=monkeypatch) as life:
        report = await asyncio.to_thread(examine, config, tmp_path, vessel_url)
        assert report.ok
        assert report.facts["vessel"]["boot"] == str(life.vessel.boot_id)
        assert "not asked" in dict(report.lines)["readiness"]
        assert report.facts["broker"] == {"tables": True}

        with scripted(script) as url:
            note = {"url": url, "pid": 1, "boot": str(life.vessel.boot_id)}
            (tmp_path / "vessel.json").write_text(json.dumps(note))
            report = await asyncio.to_thread(examine, config, tmp_path, vessel_url)
        assert [finding.sentence for finding in report.findings] == ["relay delivery: no pass\\x1b for 60 s."]
        assert "authorization" not in script.asked[0].headers

        report = await asyncio.to_thread(examine, config, tmp_path, vessel_url)
        assert found(report)["readiness"].sentence.startswith("The Vessel does not answer: Nobody answers at ")
    report = await asyncio.to_thread(examine, config, tmp_path, vessel_url)
    assert report.ok
    assert "the last ended" in dict(report.lines)["vessel"]


def test_looking_changes_nothing(look: Look, desk: Desk) -> None:
    runs = [a_row(S.QUEUED, PENDING), a_row(S.QUEUED, HELD), a_row(S.RUNNING, CLAIMED)]
    desk.place(*runs)
    before = desk.everything()
    look()
    assert desk.everything() == before


def test_the_command_tells_people_and_programs_and_ends_with_1_when_something_is_wrong(
    look: Look, desk: Desk, vessel_url: str, tmp_path: Path, settings: Any
) -> None:
    settings.DATABASE_URL = vessel_url
    env = {"LYCHD_DATA": str(tmp_path)}
    ended = lychd_here("doctor", env=env)
    assert (ended.returncode, ended.stdout.splitlines()[-1], ended.stderr) == (0, "✓ nothing is wrong", "")
    assert "PostgreSQL allows" in ended.stdout

    run = a_row(S.QUEUED, PENDING)
    desk.place(run)
    ended = lychd_here("doctor", env=env)
    assert ended.returncode == 1
    assert "✗ queued: 1 Run queued while no Vessel runs. Start one" in ended.stdout
    assert str(run.id) in ended.stdout

    told = json.loads(lychd_here("doctor", "--json", env=env).stdout)
    (finding,) = told["findings"]
    assert (told["ok"], finding["check"], finding["runs"]) == (False, "queued", [str(run.id)])
