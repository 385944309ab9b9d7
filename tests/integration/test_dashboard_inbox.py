"""The dashboard's inbox and its page of one Consent: who sees what, what is recorded, what is told."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from consents.models import Consent, ConsentVote
from runs.admin import keyset
from runs.models import Run, RunDelivery
from tests.support.admin_consents import APPROVER, a_consent, a_user, approver, logged_in, many_consents
from tests.support.admin_runs import root
from tests.support.dashboards import EVIL, assert_harmless, text_of

pytestmark = pytest.mark.django_db

INBOX = "/consents/"


def page_of(consent: Any) -> str:
    return f"{INBOX}{consent}/"


def decide(client: Client, consent: Any, verdict: str = "grant", **form: Any) -> Any:
    return client.post(f"{page_of(consent)}decide/", {"verdict": verdict, "digest": "d" * 64, "comment": "", **form})


def standing(consent: Any) -> tuple[str, str | None, str | None]:
    row = Consent.objects.get(pk=consent)
    return row.status, row.decided_by, row.surface


def shown(text: str) -> list[str]:
    return re.findall(r'data-consent="([^"]+)"', text)


def test_the_inbox_shows_what_waits_in_ones_tenant_and_what_was_answered_when_asked() -> None:
    mine, finance = a_consent(title="Mine"), a_consent(title="Theirs", group="Finance")
    done = a_consent(title="Settled", status="granted", by="bert")
    a_consent(title="Elsewhere", tenant="other")
    client = approver()
    text = text_of(client, INBOX)
    assert set(shown(text)) == {str(mine), str(finance)}
    assert text.count("Read and decide</a>") == 1
    assert "for somebody else" in text
    assert shown(text_of(client, f"{INBOX}?status=granted")) == [str(done)]
    assert len(shown(text_of(client, f"{INBOX}?status=all"))) == 3
    assert "Elsewhere" not in text_of(client, f"{INBOX}?status=all&tenant=other")


def test_an_empty_inbox_says_so_and_says_who_asks() -> None:
    text = text_of(approver(), INBOX)
    assert "Nothing waits for an answer." in text
    assert "AwaitConsent" in text


def test_who_may_not_look_is_told_what_is_missing() -> None:
    consent = a_consent(title="A question")
    client = logged_in(a_user("anna", "runs.view_run"))
    for address in (INBOX, page_of(consent)):
        text = text_of(client, address, 403)
        assert "consents.view_consent" in text
        assert "A question" not in text
    assert Client().get(INBOX).status_code == 302


def test_pages_walk_by_key_without_loss_and_look_at_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "SCAN", 200)
    many_consents(60, status="pending", by=None)
    client = approver()
    found: list[str] = []
    address: str | None = INBOX
    while address:
        text = text_of(client, address)
        found += shown(text)
        further = re.search(r'rel="next" href="([^"]+)"', text)
        address = further[1].replace("&amp;", "&") if further else None
    assert len(found) == len(set(found)) == 60
    many_consents(1_000, status="pending", by=None, offset=100)
    a_consent(title="The rare one", risk="critical")
    with CaptureQueriesContext(connection) as seen:
        text = text_of(client, f"{INBOX}?risk=critical")
    assert "The rare one" in text
    for one in seen.captured_queries:
        if 'FROM "consents_consent"' in one["sql"]:
            assert "LIMIT" in one["sql"], one["sql"]


def test_an_address_that_means_nothing_leads_to_the_inbox() -> None:
    client = approver()
    for odd in ("?status=nonsense", "?risk=none", "?older=%00", "?newer=abc"):
        assert client.get(INBOX + odd)["Location"] == INBOX
    assert client.get(page_of(uuid.uuid4())).status_code == 404
    assert decide(client, uuid.uuid4()).status_code == 404


@pytest.mark.parametrize(("verdict", "status"), [("grant", "granted"), ("deny", "denied")])
@pytest.mark.contract("BYD-8")
def test_a_verdict_is_recorded_as_the_dashboards_with_its_receipt_and_the_run_goes_on(
    verdict: str, status: str
) -> None:
    consent = a_consent()
    client = approver()
    answer = decide(client, consent, verdict, comment="as agreed")
    assert answer["Location"] == page_of(consent)
    assert standing(consent) == (status, "anna", "dashboard")
    vote = ConsentVote.objects.get(consent=consent)
    assert (vote.name, vote.digest, vote.surface, vote.comment) == ("anna", "d" * 64, "dashboard", "as agreed")
    run = Run.objects.get(consents=consent)
    assert (run.status, run.wait_owner) == ("queued", None)
    hop = RunDelivery.objects.get(run=run, enqueue_seq=run.enqueue_seq)
    assert (hop.state, hop.resume) == ("pending", True)
    assert LogEntry.objects.filter(object_id=str(consent)).count() == 1
    text = text_of(client, answer["Location"])
    assert f"You {status} this" in text
    assert "on the dashboard" in text
    assert "as agreed" in text
    assert 'name="verdict"' not in text


def test_after_a_verdict_the_page_leads_to_what_waits_longest_for_this_person() -> None:
    first, second = a_consent(title="First"), a_consent(title="Second")
    a_consent(title="Not mine", group="Finance")
    client = approver()
    decide(client, second)
    text = text_of(client, page_of(second))
    assert f'href="{page_of(first)}">The next that waits for you' in text
    decide(client, first)
    assert "Nothing else waits for your answer." in text_of(client, page_of(first))


def test_nothing_is_decided_by_get_nor_without_the_token_of_the_form() -> None:
    consent = a_consent()
    client = root()
    client.get(f"{page_of(consent)}decide/", {"verdict": "grant", "digest": "d" * 64})
    client.get(page_of(consent), {"verdict": "grant", "digest": "d" * 64})
    assert client.post(page_of(consent), {"verdict": "grant", "digest": "d" * 64}).status_code == 405
    assert client.put(f"{page_of(consent)}decide/", {"verdict": "grant"}).status_code == 405
    strict = logged_in(a_user("anna", *APPROVER), enforce_csrf_checks=True)
    assert decide(strict, consent).status_code == 403
    assert standing(consent) == ("pending", None, None)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', text_of(strict, page_of(consent)))
    assert token
    assert decide(strict, consent, csrfmiddlewaretoken=token[1]).status_code == 302
    assert standing(consent)[0] == "granted"


@pytest.mark.contract("BYD-7")
@pytest.mark.parametrize(
    ("person", "asks", "status", "after"),
    [
        (("consents.view_consent",), {}, 403, "pending"),
        (("consents.decide_consent",), {}, 302, "granted"),
        (APPROVER, {"permission": "runs.cancel_run"}, 403, "pending"),
        ((*APPROVER, "runs.cancel_run"), {"permission": "runs.cancel_run"}, 302, "granted"),
        (APPROVER, {"group": "Finance"}, 403, "pending"),
        (APPROVER, {"tenant": "other"}, 404, "pending"),
    ],
)
def test_only_those_decide_who_may_decide_this_one(
    person: tuple[str, ...], asks: dict[str, Any], status: int, after: str
) -> None:
    consent = a_consent(**asks)
    client = logged_in(a_user("anna", *person))
    assert decide(client, consent).status_code == status
    assert standing(consent)[0] == after
    if status == 403:
        assert 'name="verdict"' not in text_of(client, page_of(consent))


@pytest.mark.contract("BYD-8")
@pytest.mark.parametrize("digest", ["e" * 64, "", "nonsense"])
def test_a_question_that_changed_is_not_answered_blind(digest: str) -> None:
    consent = a_consent()
    answer = decide(approver(), consent, digest=digest, comment="fine")
    text = answer.content.decode()
    assert answer.status_code == 409
    assert "The question is another one now" in text
    assert "fine</textarea>" in text
    assert standing(consent)[0] == "pending"


def test_who_is_late_sees_who_was_faster_and_nothing_changes() -> None:
    consent = a_consent()
    decide(approver("bert"), consent)
    answer = decide(approver("anna"), consent, "deny")
    assert answer.status_code == 409
    assert "bert granted it" in answer.content.decode()
    assert standing(consent) == ("granted", "bert", "dashboard")


def test_nothing_of_a_question_is_markup_on_any_page() -> None:
    consent = a_consent(title="T " + EVIL, body=EVIL, facts={EVIL: [EVIL]}, effect={"e": EVIL})
    settled = a_consent(title=EVIL, status="denied", by="x" + EVIL, comment=EVIL)
    client = root()
    for answer in (
        client.get(INBOX),
        client.get(f"{INBOX}?status=all"),
        client.get(page_of(consent)),
        client.get(page_of(settled)),
        decide(client, consent, digest="", comment=EVIL),
        client.get("/"),
    ):
        assert_harmless(answer)
    misleading = a_consent(title="pay \u202e001$")
    for address in (INBOX, "/", page_of(misleading)):
        body = text_of(client, address).split("<h1")[1]
        assert "U+202E" in body
        assert "\u202e" not in body, address
