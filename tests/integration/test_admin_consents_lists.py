"""The inbox of Consents over many rows, and decisions for many at once."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from consents.models import Consent, ConsentVote
from runs.admin import keyset
from runs.ledger.notify import CHANNEL
from runs.models import Run, RunDelivery
from tests.support.admin_consents import APPROVER, LIST, a_consent, a_user, approver, logged_in, many_consents
from tests.support.admin_runs import root

pytestmark = pytest.mark.django_db

SCAN = 400


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "SCAN", SCAN)
    many_consents(8000)
    many_consents(120, status="pending", offset=3000)
    many_consents(30, status="denied", risk="critical", offset=9000)
    many_consents(40, pattern="seldom", offset=10_000)
    many_consents(20, status="pending", tenant="rare")
    with connection.cursor() as cursor:
        for table in ("consents_consent", "consents_consentvote", "runs_run"):
            cursor.execute(f"analyze {table}")


def listed(client: Client, address: str) -> list[str]:
    response = client.get(address)
    assert response.status_code == 200, (address, response.headers.get("Location"))
    return re.findall(r'<th class="field-asked"><a href="/admin/consents/consent/([^/]+)/', response.content.decode())


def way(client: Client, address: str, word: str) -> str:
    """The address behind a word at the end of the list."""
    text = client.get(address).content.decode().split("lychd-pages")[1]
    found = re.search(rf'href="(\?[^"]*)"[^>]*>[^<]*{word}', text)
    assert found, (address, word)
    return LIST + found[1].replace("&amp;", "&")


PLAIN = (
    LIST,
    LIST + "?size=500",
    LIST + "?status=all",
    LIST + "?status=granted",
    LIST + "?status=cancelled",
    LIST + "?status=denied&risk=critical",
    LIST + "?risk=critical",
    LIST + "?risk=critical&status=all",
    LIST + "?status=all&pattern=seldom",
    LIST + "?tenant=rare",
    LIST + "?tenant=nobody",
    LIST + f"?q={uuid.UUID(int=0)}",
    LIST + f"?q=run:{uuid.UUID(int=0)}",
    LIST + "?q=pattern:seldom",
    LIST + "?q=sigil:nobody",
    "/admin/consents/standingpolicy/",
    "/admin/",
)


@pytest.mark.parametrize("who", ["root", "approver"])
def test_no_list_reads_a_table_from_end_to_end_or_counts(who: str, many: None) -> None:
    client = root() if who == "root" else logged_in(a_user("anna", *APPROVER, tenants=("rare", "default")))
    for address in PLAIN:
        if who == "approver" and "standingpolicy" in address:
            continue
        with CaptureQueriesContext(connection) as queries:
            assert client.get(address).status_code == 200, address
        assert len(queries) <= 14, (address, [query["sql"][:120] for query in queries])
        for query in queries:
            sql = query["sql"]
            assert "count(" not in sql.lower(), (address, sql)
            if sql.lower().startswith(("select", "with")) and "consents_" in sql:
                _assert_bounded(address, sql)
                assert '"body"' not in sql, sql
                assert '"facts"' not in sql, sql


def _assert_bounded(address: str, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"explain (analyze, format json, timing off) {sql}")
        found: Any = cursor.fetchone()[0]
    waiting = [(json.loads(found) if isinstance(found, str) else found)[0]["Plan"]]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.get("Plans", ()))
        looked = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        assert looked <= max(2 * SCAN, 501), (address, node["Node Type"], looked, sql)
        assert not (node["Node Type"] == "Seq Scan" and node.get("Relation Name") == "consents_consent"), (address, sql)


def test_what_waits_comes_first_and_everything_else_is_one_choice_away(many: None) -> None:
    client = root()
    waiting = list(
        Consent.objects.filter(tenant="default", status="pending")
        .order_by("-requested_at", "-id")
        .values_list("pk", flat=True)
    )
    first = listed(client, LIST)
    second = listed(client, way(client, LIST, "Older"))
    third = listed(client, way(client, way(client, LIST, "Older"), "Older"))
    assert [*first, *second, *third] == [str(pk) for pk in waiting]
    assert len(listed(client, LIST + "?size=200")) == 120
    assert len(listed(client, LIST + "?status=denied")) == 30
    assert len(listed(client, LIST + "?status=all")) == 50
    assert listed(client, LIST + f"?q={waiting[0]}") == [str(waiting[0])]
    settled = Consent.objects.filter(status="denied").values_list("pk", "run_id")[0]
    assert listed(client, LIST + f"?q={settled[0]}") == [str(settled[0])]
    assert listed(client, LIST + f"?q=run:{settled[1]}") == [str(settled[0])]


def test_ways_on_keep_the_number_of_rows(many: None) -> None:
    client = root()
    on = way(client, LIST + "?status=granted&size=200", "Older")
    assert "size=200" in on
    assert len(listed(client, on)) == 200
    assert client.get(LIST + "?size=7").status_code == 302
    assert client.get(LIST + "?title__contains=x").status_code == 302


def test_an_empty_inbox_says_so() -> None:
    a_consent(status="granted", by="anna")
    text = root().get(LIST).content.decode()
    assert "Nothing waits for an answer." in text


def test_one_whose_time_is_over_is_not_shown_as_waiting() -> None:
    a_consent(expires_in=0)
    text = root().get(LIST).content.decode()
    assert "expired" in text.split("<tbody>")[1].split("</tbody>")[0]


def test_the_front_page_names_what_waits_for_those_who_may_decide() -> None:
    a_consent(title="Pay the invoice", risk="high")
    a_consent(title="Of others", tenant="other")
    a_consent(title="Settled before", status="granted", by="anna")
    text = approver().get("/admin/").content.decode()
    assert "Pay the invoice" in text
    assert "high risk" in text
    assert "Of others" not in text
    assert "Settled before" not in text
    looks = logged_in(a_user("looks", "consents.view_consent")).get("/admin/").content.decode()
    assert "Pay the invoice" not in looks


# Many at once ---------------------------------------------------------------------------------------------------------


def choose(client: Client, ids: list[uuid.UUID], verdict: str = "grant", **form: Any) -> Any:
    """Select rows of the list and choose the action."""
    data = {"action": f"{verdict}_selected", "_selected_action": [str(pk) for pk in ids], "index": "0", **form}
    return client.post(LIST, data)


def confirm(client: Client, page: Any, **changes: Any) -> Any:
    """Send the form of the page of confirmation as the browser would."""
    text = page.content.decode()
    fields: dict[str, Any] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', text):
        fields.setdefault(name, []).append(value.replace("&quot;", '"'))
    fields.pop("csrfmiddlewaretoken", None)
    return client.post(LIST, {**fields, "comment": "", **changes})


def test_the_confirmation_lists_each_consent_and_decides_nothing_yet() -> None:
    client = approver()
    ids = [a_consent(title=f"Question {n}", facts={"n": n}, effect={"e": n}, risk="high") for n in range(3)]
    ids.append(a_consent(title="Not mine", group="Finance"))
    ids.append(a_consent(title="Answered", status="denied", by="bert"))
    text = choose(client, ids).content.decode()
    assert "Grant 3 Consents?" in text
    for n in range(3):
        assert f"Question {n}" in text
        assert f"{{&quot;e&quot;: {n}}}" in text
    left = text.split("Left out: 2")[1]
    assert "needs a member of the group Finance" in left
    assert "It is denied already." in left
    assert set(Consent.objects.values_list("status", flat=True)) == {"pending", "denied"}


@pytest.mark.parametrize(("verdict", "status"), [("grant", "granted"), ("deny", "denied")])
def test_all_confirmed_are_decided_and_each_is_told(verdict: str, status: str) -> None:
    client = approver()
    ids = [a_consent() for _ in range(3)]
    response = confirm(client, choose(client, ids, verdict), comment="for all")
    assert response.status_code == 302
    text = client.get(LIST).content.decode()
    assert f"3 {status}; their Runs go on." in text
    for row in Consent.objects.all():
        assert (row.status, row.decided_by, row.surface, row.comment) == (status, "anna", "admin", "for all")
    assert set(Run.objects.values_list("status", flat=True)) == {"queued"}
    assert LogEntry.objects.count() == 3


def test_each_gets_its_own_answer_and_none_undoes_another() -> None:
    client = approver()
    plain, changed, late, expired, quorum, foreign = (
        a_consent(title="Plain"),
        a_consent(title="Changed"),
        a_consent(title="Late"),
        a_consent(title="Expired"),
        a_consent(title="Quorum", quorum=2),
        a_consent(title="Foreign", tenant="other"),
    )
    page = choose(client, [plain, changed, late, expired, quorum, foreign])
    assert "Foreign" not in page.content.decode()
    Consent.objects.filter(pk=changed).update(digest="e" * 64)
    bert = approver("bert")
    confirm(bert, choose(bert, [late], "deny"))
    with connection.cursor() as cursor:
        cursor.execute("update consents_consent set expires_at = now() where id = %s", [str(expired)])
    confirm(client, page)
    text = client.get(LIST).content.decode()
    assert "1 granted; its Run goes on." in text
    assert "1 wait for more people to say yes." in text
    assert "3 not granted." in text
    assert re.search(r"Late</a>: It was denied by bert at", text)
    assert re.search(r"Changed</a>: What was shown is not what is asked", text)
    assert re.search(r"Expired</a>: It has expired", text)
    found = dict(Consent.objects.values_list("title", "status"))
    assert found == {
        "Plain": "granted",
        "Changed": "pending",
        "Late": "denied",
        "Expired": "expired",
        "Quorum": "pending",
        "Foreign": "pending",
    }


def test_without_a_page_of_confirmation_nothing_is_decided() -> None:
    client = approver()
    consent = a_consent()
    for digests in ({}, {"digests": "[]"}, {"digests": "nonsense"}, {"digests": json.dumps({str(consent): "e" * 64})}):
        client.post(LIST, {"action": "grant_selected", "_selected_action": [str(consent)], "post": "yes", **digests})
        assert Consent.objects.get().status == "pending", digests


def test_never_all_that_match_never_too_many_never_nonsense() -> None:
    client = approver()
    consent = a_consent()
    for form in (
        {"select_across": "1"},
        {"_selected_action": ["nonsense"]},
        {"_selected_action": [str(uuid.uuid4()) for _ in range(501)]},
        {"comment": "x" * 1_000_000},
        {"comment": "a\x00b"},
    ):
        digests = json.dumps({str(consent): "d" * 64})
        data = {"action": "grant_selected", "_selected_action": [str(consent)], "post": "yes", "digests": digests}
        response = client.post(LIST, {**data, **form})
        assert response.status_code in {302, 422}, form
        assert Consent.objects.get().status == "pending", form
        text = response.content.decode() if response.status_code == 422 else client.get(LIST).content.decode()
        assert "Nothing was decided." in text, form


def test_those_who_may_not_decide_are_not_offered_the_actions() -> None:
    a_consent()
    text = logged_in(a_user("looks", "consents.view_consent")).get(LIST).content.decode()
    assert "grant_selected" not in text
    assert 'name="_selected_action"' not in text


def test_decisions_are_never_inside_the_transaction_of_a_request() -> None:
    """Ruling 5: with ATOMIC_REQUESTS a verdict would wait for the page, and fall with it."""
    for address in (LIST, f"{LIST}{uuid.uuid4()}/decide/"):
        assert "default" in resolve(address).func._non_atomic_requests  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.django_db(transaction=True)
@pytest.mark.contract("WAIT-10")
def test_five_hundred_at_once_are_all_resumed_and_none_twice(django_assert_max_num_queries: Callable[..., Any]) -> None:
    client = approver()
    ids = [a_consent(title=f"Question {n}") for n in range(500)]
    page = choose(client, ids)
    assert "Grant 500 Consents?" in page.content.decode()
    settings = connection.settings_dict
    with psycopg.connect(
        host=settings["HOST"] or None,
        port=settings["PORT"] or None,
        user=settings["USER"] or None,
        password=settings["PASSWORD"] or None,
        dbname=settings["NAME"],
        autocommit=True,
    ) as ears:
        ears.execute(f"listen {CHANNEL}")
        with django_assert_max_num_queries(60):
            assert confirm(client, page).status_code == 302
        heard = [note.payload for note in ears.notifies(timeout=30, stop_after=500)]
        ears.execute("select 1")
        heard += [note.payload for note in ears.notifies(timeout=0)]
    assert "500 granted; their Runs go on." in client.get(LIST).content.decode()
    assert set(Consent.objects.values_list("status", "decided_by")) == {("granted", "anna")}
    assert ConsentVote.objects.count() == LogEntry.objects.count() == 500
    assert set(Run.objects.values_list("status", "enqueue_seq", "wait_owner")) == {("queued", 2, None)}
    hops = RunDelivery.objects.filter(state="pending", resume=True, enqueue_seq=2)
    assert len({hop.run_id for hop in hops}) == hops.count() == 500
    assert sorted(heard) == sorted(str(pk) for pk in Run.objects.values_list("pk", flat=True))
    # Once more, as from a second tab: nothing moves again.
    confirm(client, page, _selected_action=[str(pk) for pk in ids[:25]])
    assert RunDelivery.objects.count() == 500
    assert ConsentVote.objects.count() == LogEntry.objects.count() == 500
