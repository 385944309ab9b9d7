"""The dashboard's pages of Runs: who sees what, filters in the address, bounded queries, cancelling only by POST."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from runs.models import Run, Step
from tests.support.admin_consents import a_user, logged_in
from tests.support.admin_runs import a_run as a_row

pytestmark = pytest.mark.django_db

LIST = "/runs/"


def a_run(**values: Any) -> Run:
    return Run.objects.get(pk=a_row(**values))


def page_of(run: Any) -> str:
    return f"{LIST}{run.pk}/"


def text_of(client: Client, address: str, status: int = 200) -> str:
    response = client.get(address)
    assert response.status_code == status, (address, response.status_code)
    return response.content.decode()


@pytest.fixture
def watcher() -> Client:
    return logged_in(a_user("wanda", "runs.view_run"))


def test_without_a_login_or_the_right_nothing_is_seen() -> None:
    run = a_run()
    for address in (LIST, page_of(run)):
        assert Client().get(address).status_code == 302
        assert "runs.view_run" in text_of(logged_in(a_user(f"u{len(address)}")), address, 403)


def test_runs_of_another_tenant_do_not_exist(watcher: Client) -> None:
    mine, foreign = a_run(), a_run(tenant="others")
    text = text_of(watcher, LIST)
    assert str(mine.pk) in text
    assert str(foreign.pk) not in text
    text_of(watcher, page_of(foreign), 404)
    text_of(watcher, f"{LIST}{uuid.uuid4()}/", 404)


def test_filters_are_in_the_address_and_nonsense_is_said_in_a_sentence(watcher: Client) -> None:
    done, failed = a_run(status="done"), a_run(status="failed", error="boom")
    text = text_of(watcher, LIST + "?status=failed")
    assert str(failed.pk) in text
    assert str(done.pk) not in text
    assert "There is no such status" in text_of(watcher, LIST + "?status=odd")
    assert "A session is named by its id" in text_of(watcher, LIST + "?session=odd")
    assert "A time is written as" in text_of(watcher, LIST + "?since=odd")
    assert str(done.pk) not in text_of(watcher, LIST + "?pattern=nothing")
    assert watcher.get(LIST + "?older=odd").status_code == 302


def test_a_payload_is_for_those_who_may_see_it_and_nothing_of_it_is_markup(watcher: Client) -> None:
    run = a_run(input={"text": "<script>alert(1)</script>"})
    assert "alert(1)" not in text_of(watcher, page_of(run))
    seer = logged_in(a_user("sara", "runs.view_run", "runs.view_payload"))
    response = seer.get(page_of(run))
    text = response.content.decode()
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    policy = response.headers["Content-Security-Policy"]
    assert "'unsafe-inline'" not in policy


def test_what_happened_is_told_in_words_in_order(watcher: Client) -> None:
    run = a_run(status="running")
    Step.objects.filter(run=run).delete()
    for seq, (kind, data) in enumerate(
        [
            ("status", {"status": "running", "hop": 0}),
            ("node", {"phase": "entered", "visit": 0}),
            ("node", {"phase": "left", "visit": 0, "to": "two", "ms": 3.5}),
        ]
    ):
        Step.objects.create(
            id=uuid.uuid4(), run=run, epoch="e", seq=seq, kind=kind, node="one", data=data, at=run.created_at
        )
    text = text_of(watcher, page_of(run))
    assert text.index("entered") < text.index("→ two")
    assert "left after 3.5 ms" in text


@pytest.mark.contract("CAN-2")
def test_cancelling_asks_first_is_done_by_post_alone_and_is_written_down(watcher: Client) -> None:
    run = a_run(status="queued")
    address = f"{page_of(run)}cancel/"
    text_of(watcher, address, 403)
    olga = logged_in(a_user("olga", "runs.view_run", "runs.cancel_run"))
    assert "no worker takes it up any more" in text_of(olga, address)
    assert Run.objects.get(pk=run.pk).status == "queued"
    assert Client(enforce_csrf_checks=True).post(address).status_code in {302, 403}
    assert olga.post(address).status_code == 302
    found = Run.objects.get(pk=run.pk)
    assert (found.status, found.cancelled_by) == ("cancelling", "olga")
    (entry,) = LogEntry.objects.filter(object_id=str(run.pk))
    assert "from the dashboard" in entry.change_message


def test_a_page_asks_a_bounded_number_of_questions(watcher: Client) -> None:
    runs = [a_run() for _ in range(60)]
    for address, most in ((LIST, 14), (page_of(runs[0]), 18)):
        with CaptureQueriesContext(connection) as queries:
            text_of(watcher, address)
        assert len(queries) <= most, [query["sql"][:100] for query in queries]
    text = text_of(watcher, LIST)
    assert text.count("<tr data-run=") == 50
    assert 'rel="next"' in text
