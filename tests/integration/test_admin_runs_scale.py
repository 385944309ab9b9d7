"""The admin's lists over many rows: each page walks an index, looks at a bounded number of rows and counts none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from runs.admin import keyset
from runs.models import Run
from tests.support.admin_runs import VIEWS, a_run, everything, many_runs, root, staff, surround

pytestmark = pytest.mark.django_db

SCAN = 400
LIST = "/admin/runs/run/"

# Ten thousand Runs of one tenant, a rare tenant behind them, live ones in between.
_CHILDREN = """
insert into runs_rundelivery (run_id, tenant, enqueue_seq, queue_name, priority, resume, state, publish_attempts,
                              settled_at, created_at, updated_at)
select id, tenant, 0, 'runs', 50, false, 'settled', 1, now(), now(), now() from runs_run;
insert into runs_step (id, run_id, tenant, epoch, seq, tokens_before, kind, data, meta, at)
select gen_random_uuid(), id, tenant, 'e1', 0, 0, 'log', '{}', '{}', now() from runs_run
"""
_TABLES = ("run", "rundelivery", "step", "checkpoint", "session")


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "SCAN", SCAN)
    many_runs(10_000)
    many_runs(40, pattern="seldom", source="rite", offset=60_000)
    many_runs(30, tenant="rare", offset=80_000)
    many_runs(50, status="queued", offset=3000)
    many_runs(60, status="failed", pattern="other", offset=5000)
    with connection.cursor() as cursor:
        cursor.execute(_CHILDREN)
        for table in _TABLES:
            cursor.execute(f"analyze runs_{table}")


def listed(client: Client, address: str) -> tuple[list[str], dict[str, str]]:
    """The ids on a page, and the addresses of its neighbours by their words."""
    response = client.get(address)
    assert response.status_code == 200, (address, response.headers.get("Location"))
    text = response.content.decode()
    rows = re.findall(r'<th class="field-[a-z_]+"><a href="/admin/runs/[a-z]+/([^/"]+)/change/', text)
    pages = text.split("lychd-pages")[1].split("</nav>")[0]
    found = re.findall(r'href="(\?[^"]*)"[^>]*>([^<]*)<', pages)
    path = address.partition("?")[0]
    return rows, {words.strip(" ←→"): path + link.replace("&amp;", "&") for link, words in found}


def walked(client: Client, address: str, word: str = "Older") -> Iterator[list[str]]:
    """All pages from here on."""
    for _ in range(400):
        rows, ways = listed(client, address)
        yield rows
        further = ways.get(word) or ways.get("Look further")
        if further is None:
            return
        address = further
    raise AssertionError("the pages do not end")


PLAIN = (
    LIST,
    LIST + "?status=done",
    LIST + "?status=cancelled",
    LIST + "?pattern=seldom",
    LIST + "?pattern=none",
    LIST + "?status=failed&pattern=inventory",
    LIST + "?source=rite",
    LIST + "?source=bridge&status=done",
    LIST + "?quarantined=yes",
    LIST + "?tenant=rare",
    LIST + "?tenant=nobody",
    LIST + "?q=key:none",
    LIST + "?q=pattern:other",
    LIST + "?q=00000000-0000-0000-0000-000000000000",
    LIST + "?q=session:00000000-0000-0000-0000-000000000000",
    "/admin/runs/rundelivery/",
    "/admin/runs/rundelivery/?state=pending",
    "/admin/runs/rundelivery/?state=settled",
    "/admin/runs/step/",
    "/admin/runs/step/?kind=done",
    "/admin/runs/checkpoint/",
    "/admin/runs/journalentry/",
    "/admin/runs/session/",
    "/admin/runs/sessionturn/",
    "/admin/runs/boot/",
    "/admin/runs/runtombstone/",
    "/admin/",
)


@pytest.mark.parametrize("who", ["root", "staff"])
def test_no_list_reads_a_table_from_end_to_end_or_counts(who: str, many: None) -> None:
    client = root() if who == "root" else staff(*VIEWS, tenants=("rare", "default"))
    for address in PLAIN:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert client.get(address).status_code == 200, address
        assert len(queries) <= 14, (address, [query["sql"][:120] for query in queries])
        for query in queries:
            sql = query["sql"]
            assert "count(" not in sql.lower(), (address, sql)
            if sql.lower().startswith(("select", "with")) and "runs_" in sql:
                _assert_bounded(address, sql)


def _assert_bounded(address: str, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"explain (analyze, format json, timing off) {sql}")
        found: Any = cursor.fetchone()[0]
    plan: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    for node in _nodes(plan):
        looked = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        assert looked <= 2 * SCAN, (address, node["Node Type"], looked, sql)
        whole = node["Node Type"] == "Seq Scan" and node.get("Relation Name") in {
            "runs_run",
            "runs_step",
            "runs_rundelivery",
        }
        assert not whole, (address, sql)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def test_as_many_queries_for_a_full_page_as_for_an_empty_one() -> None:
    client = staff(*VIEWS, "view_payload")

    def queries(address: str) -> int:
        with CaptureQueriesContext(connection) as found:
            assert client.get(address).status_code == 200
        return len(found)

    few, many = everything({"a": 1})["run"], a_run()
    addresses = [reverse(f"admin:runs_{view[5:]}_changelist") for view in VIEWS]
    queries(reverse("admin:runs_run_change", args=[few]))  # content types are remembered from here on
    before = [queries(address) for address in addresses]
    surround(many, {"a": 1}, steps=300, hops=70)
    for _ in range(7):
        surround(a_run(), {"a": 1}, steps=30, hops=9)
    assert [queries(address) for address in addresses] == before
    assert queries(reverse("admin:runs_run_change", args=[many])) == queries(
        reverse("admin:runs_run_change", args=[few])
    )


def test_the_pages_show_every_run_once_newest_first(many: None) -> None:
    client = root()
    wanted = [
        str(pk)
        for pk in Run.objects.filter(tenant="default", status="failed")
        .order_by("-created_at", "-id")
        .values_list("pk", flat=True)
    ]
    pages = list(walked(client, LIST + "?status=failed"))
    assert [len(page) for page in pages] == [50, 10]
    assert [pk for page in pages for pk in page] == wanted


def test_newer_leads_back_to_where_one_came_from(many: None) -> None:
    client = root()
    first, ways = listed(client, LIST)
    second, on = listed(client, ways["Older"])
    third, further = listed(client, on["Older"])
    assert len({*first, *second, *third}) == 150
    assert listed(client, further["Newer"])[0] == second
    back, top = listed(client, listed(client, further["Newer"])[1]["Newer"])
    assert back == first
    assert top.get("Newer") is None
    assert listed(client, further["Newest"])[0] == first


def test_rare_rows_are_found_by_looking_further(many: None) -> None:
    client = root()
    first, ways = listed(client, LIST + "?source=rite")
    assert first == []
    assert "Look further" in ways
    assert sum(len(page) for page in walked(client, LIST + "?source=rite")) == 40
    assert sum(len(page) for page in walked(staff(*VIEWS, tenants=("rare",)), "/admin/runs/rundelivery/")) == 30


def test_a_run_admitted_meanwhile_moves_nothing(many: None) -> None:
    client = root()
    _, ways = listed(client, LIST)
    second, _ = listed(client, ways["Older"])
    many_runs(30, offset=-1000)
    assert listed(client, ways["Older"])[0] == second
    assert len(listed(client, LIST)[0]) == 50


def test_columns_and_filters_are_read_without_payloads(many: None) -> None:
    client = root()
    for address in (LIST, "/admin/runs/rundelivery/", "/admin/runs/step/"):
        with CaptureQueriesContext(connection) as queries:
            client.get(address)
        for query in queries:
            for column in ('"input"', '"output"', '"manifest"', '"intent"', '"data"', '"meta"'):
                assert column not in query["sql"], (address, query["sql"])
