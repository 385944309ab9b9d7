"""One bad Run is set aside without a Vessel, on the record, and let in again (ruling 15)."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.db import connection
from django.urls import reverse

from lychd.sigils.models import User
from lychd.sigils.operator import ensure_operator
from runs.models import Run
from tests.support.admin_runs import a_run, root, surround
from tests.support.home import Home

pytest_plugins = ["tests.support.vessel_fixtures"]

NOWHERE = "01919191-0000-7000-8000-000000000001"


def quarantine(*words: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("quarantine", *words, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


@pytest.fixture
def operator(tmp_path: Path) -> User:
    return User.objects.get(username=ensure_operator(tmp_path).username)


@pytest.mark.django_db
def test_a_run_is_set_aside_with_its_reason_and_written_down_and_let_in_again(operator: User) -> None:
    run = a_run(status="queued")
    out, err = quarantine(str(run), "--reason", " it kills its worker ")
    assert err == ""
    assert out.startswith(f"Run {run} is in quarantine: nothing claims it, and no start waits for it.")
    row = Run.objects.get(pk=run)
    assert (row.status, row.quarantine_reason, row.quarantined_at is None) == ("queued", "it kills its worker", False)

    quarantine(str(run), "--reason", "for a better reason")
    assert Run.objects.get(pk=run).quarantine_reason == "for a better reason"

    told = json.loads(quarantine(str(run), "--release", "--json")[0])
    assert told == {"run": str(run), "status": "queued", "quarantined": False, "changed": True, "reason": None}
    row = Run.objects.get(pk=run)
    assert (row.quarantine_reason, row.quarantined_at) == (None, None)
    out, _ = quarantine(str(run), "--release")
    assert out == f"Run {run} was not in quarantine; it is queued.\n"

    entries = list(LogEntry.objects.order_by("action_time", "id"))
    assert [entry.user for entry in entries] == [operator] * 3
    assert {entry.object_id for entry in entries} == {str(run)}
    assert [entry.get_change_message().split(". ")[0] for entry in entries] == [
        "Quarantined: it kills its worker",
        "Quarantined: for a better reason",
        "Released from quarantine",
    ]


@pytest.mark.django_db
def test_another_person_may_be_named_and_an_unknown_one_changes_nothing(operator: User) -> None:
    anna = User.objects.create_user("anna")
    run = a_run(status="running")
    out, _ = quarantine(str(run), "--reason", "odd", "--by", "anna")
    assert "goes on to the end of the hop" in out
    assert LogEntry.objects.get().user == anna
    with pytest.raises(CommandError, match="There is no user bert"):
        quarantine(str(run), "--release", "--by", "bert")
    assert Run.objects.get(pk=run).quarantined_at is not None


@pytest.mark.django_db
def test_where_nobody_has_an_account_it_works_all_the_same_and_says_what_is_missing() -> None:
    run = a_run(status="queued")
    _, err = quarantine(str(run), "--reason", "odd")
    assert "only the log has it" in err
    assert Run.objects.get(pk=run).quarantined_at is not None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x\x1b", "--reason", "odd"), r"'x\\\\x1b' is not the id of a Run"),
        ((NOWHERE, "--reason", "odd"), "There is no such Run"),
        ((NOWHERE, "--release"), "There is no such Run"),
        ((NOWHERE, "--reason", "  "), "one line of 1 to 500 printable characters"),
        ((NOWHERE, "--reason", "a\nb"), "one line of 1 to 500 printable characters"),
        ((NOWHERE, "--reason", "a" * 501), "one line of 1 to 500 printable characters"),
        ((NOWHERE,), "--reason --release"),
        ((NOWHERE, "--reason", "a", "--release"), "not allowed with"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(operator: User, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        quarantine(*words)
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
def test_a_run_that_ended_is_set_aside_only_where_its_evidence_contradicts(operator: User) -> None:
    """A contradiction keeps a durable Vessel from starting; a Run that is simply over is in nobody's way."""
    proved, contradicts, unproved = a_run(status="done"), a_run(status="done"), a_run(status="done")
    for run, status in ((proved, "done"), (contradicts, "failed")):
        surround(run, {"status": status})
    with pytest.raises(CommandError, match="in nobody's way"):
        quarantine(str(proved), "--reason", "odd")
    for run in (contradicts, unproved):
        quarantine(str(run), "--reason", "odd")
    assert set(Run.objects.filter(quarantined_at__isnull=False).values_list("pk", flat=True)) == {contradicts, unproved}
    client = root()
    for page in (reverse("admin:runs_run_changelist"), reverse("admin:index")):
        shown = client.get(page).content.decode()
        assert str(contradicts) in shown, page
    assert str(contradicts) in client.get(reverse("admin:runs_run_changelist") + "?quarantined=yes").content.decode()


@pytest.mark.django_db(transaction=True)
def test_without_its_entry_in_the_log_nothing_is_changed(operator: User) -> None:
    run = a_run(status="queued")
    with connection.cursor() as cursor:
        cursor.execute("alter table django_admin_log rename to gone")
    try:
        with pytest.raises(CommandError, match="The database cannot be used"):
            quarantine(str(run), "--reason", "odd")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("alter table gone rename to django_admin_log")
    assert Run.objects.get(pk=run).quarantined_at is None


def refused(home: Home) -> str:
    """Start a Vessel that does not start; what it says."""
    with home.start("up", "--bind", "127.0.0.1:0", stdin=subprocess.DEVNULL) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    return err


def named(home: Home) -> Any:
    """What the doctor says of the last start: its finding, and what is named in it by Run."""
    code, out, _ = home.lychd("doctor", "--json")
    report = json.loads(out)
    (finding,) = [one for one in report["findings"] if one["check"] == "recovery"]
    assert code == 1
    return finding, {one["run"]: one for one in finding["named"]}


@pytest.mark.contract("REC-19")
def test_a_refused_start_is_explained_run_by_run_and_what_the_doctor_says_helps(
    vessel_url: str, tmp_path: Path
) -> None:
    home = Home(tmp_path, vessel_url)
    with home.vessel():
        bad = home.json("submit", "talk", "--input", json.dumps({"wait_for": str(tmp_path / "never")}))["id"]
        good = home.json("submit", "talk")["id"]
    with psycopg.connect(vessel_url, autocommit=True) as eyes:
        # The Vessel was killed; what it left behind is damaged further than it can be judged.
        eyes.execute("delete from runs_checkpoint where run_id = %s", (bad,))
        eyes.execute("delete from runs_rundelivery where run_id = %s", (bad,))
    assert "Recovery could not judge 1 Run " in refused(home)

    finding, by_run = named(home)
    assert set(by_run) == {bad}
    assert finding["sentence"].endswith("was refused: its recovery could not judge 1 Run.")
    assert f"lychd quarantine {bad} --reason" in by_run[bad]["remedy"]
    code, out, _ = home.lychd("doctor")
    assert (code, f"    {bad}: {by_run[bad]['reason']}" in out) == (1, True)

    code, out, err = home.lychd("quarantine", bad, "--reason", "its hop is lost")
    assert (code, err, f"lychd cancel {bad}" in out) == (0, "", True)
    code, out, _ = home.lychd("doctor", "--json")
    report = json.loads(out)
    assert report["facts"]["recovery"] == "what the last start stopped at has been dealt with: start again"
    assert [one["check"] for one in report["findings"] if one["check"] in {"recovery", "quarantined"}] == [
        "quarantined"
    ]
    with home.vessel():
        _, out, _ = home.lychd("runs", "--status", "done")
        assert "In quarantine, waiting for a person:" in out
        assert bad in out.partition("In quarantine")[2]
        assert home.lychd("follow", good)[0] in {0, 1}
        code, out, _ = home.lychd("doctor", "--json")
        assert [one["check"] for one in json.loads(out)["findings"]] == ["quarantined"]
