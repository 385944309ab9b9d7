"""The page on which a Consent is read and decided: who may, what is shown, what is recorded, what is told."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from consents.models import Consent, ConsentVote
from lychd.sigils.models import User
from runs.models import Run, RunDelivery
from tests.support.admin_consents import (
    APPROVER,
    LIST,
    a_consent,
    a_user,
    approver,
    decide,
    door_of,
    logged_in,
    page_of,
)
from tests.support.admin_runs import a_run, root, surround

pytestmark = pytest.mark.django_db

EVIL = "</textarea></script><script>alert(1)</script><img src=x onerror=alert(1)>"


def text_of(client: Client, address: str, status: int = 200) -> str:
    response = client.get(address)
    assert response.status_code == status, (address, response.status_code, response.headers.get("Location"))
    return response.content.decode()


def standing(consent_id: Any) -> tuple[str, str | None]:
    row = Consent.objects.get(pk=consent_id)
    return row.status, row.decided_by


def run_of(consent_id: Any) -> Run:
    return Run.objects.get(consents=consent_id)


def test_the_page_shows_the_question_its_rules_and_what_follows() -> None:
    consent = a_consent(
        title="Move 12 files",
        body="They are copies.\nThe last one stays.",
        facts={"files": 12, "bytes": 123456789012345678901234567890, "paths": ["a", "b"], "ok": True, "none": None},
        effect={"move": [{"from": "a", "to": "b"}, {"from": "c", "to": "d"}]},
        risk="high",
        group="Finance",
        quorum=2,
        expires_in=3600,
    )
    surround(run_of(consent).pk, {"message": "counted"}, steps=3)
    text = text_of(root(), page_of(consent))
    for part in (
        "Move 12 files",
        "They are copies.\nThe last one stays.",
        "123456789012345678901234567890",
        "d" * 64,
        "They must be in the group Finance.",
        "2 different people must say yes",
        "the answer is no",
        "Exactly this will be done on yes",
        str(run_of(consent).pk),
        "counted",
    ):
        assert part in text, part
    assert re.search(r"<th scope=\"row\"><bdi>files</bdi></th><td><span class=\"consent-number\">12</span>", text)
    assert re.search(r"<th scope=\"col\"><bdi>from</bdi></th>", text)
    assert text.index('value="grant"') < text.index('value="deny"')


@pytest.mark.parametrize(
    ("verdict", "status", "words"), [("grant", "granted", "You granted this"), ("deny", "denied", "You denied this")]
)
@pytest.mark.contract("BYD-8")
def test_a_verdict_is_recorded_with_its_receipt_and_the_run_gets_its_next_hop(
    verdict: str, status: str, words: str
) -> None:
    consent = a_consent()
    client = approver()
    response = decide(client, consent, verdict, comment="as agreed")
    assert response.status_code == 302
    row = Consent.objects.get(pk=consent)
    assert (row.status, row.decided_by, row.surface, row.comment) == (status, "anna", "admin", "as agreed")
    vote = ConsentVote.objects.get(consent=consent)
    assert (vote.name, vote.digest, vote.surface, vote.at) == ("anna", "d" * 64, "admin", row.decided_at)
    run = run_of(consent)
    assert (run.status, run.wait_owner) == ("queued", None)
    hop = RunDelivery.objects.get(run=run, enqueue_seq=run.enqueue_seq)
    assert (hop.state, hop.resume) == ("pending", True)
    text = text_of(client, response["Location"])
    assert words in text
    assert "as agreed" in text
    assert 'name="verdict"' not in text


def test_every_decision_is_in_the_admin_log_and_its_failure_undoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = approver()
    first, second = a_consent(), a_consent()
    decide(client, first, comment=EVIL)
    entry = LogEntry.objects.get(object_id=str(first))
    assert entry.user.get_username() == "anna"
    told = json.loads(entry.change_message)
    assert (told["verdict"], told["comment"], told["digest"]) == ("grant", EVIL, "d" * 64)
    history = text_of(client, f"{LIST}{first}/history/")
    assert "&quot;grant&quot;" in history
    assert "<img src=x" not in history
    decide(client, first)
    assert LogEntry.objects.filter(object_id=str(first)).count() == 1

    def broken(*_: Any, **__: Any) -> None:
        from django.db import DatabaseError

        raise DatabaseError("full")

    monkeypatch.setattr("django.contrib.admin.models.LogEntryManager.bulk_create", broken)
    assert decide(client, second).status_code == 302
    assert standing(second) == ("granted", "anna")


def test_nothing_is_decided_by_get_or_by_the_forms_of_the_admin() -> None:
    consent = a_consent()
    client = root()
    for verdict in ("grant", "deny"):
        response = client.get(door_of(consent), {"verdict": verdict, "digest": "d" * 64})
        assert response.status_code == 302
        assert response["Location"] == page_of(consent)
        client.get(page_of(consent), {"verdict": verdict, "digest": "d" * 64})
        client.get(LIST, {"action": f"{verdict}_selected", "_selected_action": str(consent), "post": "yes"})
        assert client.put(door_of(consent), {"verdict": verdict}).status_code == 405
    assert client.post(page_of(consent), {"status": "granted"}).status_code == 403
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}add/", {"title": "x"}).status_code == 403
    assert client.post(f"{LIST}{consent}/delete/", {"post": "yes"}).status_code == 403
    client.post(LIST, {"action": "delete_selected", "_selected_action": [str(consent)], "post": "yes"})
    assert standing(consent) == ("pending", None)


def test_a_form_without_its_token_is_refused_everywhere() -> None:
    consent = a_consent()
    client = logged_in(a_user("anna", *APPROVER), enforce_csrf_checks=True)
    action = {"action": "grant_selected", "_selected_action": [str(consent)], "post": "yes"}
    assert decide(client, consent).status_code == 403
    assert client.post(LIST, action).status_code == 403
    assert standing(consent) == ("pending", None)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', text_of(client, page_of(consent)))
    assert token
    assert decide(client, consent, csrfmiddlewaretoken=token[1]).status_code == 302
    assert standing(consent) == ("granted", "anna")


WHO: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "nobody": ({"permissions": ()}, {}, 403, "pending"),
    "looks only": ({"permissions": ("consents.view_consent",)}, {}, 403, "pending"),
    "decides": ({"permissions": ("consents.decide_consent",)}, {}, 302, "granted"),
    "without the permission": ({}, {"permission": "runs.cancel_run"}, 403, "pending"),
    "with the permission": (
        {"permissions": (*APPROVER, "runs.cancel_run")},
        {"permission": "runs.cancel_run"},
        302,
        "granted",
    ),
    "outside the group": ({}, {"group": "Finance"}, 403, "pending"),
    "in the group": ({"groups": ("Finance",)}, {"group": "Finance"}, 302, "granted"),
    "group without the right": (
        {"permissions": ("consents.view_consent",), "groups": ("Finance",)},
        {"group": "Finance"},
        403,
        "pending",
    ),
    "of another tenant": ({"tenants": ("other",)}, {}, 302, "pending"),
    "of no tenant": ({"tenants": ()}, {}, 302, "pending"),
}


@pytest.mark.contract("BYD-7")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("road", ["page", "action"])
def test_only_those_decide_who_may_decide_this_one(who: str, road: str) -> None:
    person, asks, status, after = WHO[who]
    consent = a_consent(**asks)
    groups = {name: value for name, value in person.items() if name != "permissions"}
    client = logged_in(a_user("anna", *person.get("permissions", APPROVER), **groups))
    if road == "page":
        response = decide(client, consent)
        assert response.status_code == status
        if who.startswith("of "):
            assert response["Location"] == "/admin/"
    else:
        client.post(
            LIST,
            {
                "action": "grant_selected",
                "_selected_action": [str(consent)],
                "post": "yes",
                "digests": json.dumps({str(consent): "d" * 64}),
            },
        )
    assert standing(consent)[0] == after
    assert ConsentVote.objects.filter(consent=consent).count() == (after == "granted")
    assert LogEntry.objects.filter(object_id=str(consent)).count() == (after == "granted")


@pytest.mark.contract("BYD-7")
def test_the_page_says_what_is_missing_instead_of_offering_buttons() -> None:
    client = logged_in(a_user("anna", *APPROVER))
    me = User.objects.get(username="anna")
    for asks, words in (
        ({"permission": "runs.cancel_run"}, "needs the permission runs.cancel_run, which anna does not have"),
        ({"group": "Finance"}, "needs a member of the group Finance"),
        ({"self_approval": False, "asked_by": str(me.pk)}, "somebody other than the person who asked"),
    ):
        consent = a_consent(**asks)
        text = text_of(client, page_of(consent))
        assert words in text
        assert 'name="verdict"' not in text
        response = decide(client, consent)
        assert response.status_code == 403
        assert "Your yes was not recorded." in response.content.decode()
        assert standing(consent) == ("pending", None)


def test_people_of_other_tenants_cannot_even_look() -> None:
    consent = a_consent(tenant="other", title="A secret of others")
    client = approver()
    for address in (page_of(consent), f"{LIST}?q={consent}", f"{LIST}?tenant=other", f"{LIST}?q=tenant:other"):
        assert "A secret of others" not in client.get(address, follow=True).content.decode(), address


@pytest.mark.contract("BYD-8")
@pytest.mark.parametrize("digest", ["e" * 64, "", "nonsense", None])
def test_a_question_that_changed_is_not_answered_blind(digest: str | None) -> None:
    consent = a_consent()
    client = approver()
    form = {"verdict": "grant", "comment": "fine"} | ({} if digest is None else {"digest": digest})
    response = client.post(door_of(consent), form)
    text = response.content.decode()
    assert response.status_code == 409
    assert "The question is another one now" in text
    assert "fine</textarea>" in text
    assert f'name="digest" value="{"d" * 64}"' in text
    assert standing(consent) == ("pending", None)
    assert not ConsentVote.objects.filter(consent=consent)


def test_a_lost_race_says_who_won_and_when() -> None:
    consent = a_consent()
    anna, bert = approver("anna"), approver("bert")
    decide(anna, consent, "grant")
    response = decide(bert, consent, "deny", comment="no!")
    text = response.content.decode()
    assert response.status_code == 409
    assert "You were too late" in text
    assert re.search(
        r"anna granted it \d+\.\d s before you, at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\. That stands\.", text
    )
    assert "Your no was not recorded." in text
    assert 'name="verdict"' not in text
    row = Consent.objects.get(pk=consent)
    assert (row.status, row.decided_by, row.comment) == ("granted", "anna", "")
    assert ConsentVote.objects.filter(consent=consent).count() == 1


def test_the_same_verdict_from_two_tabs_is_one_verdict() -> None:
    consent = a_consent()
    client = approver()
    for _ in range(2):
        assert decide(client, consent, comment="once").status_code == 302
    assert "It had been granted before" in text_of(client, page_of(consent))
    assert ConsentVote.objects.filter(consent=consent).count() == 1
    run = run_of(consent)
    assert (run.status, run.enqueue_seq) == ("queued", 2)
    assert RunDelivery.objects.filter(run=run, state="pending").count() == 1


@pytest.mark.contract("BYD-7")
def test_one_that_expires_in_this_second_is_a_no() -> None:
    consent = a_consent(expires_in=0)
    client = approver()
    before = text_of(client, page_of(consent))
    assert "Its time is over" in before
    assert 'name="verdict"' not in before
    response = decide(client, consent)
    text = response.content.decode()
    assert response.status_code == 409
    assert "Nobody answered in time: it expired" in text
    assert standing(consent) == ("expired", "clock")
    assert run_of(consent).status in {"awaiting_consent", "queued"}


def test_one_that_was_cancelled_with_its_run_stays_so() -> None:
    consent = a_consent(status="cancelled", by="operator", surface="engine")
    client = approver()
    response = decide(client, consent)
    assert response.status_code == 409
    assert "It was cancelled with its Run by operator" in response.content.decode()
    assert "Nothing was approved." in text_of(client, page_of(consent))
    assert standing(consent) == ("cancelled", "operator")


def test_a_comment_of_a_million_characters_is_refused_and_nothing_is_written() -> None:
    consent = a_consent()
    client = approver()
    response = decide(client, consent, comment="x" * 1_000_000)
    text = response.content.decode()
    assert response.status_code == 422
    assert "It has 1,000,000 characters, and at most 10,000 are kept." in text
    assert len(text) < 100_000
    assert standing(consent) == ("pending", None)
    assert not ConsentVote.objects.filter(consent=consent)
    assert decide(client, consent, comment="a\x00b").status_code == 422
    assert standing(consent) == ("pending", None)


def test_a_form_that_says_neither_decides_nothing() -> None:
    consent = a_consent()
    for verdict in ("", "maybe", "GRANT"):
        assert decide(approver(f"a{verdict}"), consent, verdict).status_code == 400
    assert standing(consent) == ("pending", None)


@pytest.mark.contract("BYD-7")
def test_a_quorum_waits_for_different_people() -> None:
    consent = a_consent(quorum=2)
    anna, bert = approver("anna"), approver("bert")
    response = decide(anna, consent, comment="mine")
    text = text_of(anna, response["Location"])
    assert "Your yes is recorded. 1 of 2 have said yes, so the Run waits for 1 more." in text
    assert standing(consent) == ("pending", None)
    assert run_of(consent).status == "awaiting_consent"
    decide(anna, consent)
    assert standing(consent) == ("pending", None)
    refused = decide(anna, consent, "deny")
    assert refused.status_code == 409
    assert "nobody votes twice" in refused.content.decode()
    assert "1 of 2 have said yes so far." in text_of(bert, page_of(consent))
    decide(bert, consent)
    assert standing(consent) == ("granted", "bert")
    assert run_of(consent).status == "queued"


def test_a_consent_that_is_none_leads_back() -> None:
    client = approver()
    for odd in (uuid.uuid4(), "nonsense", "%00", "1"):
        assert client.get(page_of(odd)).status_code == 302, odd
        assert decide(client, odd).status_code == 302, odd


def test_nothing_of_a_payload_is_rendered_and_the_policy_is_strict() -> None:
    consent = a_consent(
        title="T " + EVIL,
        body=EVIL,
        facts={EVIL: [{"k" + EVIL: EVIL}, {"k" + EVIL: EVIL}], "t": {"before": EVIL, "after": EVIL + "2"}, "l": [EVIL]},
        effect={"e": EVIL},
    )
    settled = a_consent(title=EVIL, status="denied", by="x" + EVIL, comment=EVIL)
    surround(run_of(consent).pk, {"word": EVIL})
    client = root()
    confirm = {"action": "grant_selected", "_selected_action": [str(consent), str(settled)]}
    answers = [
        client.get(page_of(consent)),
        client.get(page_of(settled)),
        client.get(LIST),
        client.get(LIST + "?status=all"),
        client.post(LIST, confirm),
        decide(client, consent, digest="", comment=EVIL),
        decide(client, settled, comment=EVIL),
        client.get("/admin/"),
    ]
    for number, response in enumerate(answers):
        text = response.content.decode()
        policy = response.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        nonce = re.search(r"'nonce-([^']+)'", policy)
        for tag in re.findall(r"<(?:script|style)\b[^>]*>", text):
            assert "src=" in tag or (nonce and f'nonce="{nonce[1]}"' in tag) or 'type="application/json"' in tag, tag
        bare = re.sub(r'"[^"]*"', '""', text)
        assert not re.search(r"<[^>]*\s(?:on[a-z]+|style)\s*=", bare), number
        assert "<img src=x" not in text, number
        assert "alert(1)</script>" not in text, number


def test_characters_that_mislead_are_named() -> None:
    consent = a_consent(title="pay \u202e001$", body="a\u200bb", facts={"to\u2066": "x\u00ady \U000e0041"})
    client = root()
    shown = text_of(client, page_of(consent))
    for name in ("U+202E", "U+200B", "U+2066", "U+00AD", "U+E0041"):
        assert name in shown
    others = text_of(client, page_of(a_consent(run=run_of(consent).pk, visit=1)))
    front, inbox = text_of(client, "/admin/"), text_of(client, LIST)
    for char in "\u202e\u200b\u2066\u00ad\U000e0041":
        for text in (shown, others, front, inbox):
            assert char not in text


def test_large_facts_are_whole_and_do_not_swell() -> None:
    many = a_consent(facts={"files": [{"path": f"p{n}", "size": n} for n in range(400)]})
    text = text_of(root(), page_of(many))
    assert "and 380 more" in text
    assert "p399" in text
    deep = a_consent(facts_text='{"a": ' + "[" * 150 + ",".join(["7"] * 100_000) + "]" * 150 + "}")
    assert len(text_of(logged_in(a_user("second", *APPROVER)), page_of(deep))) < 3_000_000


def test_payloads_of_steps_need_their_own_right_and_the_question_does_not() -> None:
    consent = a_consent(facts={"f": "what is asked"})
    surround(run_of(consent).pk, {"word": "a-payload"})
    without = text_of(approver(), page_of(consent))
    assert "what is asked" in without
    assert "a-payload" not in without
    assert "Steps" in without
    only = logged_in(a_user("only", "consents.decide_consent"))
    bare = text_of(only, page_of(consent))
    assert "The Run so far" not in bare
    assert 'value="grant"' in bare


def test_several_questions_of_one_run_lead_to_each_other() -> None:
    first = a_consent(status="granted", by="anna", title="The first question")
    run = run_of(first).pk
    second = a_consent(run=run, visit=1, title="The second question")
    text = text_of(root(), page_of(second))
    assert "The first question</a>: granted" in text


def test_a_run_whose_pattern_is_gone_is_warned_of_before_a_grant() -> None:
    text = text_of(root(), page_of(a_consent()))
    assert "Nothing here can carry this Run on" in text


def test_a_yes_recorded_while_the_run_is_not_parked_yet_moves_nothing() -> None:
    consent = a_consent(run=a_run(status="running"))
    assert decide(approver(), consent).status_code == 302
    assert standing(consent) == ("granted", "anna")
    assert run_of(consent).status == "running"


def test_a_database_that_does_not_answer_is_told_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    from consents.admin import verdicts

    def lost(_: Any) -> Any:
        raise OperationalError("server closed the connection unexpectedly")

    consent = a_consent()
    client = approver()
    monkeypatch.setattr(verdicts, "run_script", lost)
    response = decide(client, consent)
    assert response.status_code == 503
    assert "may or may not have been recorded" in response.content.decode()
    assert f'href="{page_of(consent)}"' in response.content.decode()
    monkeypatch.undo()
    assert standing(consent) == ("pending", None)
