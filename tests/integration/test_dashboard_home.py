"""The front page: what needs this person and nothing else, in few queries whatever the number of Runs."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from consents.models import Consent, ConsentVote
from lychd.dashboard import needs
from lychd.sigils.models import User
from runs.models import Run
from tests.support.admin_consents import APPROVER, a_consent, a_user, approver, logged_in, many_consents
from tests.support.admin_runs import a_run, many_runs, root
from tests.support.dashboards import EVIL, assert_harmless, part, text_of

pytestmark = pytest.mark.django_db


def needed(client: Client) -> str:
    return part(text_of(client, "/"), "needs")


def touch(run: uuid.UUID, **values: Any) -> None:
    Run.objects.filter(pk=run).update(**values)


def test_without_a_login_it_shows_the_way_in_and_nothing_of_any_run() -> None:
    a_consent(title="A secret")
    text = text_of(Client(), "/")
    assert "/login/" in text
    assert "A secret" not in text


def test_a_fresh_database_says_how_the_first_run_is_made() -> None:
    text = text_of(logged_in(a_user("anna", "runs.view_run", "runs.submit_run")), "/")
    assert "lychd submit inventory" in text
    assert "/patterns/inventory/" in text
    assert "Nothing needs you" in text


def test_only_questions_that_this_person_may_decide_and_has_not_answered_are_theirs() -> None:
    client = approver()
    anna = User.objects.get(username="anna")
    a_consent(title="For anybody")
    a_consent(title="For Finance", group="Finance")
    a_consent(title="Not by the asker", self_approval=False, asked_by=str(anna.pk))
    a_consent(title="Over", expires_in=-5)
    a_consent(title="Settled", status="granted", by="bert")
    a_consent(title="Elsewhere", tenant="other")
    voted = a_consent(title="Voted", quorum=2)
    ConsentVote.objects.create(
        consent=Consent.objects.get(pk=voted), user=anna, name="anna", granted=True, surface="rest", digest="d" * 64
    )
    text = needed(client)
    assert "For anybody" in text
    for other in ("For Finance", "Not by the asker", "Over", "Settled", "Elsewhere", "Voted"):
        assert other not in text, other
    assert "2 Consents wait for somebody else" in text
    assert 'data-count="1"' in text_of(client, "/")
    assert "<title>(1) Home" in text_of(client, "/")
    anna.groups.add(Group.objects.get_or_create(name="Finance")[0])
    assert "For Finance" in needed(client)


def test_what_expires_soon_is_first_however_many_have_waited_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "MOST_ASKED", 20)
    many_consents(60, status="pending", by=None)
    a_consent(title="Almost over", expires_in=600)
    text = needed(approver())
    assert text.index("Almost over") < text.index("Move files")
    assert "or more others" in text


def test_runs_in_trouble_are_told_with_their_reason_and_only_to_their_tenant() -> None:
    touch(a_run(status="cancelling"), containment_error="the agent does not answer")
    touch(a_run(status="running"), containment_error="who knows what it did")
    a_run(status="queued", quarantine="does not parse " + EVIL)
    lost = a_run(status="failed", error="ghoul_lost")
    a_run(status="failed", error="node_failed")
    touch(a_run(status="cancelling", tenant="other"), containment_error="theirs")
    client = logged_in(a_user("anna", "runs.view_run"))
    response = client.get("/")
    assert_harmless(response)
    text = part(response.content.decode(), "needs")
    for told in ("the agent does not answer", "who knows what it did", "does not parse", str(lost)[-8:]):
        assert told in text, told
    assert text.count("row-main") == 4
    assert "theirs" not in text
    assert "theirs" in needed(root())


def test_a_cancellation_counts_as_stuck_only_after_a_while() -> None:
    run = a_run(status="cancelling")
    client = logged_in(a_user("anna", "runs.view_run"))
    assert "not stopped yet" not in needed(client)
    with connection.cursor() as cursor:
        cursor.execute("update runs_run set updated_at = now() - interval '5 minutes' where id = %s", [str(run)])
    assert "nothing has answered yet" in needed(client)


def test_who_may_not_look_at_runs_or_decide_sees_neither() -> None:
    a_consent(title="A question")
    touch(a_run(status="cancelling"), containment_error="stuck here")
    text = text_of(logged_in(a_user("anna")), "/")
    for hidden in ("A question", "stuck here", "Newest Runs", "Live now"):
        assert hidden not in text, hidden


def test_that_no_vessel_runs_is_told_to_those_who_may_see_it() -> None:
    assert "No Vessel holds the database" in needed(logged_in(a_user("anna", "runs.view_vesselslot")))
    assert "No Vessel" not in needed(logged_in(a_user("bert", "runs.view_run")))


def test_every_query_is_bounded_and_their_number_does_not_grow() -> None:
    client = logged_in(a_user("anna", *APPROVER))

    def queries() -> list[str]:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            text_of(client, "/")
        return [one["sql"] for one in seen.captured_queries]

    a_run()
    before = len(queries())
    many_runs(3_000, status="queued")
    many_runs(3_000)
    many_consents(300, status="pending", by=None)
    after = queries()
    assert len(after) == before
    for sql in after:
        if "runs_run" in sql or "consents_consent" in sql:
            assert "limit" in sql.lower(), sql
    assert "1,000+" in text_of(client, "/")
