"""The admin's pages of the substrate: they only show, to those who may see, and safely."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from django.contrib.admin import site
from django.test import Client
from django.urls import reverse
from pydantic import BaseModel

from runs.models import JournalEntry, Run, RunDelivery, SessionTurn, Step
from runs.patterns import Context, Finish, Pattern
from tests.support.admin_runs import VIEWS, a_run, everything, many_runs, root, staff, surround

pytestmark = pytest.mark.django_db

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>"
SECRET = "the-payload-itself"


def url(model: str, pk: Any = None) -> str:
    return reverse(
        f"admin:runs_{model}_changelist" if pk is None else f"admin:runs_{model}_change", args=[pk] if pk else []
    )


def pages(ids: dict[str, Any]) -> list[str]:
    """Every page of the substrate."""
    run = ids["run"]
    objects: dict[str, Any] = {
        "run": run,
        "rundelivery": RunDelivery.objects.filter(run=run).values_list("pk", flat=True)[0],
        "step": Step.objects.filter(run=run).values_list("pk", flat=True)[0],
        "checkpoint": run,
        "checkpointarchive": run,
        "journalentry": JournalEntry.objects.filter(run=run).values_list("pk", flat=True)[0],
        "session": ids["session"],
        "sessionturn": SessionTurn.objects.filter(run=run).values_list("pk", flat=True)[0],
        "boot": ids["boot"],
        "vesselslot": 1,
        "runtombstone": ids["tombstone"],
    }
    assert set(objects) == {model._meta.model_name for model in site._registry if model._meta.app_label == "runs"}
    lists = [url(model) for model in objects]
    return [
        *lists,
        *(url(model, pk) for model, pk in objects.items()),
        reverse("admin:index"),
        reverse("admin:app_list", args=["runs"]),
    ]


def text_of(client: Client, page: str) -> str:
    response = client.get(page)
    assert response.status_code == 200, (page, response.status_code, response.headers.get("Location"))
    return response.content.decode()


def test_no_page_needs_an_inline_script_style_or_handler_and_payloads_are_escaped() -> None:
    ids = everything({EVIL: EVIL})
    a_run(status="queued", quarantine=EVIL)
    a_run(status="failed", error=EVIL[:50])
    client = root()
    for page in [*pages(ids), url("run") + "?q=nonsense%3Cscript%3E", url("run") + "?status=failed&source=cli"]:
        response = client.get(page)
        text = response.content.decode()
        assert response.status_code == 200, page
        policy = response.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        nonce = re.search(r"'nonce-([^']+)'", policy)
        for tag in re.findall(r"<(?:script|style)\b[^>]*>", text):
            assert "src=" in tag or (nonce and f'nonce="{nonce[1]}"' in tag) or 'type="application/json"' in tag, (
                page,
                tag,
            )
        assert not re.search(r"<[^>]*\s(?:on[a-z]+|style)\s*=", text), page
        assert "<img src=x" not in text, page
        assert "javascript:" not in text, page


def test_nothing_can_be_made_changed_or_deleted_here() -> None:
    ids = everything({})
    client = root()
    for model in ("run", "session", "boot", "checkpoint"):
        pk = ids.get(model, ids["run"])
        assert client.get(url(model) + "add/").status_code == 403
        assert client.post(url(model, pk), {"status": "queued"}).status_code == 403
        assert client.post(url(model, pk).replace("change", "delete"), {"post": "yes"}).status_code == 403
        client.post(url(model), {"action": "delete_selected", "_selected_action": [str(pk)], "post": "yes"})
    assert Run.objects.get(pk=ids["run"]).status == "done"


def test_looking_needs_the_permission_of_the_very_table() -> None:
    ids = everything({})
    clients = {model: staff(f"view_{model}", name=model) for model in ("run", "step")}
    nobody = staff(name="nobody")
    for page in pages(ids)[:-2]:
        assert nobody.get(page).status_code == 403, page
    assert clients["run"].get(url("run")).status_code == 200
    assert clients["run"].get(url("step")).status_code == 403
    assert clients["step"].get(url("step")).status_code == 200
    assert "Steps" not in text_of(clients["run"], url("run", ids["run"])).split("<main")[1]


def test_payloads_are_seen_only_with_the_right_to_see_payloads() -> None:
    ids = everything({"word": SECRET})
    without, allowed = staff(*VIEWS), staff(*VIEWS, "view_payload", name="allowed")
    holding = 0
    for page in pages(ids):
        assert SECRET not in text_of(without, page), page
        holding += SECRET in text_of(allowed, page)
    assert holding == 7  # Run, Step, checkpoint, archive, journal, session, turn
    shown = text_of(without, url("run", ids["run"]))
    assert f"{len(json.dumps({'word': SECRET}))} bytes, SHA-256 " in shown


def test_big_numbers_keep_every_digit_and_odd_text_stays_text() -> None:
    run = a_run(input_text='{"n": 123456789012345678901234567890, "f": 1.10, "t": "snö \\u2028 <b>"}')
    shown = text_of(root(), url("run", run))
    assert "123456789012345678901234567890" in shown
    assert "1.10" in shown
    assert "snö" in shown
    assert "&lt;b&gt;" in shown


def test_large_payloads_are_folded_and_deep_ones_do_not_swell() -> None:
    small, large = a_run(input={"a": "x" * 1000}), a_run(input={"a": "x" * 100_000})
    deep = a_run(input_text="[" * 200 + ",".join(["1"] * 200_000) + "]" * 200)
    client = root()
    assert '<details class="lychd-fold"' not in text_of(client, url("run", small)).split("As it was asked")[0]
    assert '<details class="lychd-fold"><summary>97.7 kB, SHA-256' in text_of(client, url("run", large))
    assert len(text_of(client, url("run", deep))) < 3_000_000


def test_the_page_of_a_run_tells_its_story() -> None:
    client = root()
    failed, parked, bad = (
        a_run(status="failed", error="disk"),
        a_run(status="awaiting_consent", owner=str(uuid.uuid4())),
        a_run(status="queued", quarantine="It kills the Vessel."),
    )
    assert "operator asked for inventory, revision 1, over cli" in text_of(client, url("run", failed))
    assert "Node disk ended with disk: disk." in text_of(client, url("run", failed))
    assert "It has been waiting for a consent" in text_of(client, url("run", parked))
    assert "nothing claims it: It kills the Vessel." in text_of(client, url("run", bad))
    assert f"/api/v1/runs/{failed}" in text_of(client, url("run", failed))


def test_the_pinned_graph_is_drawn_and_a_bad_one_is_told() -> None:
    class Nothing(BaseModel):
        pass

    pattern = Pattern("walk", input=Nothing, state=Nothing, output=Nothing)

    @pattern.start(replay_safe=True)
    async def begin(ctx: Context[Nothing, Nothing]) -> Finish[Nothing]:
        return Finish(Nothing())

    client = root()
    drawn = text_of(client, url("run", a_run(manifest=json.dumps(pattern.manifest.to_json()))))
    assert "begin  (start, replay safe)" in drawn
    assert "The pinned manifest cannot be read" in text_of(client, url("run", a_run(manifest="[1]")))


def test_the_lists_around_a_run_are_cut_at_their_bounds() -> None:
    run = a_run()
    surround(run, {"a": 1}, hops=60, steps=260)
    text = text_of(root(), url("run", run))
    assert text.count('href="/admin/runs/step/') == 200 + 2  # with the link to all and the one of the sidebar
    assert "the newest 200" in text
    assert "All hops" in text


def test_quarantined_runs_are_named_whatever_is_filtered() -> None:
    bad = a_run(status="queued", quarantine="It kills the Vessel.")
    many_runs(120)
    client = root()
    for page in (url("run"), url("run") + "?status=done", url("run") + "?q=pattern:none", reverse("admin:index")):
        assert f"/admin/runs/run/{bad}/change/" in text_of(client, page), page
        assert "It kills the Vessel." in text_of(client, page), page
    only = text_of(client, url("run") + "?quarantined=yes").split("<tbody>")[1]
    assert only.count("field-title") == 1


def test_staff_see_the_runs_of_their_tenants_only() -> None:
    mine, others = (
        everything({"a": SECRET}, "mine"),
        a_run(tenant="other", input=SECRET, status="queued", quarantine="x"),
    )
    surround(others, SECRET, tenant="other")
    client = staff(*VIEWS, "view_payload", tenants=("mine",))
    step = Step.objects.filter(run=others).values_list("pk", flat=True)[0]
    for page in (url("run", others), url("step", step), url("checkpoint", others), url("checkpointarchive", others)):
        assert client.get(page).status_code == 302, page
    theirs = f"/{others}/change"
    for query in ("", "?tenant=other", f"?q={others}", f"?q=id:{others}", "?quarantined=yes", "?q=tenant:other"):
        assert theirs not in text_of(client, url("run") + query), query
    for model in ("rundelivery", "step", "checkpoint", "checkpointarchive", "journalentry"):
        for query in ("", f"?q={others}"):
            assert theirs not in text_of(client, url(model) + query), model
        assert f"/{mine['run']}/change" in text_of(client, url(model)), model
    assert theirs not in text_of(client, reverse("admin:index"))
    assert str(mine["run"]) in text_of(client, url("run") + f"?q={mine['run']}")


def test_staff_of_no_tenant_see_nothing() -> None:
    everything({})
    client = staff(*VIEWS, tenants=())
    assert text_of(client, url("run")).count("field-title") == 0
    assert text_of(client, url("step")).count("field-title") == 0


def test_qualifiers_find_exactly_and_anything_else_is_told() -> None:
    ids = everything({})
    keyed = a_run(key="order 7")
    many_runs(60, pattern="other")
    client = root()

    def found(query: str) -> list[str]:
        text = client.get(url("run"), {"q": query}).content.decode()
        return re.findall(r'field-title"><a href="/admin/runs/run/([^/]+)/', text)

    assert found(str(keyed)) == [str(keyed)]
    assert found(f"id:{keyed}") == [str(keyed)]
    assert found('key:"order 7"') == [str(keyed)]
    assert found(f"session:{ids['session']}") == [str(ids["run"])]
    assert len(found("pattern:other")) == 50
    assert found("pattern:oth") == []
    for odd in ("order", "id:7", "color:red", "session:", 'key:"', "id:" + "9" * 400):
        response = client.get(url("run"), {"q": odd})
        assert response.status_code == 200, odd
    assert "neither an id nor one of id:, pattern:" in client.get(url("run"), {"q": "order"}).content.decode()


@pytest.mark.parametrize(
    "query",
    [
        "?error_message__icontains=x",
        "?o=1&order=x",
        "?older=nonsense",
        "?newer=W10",
        "?older=" + "A" * 1000,
        "?pattern=a%00b",
        "?q=a%00b",
        "?session__title=x",
    ],
)
def test_addresses_that_no_page_gave_out_lead_back_to_the_plain_list(query: str) -> None:
    client = root()
    response = client.get(url("run") + query)
    assert response.status_code == 302
    assert response.headers["Location"] == url("run") + "?e=1"
    assert client.get(response.headers["Location"]).status_code == 200


@pytest.mark.parametrize("pk", ["7", "x" * 500, "not-a-uuid", "00000000-0000-0000-0000-000000000000", "a%00b"])
@pytest.mark.parametrize("model", ["run", "rundelivery", "step", "session"])
def test_unknown_ids_lead_to_the_front_page(model: str, pk: str) -> None:
    assert root().get(f"/admin/runs/{model}/{pk}/change/").status_code == 302
