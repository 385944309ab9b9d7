"""The page of the system without a Vessel: what the tables say, to whom. With one: `tests/e2e`."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from lychd.dashboard import system
from runs.models import Boot
from runs.relays.supervisor import RelayStatus
from tests.support.admin_consents import a_consent, a_user, logged_in
from tests.support.admin_runs import a_run, everything, many_runs
from tests.support.dashboards import EVIL, assert_harmless, part, text_of

pytestmark = pytest.mark.django_db

SEES = ("runs.view_boot", "runs.view_vesselslot")

DELIVERY = """
insert into runs_rundelivery (run_id, tenant, enqueue_seq, queue_name, priority, resume, state, publish_attempts,
                              claim_id, boot_id, claimed_at, created_at, updated_at)
values (%s, 'default', 1, 'runs', 50, false, %s, 0, gen_random_uuid(), %s, now(), now(), now() - interval '2 minutes')
"""
BROKER = """
create table if not exists saq_jobs (key text primary key, job bytea not null, queue text, status text,
                                     priority smallint default 0, scheduled bigint, expire_at bigint, touched bigint)
"""


def a_hop(state: str, boot: uuid.UUID | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(DELIVERY, [str(a_run(status="queued")), state, str(boot or uuid.uuid4())])


def a_job(status: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(BROKER)
        cursor.execute(
            "insert into saq_jobs (key, job, queue, status, scheduled) values (%s, '', 'runs', %s, 0)",
            [str(uuid.uuid4()), status],
        )


def test_it_needs_one_of_two_rights_and_shows_boots_only_with_the_right_to_see_them() -> None:
    everything({"a": 1})
    Boot.objects.update(report={"complete": False, "reason": "It could not judge 1 Run."})
    assert "runs.view_boot" in text_of(logged_in(a_user("anna", "runs.view_run")), "/system/", 403)
    less = text_of(logged_in(a_user("bert", "runs.view_vesselslot")), "/system/")
    assert "Last reconciliation</h2>" not in less
    assert "It could not judge" not in less
    assert "It could not judge 1 Run." in text_of(logged_in(a_user("carl", *SEES)), "/system/")


def test_a_database_that_no_vessel_has_held_says_so() -> None:
    text = text_of(logged_in(a_user("anna", *SEES)), "/system/")
    assert "No Vessel has held this database yet" in text
    assert "No report is kept." in text
    assert "PostgreSQL" in part(text, "database")
    assert "runs_run" in part(text, "database")


def test_lanes_show_the_ledgers_view_beside_the_brokers_and_where_they_differ() -> None:
    for state in ("held", "pending", "published", "published", "claimed"):
        a_hop(state)
    for status in ("queued", "active", "active", "aborting", "complete"):
        a_job(status)
    (lane,) = [one for one in system._lanes(None) if one.name == "runs"]
    assert (lane.pending, lane.published, lane.claimed) == (2, 2, 1)
    assert (lane.queued, lane.active, lane.aborting) == (1, 2, 1)
    assert lane.differs == "2 published and 1 queued at the broker; 1 claimed and 3 active at the broker"
    assert lane.waits == "2 min 0 s"
    text = part(text_of(logged_in(a_user("anna", *SEES)), "/system/"), "lanes")
    assert "2 published and 1 queued at the broker" in text


def a_vessel(boot: uuid.UUID, *relays: RelayStatus) -> Any:
    return SimpleNamespace(supervisor=SimpleNamespace(status={one.name: one for one in relays}), boot_id=boot)


def test_each_relay_is_told_with_its_last_pass_its_error_and_what_it_would_find_to_do() -> None:
    boot = uuid.uuid4()
    for _ in range(3):
        a_hop("pending")
    a_hop("claimed", boot)
    a_hop("claimed")
    a_run(status="cancelling")
    answered = uuid.uuid4()
    a_consent(id=answered, run=a_run(status="awaiting_consent", owner=str(answered)), status="granted", by="anna")
    a_consent()
    found = {
        one.name: one
        for one in system._relays(
            a_vessel(
                boot,
                RelayStatus("delivery", 1.0, passes=3, last_error="OSError: away"),
                RelayStatus("custody", 2.0),
                RelayStatus("cancel", 2.0),
                RelayStatus("waits consent", 2.0),
                RelayStatus("limits", 15.0),
            )
        )
    }
    assert {name: one.backlog for name, one in found.items()} == {
        "delivery": "3",
        "custody": "1",
        "cancel": "1",
        "waits consent": "1",
        "limits": None,
    }
    assert (found["delivery"].ok, found["delivery"].error) == (False, "OSError: away")
    assert found["custody"].last == "no pass yet"


def test_a_report_is_shown_with_its_counts_and_the_runs_that_could_not_be_judged() -> None:
    everything({"a": 1})
    run = uuid.uuid4()
    Boot.objects.update(
        host=EVIL,
        report={
            "complete": False,
            "reason": EVIL,
            "seconds": 75.2,
            "counts": {"fenced_rows": 4, "parked": 0},
            "degraded": [{"run": str(run), "reason": EVIL}] * 60,
            "degraded_more": 7,
            "notes": [EVIL],
        },
    )
    answer = logged_in(a_user("anna", *SEES)).get("/system/")
    assert_harmless(answer)
    text = part(answer.content.decode(), "recovery")
    assert "Degraded" in text
    assert "1 min 15 s" in text
    assert '<dt>fenced rows</dt><dd class="number">4</dd>' in text
    assert "parked" not in text
    assert text.count(f"/runs/{run}/") == system.MOST_DEGRADED
    assert "And 17 more." in text


def test_no_query_walks_the_runs() -> None:
    many_runs(2_000)
    with CaptureQueriesContext(connection) as seen:
        text_of(logged_in(a_user("anna", *SEES)), "/system/")
    for one in seen.captured_queries:
        if " runs_run " in one["sql"]:
            assert "limit" in one["sql"].lower(), one["sql"]
