"""Cancelling from the admin: asked on a page of its own, elected in the ledger, written down."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.contrib.admin.models import LogEntry
from django.db import DatabaseError, connection
from django.test import Client
from django.urls import reverse

from runs.admin import cancel as cancelling
from runs.ledger.notify import CHANNEL
from runs.models import Run
from tests.support.admin_runs import a_run, everything, root, staff
from tests.support.home import Home
from tests.support.waiting import eventually_sync

pytest_plugins = ["tests.support.vessel_fixtures"]
pytestmark = pytest.mark.django_db

LIST = "/admin/runs/run/"
REASON = "Not contained: consent: no acknowledgement within 10 s."


def chosen(*runs: Any, **more: str) -> dict[str, Any]:
    """What the list's form sends, or the page's button."""
    return {"action": "cancel", "_selected_action": [str(run) for run in runs], **more}


def ask(client: Client, *runs: Any, **more: str) -> str:
    response = client.post(LIST, chosen(*runs, **more))
    assert response.status_code == 200
    return response.content.decode()


def confirmed(client: Client, *runs: Any, **more: str) -> str:
    """The page after the confirmation."""
    return client.post(LIST, chosen(*runs, post="yes", **more), follow=True).content.decode()


def statuses(*runs: uuid.UUID) -> list[str]:
    found = dict(Run.objects.filter(pk__in=runs).values_list("pk", "status"))
    return [found[run] for run in runs]


def page(run: uuid.UUID) -> str:
    return reverse("admin:runs_run_change", args=[run])


def test_the_page_that_asks_names_each_run_says_what_happens_and_changes_nothing() -> None:
    owner = str(uuid.uuid4())
    queued, running = a_run(status="queued"), a_run(status="running")
    parked, ended = a_run(status="awaiting_consent", owner=owner), a_run(status="done")
    shown = ask(root(), queued, running, parked, ended)
    for run, said in (
        (queued, "no worker takes it up any more"),
        (running, "What it has done outside already stays done"),
        (parked, "no later answer brings the Run back"),
        (ended, "It is done already: nothing happens"),
    ):
        assert said in shown.partition(page(run))[2].partition("</li>")[0]
    assert "No Vessel holds the database" in shown
    assert statuses(queued, running, parked, ended) == ["queued", "running", "awaiting_consent", "done"]
    assert not LogEntry.objects.exists()


def test_it_asks_without_inline_scripts_and_shows_no_warning_while_a_vessel_holds_the_database() -> None:
    everything({})
    client = root()
    response = client.post(LIST, chosen(a_run(status="queued")))
    text = response.content.decode()
    assert "No Vessel holds the database" not in text
    assert "unsafe" not in response.headers["Content-Security-Policy"]
    assert not re.search(r"<[^>]*\s(?:on[a-z]+|style)\s*=", text)


@pytest.mark.contract("CAN-2")
def test_the_confirmation_elects_each_live_run_in_the_persons_name_and_writes_it_down() -> None:
    queued, parked = a_run(status="queued"), a_run(status="awaiting_consent", owner=str(uuid.uuid4()))
    ended = a_run(status="done")
    shown = confirmed(root(), queued, parked, ended)
    assert statuses(queued, parked, ended) == ["cancelling", "cancelling", "done"]
    row = Run.objects.get(pk=parked)
    assert (row.cancelled_by, row.cancel_requested_at is None, row.wait_kind) == ("root", False, None)
    assert "They are cancelled once everything that acts for them has stopped." in shown
    assert f"{ended} was done before: nothing was changed." in shown
    entries = {entry.object_id: entry.get_change_message() for entry in LogEntry.objects.all()}
    assert entries == {str(queued): "Cancelled while queued.", str(parked): "Cancelled while awaiting_consent."}


@pytest.mark.contract("CAN-5")
def test_a_run_that_is_cancelling_may_be_asked_for_again() -> None:
    run = a_run(status="cancelling")
    client = root()
    assert "what could not be stopped yet is tried again now" in ask(client, run)
    confirmed(client, run)
    assert LogEntry.objects.get().get_change_message() == "Asked again to cancel it."


def log_in(client: httpx2.Client, password: str) -> None:
    page = client.get("/admin/login/").text
    form = {"csrfmiddlewaretoken": token(page), "username": "operator", "password": password, "next": "/admin/"}
    assert client.post("/admin/login/", data=form).status_code == 302


def token(page: str) -> str:
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert found
    return found[1]


@pytest.mark.contract("CAN-4", "CAN-7")
def test_a_person_cancels_a_running_run_on_the_pages_of_a_vessel(vessel_url: str, tmp_path: Path) -> None:
    home = Home(tmp_path, vessel_url)
    with home.vessel():
        run = home.json("submit", "talk", "--input", json.dumps({"wait_for": str(tmp_path / "never")}))["id"]
        eventually_sync(lambda: home.json("show", run)["status"] == "running", within=30)
        password = re.search(r"One-time password of operator: (\S+)", (tmp_path / "log").read_text())
        assert password
        url = json.loads((tmp_path / "vessel.json").read_text())["url"]
        with httpx2.Client(base_url=url, headers={"Origin": url}, timeout=30) as client:
            log_in(client, password[1])
            page = client.get(f"{LIST}{run}/change/").text
            asked = client.post(LIST, data={"csrfmiddlewaretoken": token(page), **chosen(run, from_page="1")})
            assert (asked.status_code, "It is at work" in asked.text) == (200, True)
            assert home.json("show", run)["status"] == "running"
            form = {"csrfmiddlewaretoken": token(asked.text), **chosen(run, post="yes", from_page="1")}
            assert client.post(LIST, data=form).headers["location"] == f"{LIST}{run}/change/"
            code, out, _ = home.lychd("follow", run, "--json")
            assert code == 2
            told = [json.loads(line) for line in out.splitlines()]
            said = [one["data"] for one in told if one.get("kind") in {"status", "done"}]
            assert [one["status"] for one in said] == ["queued", "running", "cancelling", "cancelled"]
            assert said[2]["by"] == "operator"
            assert "It was cancelled by operator" in client.get(f"{LIST}{run}/change/").text


@pytest.mark.django_db(transaction=True)
def test_the_election_wakes_the_vessel_and_so_does_asking_again() -> None:
    run = a_run(status="queued")
    client = root()
    with connection.cursor() as cursor:
        cursor.execute(f"listen {CHANNEL}")
    heard: Any = connection.connection
    for _ in range(2):
        confirmed(client, run)
        assert [note.payload for note in heard.notifies(timeout=5, stop_after=1)] == [str(run)]


def test_the_page_of_a_run_has_a_button_that_asks_first_and_leads_back() -> None:
    run, ended = a_run(status="running"), a_run(status="done")
    client = root()
    assert "Cancel this Run…" in client.get(page(run)).content.decode()
    assert "Cancel this Run…" not in client.get(page(ended)).content.decode()
    shown = ask(client, run, from_page="1")
    assert f'href="{page(run)}">No, go back' in shown
    assert 'name="from_page"' in shown
    assert statuses(run) == ["running"]
    response = client.post(LIST, chosen(run, post="yes", from_page="1"))
    assert (response.status_code, response["Location"]) == (302, page(run))
    assert "It has been cancelling for" in client.get(page(run)).content.decode()


def test_only_who_may_cancel_sees_and_does_it() -> None:
    run = a_run(status="queued")
    viewer, canceller = staff("view_run", name="viewer"), staff("view_run", "cancel_run", name="canceller")
    blind = staff("cancel_run", name="blind")
    assert "Cancel selected Runs" not in viewer.get(LIST).content.decode()
    assert "Cancel this Run…" not in viewer.get(page(run)).content.decode()
    for client in (viewer, blind):
        for more in ({}, {"post": "yes"}):
            assert client.post(LIST, chosen(run, **more)).status_code == 403
    assert Client().post(LIST, chosen(run, post="yes")).status_code == 302  # to the login
    assert statuses(run) == ["queued"]
    assert "Cancel selected Runs" in canceller.get(LIST).content.decode()
    confirmed(canceller, run)
    assert statuses(run) == ["cancelling"]


def test_runs_of_other_tenants_cannot_be_reached_however_they_are_named() -> None:
    own, foreign = a_run(status="queued"), a_run(status="queued", tenant="lab")
    client = staff("view_run", "cancel_run")
    assert str(foreign) not in ask(client, own, foreign)
    confirmed(client, foreign)
    confirmed(client, own, foreign, select_across="1")
    assert statuses(own, foreign) == ["cancelling", "queued"]


def test_all_of_them_is_no_answer_and_neither_is_nonsense() -> None:
    runs = [a_run(status="queued") for _ in range(3)]
    client = root()
    shown = confirmed(client, select_across="1")
    assert "Select the Runs that are to be cancelled." in shown
    confirmed(client, "nonsense", "\0", runs[0], select_across="1")
    assert statuses(*runs) == ["cancelling", "queued", "queued"]


def test_it_never_happens_by_get_or_without_the_forms_token() -> None:
    run = a_run(status="queued")
    client = root()
    client.get(LIST, chosen(run, post="yes"), follow=True)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    for more in ({}, {"post": "yes"}):
        assert strict.post(LIST, chosen(run, **more)).status_code == 403
    assert statuses(run) == ["queued"]


def test_an_entry_that_cannot_be_written_does_not_undo_the_election(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(status="queued")

    def refuse(*_: Any, **__: Any) -> Any:
        raise DatabaseError("not today")

    monkeypatch.setattr("django.contrib.admin.options.ModelAdmin.log_change", refuse)
    shown = confirmed(root(), run)
    assert statuses(run) == ["cancelling"]
    assert "could not be written down" in shown


def test_an_election_without_an_answer_is_told_as_unknown_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = sorted((a_run(status="queued") for _ in range(2)), key=lambda run: run.bytes)
    real = cancelling.run_script
    calls: list[Any] = []

    def lossy(script: Any) -> Any:
        calls.append(script)
        if len(calls) == 1:
            raise DatabaseError("the connection is closed")
        return real(script)

    monkeypatch.setattr(cancelling, "run_script", lossy)
    shown = confirmed(root(), other, one)
    assert "It is not known whether " in shown
    assert statuses(one, other) == ["queued", "cancelling"]


def test_what_is_not_stopped_yet_is_told_wherever_a_person_looks() -> None:
    stuck, failing, fine = a_run(status="cancelling"), a_run(status="running"), a_run(status="running")
    Run.objects.filter(pk__in=(stuck, failing)).update(containment_error=REASON)
    client = root()
    for where in (LIST, reverse("admin:index")):
        shown = client.get(where).content.decode()
        alert = shown.partition("lychd-alert")[2].partition("</section>")[0]
        assert (str(stuck) in alert, str(failing) in alert, str(fine) in alert) == (True, True, False), where
        assert REASON in alert
    table = client.get(LIST).content.decode()
    assert "not stopped yet" in table
    assert "failing, containment uncertain" in table
    assert f"Not everything that acts for it is stopped yet. It is tried again: {REASON}" in (
        client.get(page(stuck)).content.decode()
    )
    assert "It has failed on its worker, but it is not certain" in client.get(page(failing)).content.decode()
    for table in ("queued", "done"):
        assert client.get(f"{LIST}?status={table}").status_code == 200
