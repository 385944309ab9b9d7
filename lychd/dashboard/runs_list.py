"""The list of Runs: newest first, filtered by what is in the address, a page at a time along an index.

Only looks. What changes while somebody reads is announced and shown when they ask for it; nothing moves by itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_safe

from lychd.dashboard.context import frame, page
from lychd.dashboard.outcomes import Outcomes, span
from runs.admin import keyset, shown, tenancy
from runs.admin.keyset import BadPosition, Order
from runs.models import Run
from runs.states import NONTERMINAL, TERMINAL, WORDS, RunStatus

SIZE = 50
ORDERS = (
    Order(frozenset({"tenant", "status"}), ("created_at", "id")),
    Order(frozenset({"tenant", "pattern_key"}), ("created_at", "id")),
    Order(frozenset({"tenant"}), ("created_at", "id")),
)
COLUMNS = (
    "id",
    "tenant",
    "pattern_key",
    "status",
    "source",
    "sigil_name",
    "created_at",
    "started_at",
    "finished_at",
    "wait_kind",
    "wait_since",
    "error_code",
    "quarantined_at",
    "containment_error",
)
FILTERS = ("status", "pattern", "source", "session", "since", "until", "tenant")
# What is counted for the figures at most: more is "or more".
MOST = 1000

_LAST_HOUR = """
select s.status, (
    select count(*)::int from (
        select 1 from runs_run r
        where r.tenant = %(tenant)s::text and r.status = s.status and r.created_at > now() - interval '1 hour'
        limit %(most)s::int) q)
from unnest(%(statuses)s::text[]) s(status)
"""
_LIVE = """
select count(*)::int from (
    select 1 from runs_run r where r.tenant = %(tenant)s::text and r.status = any(%(live)s::text[]) limit %(most)s::int
) q
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One Run of the list as it is shown."""

    run: Run
    state: Any
    created: Any
    took: str
    note: str


@require_safe
@page("runs", "runs.view_run")
def runs(request: HttpRequest) -> HttpResponse:
    """One page of the list."""
    tenant = tenancy.chosen(request)
    found: keyset.Page | None = None
    wrong = ""
    if tenant is not None:
        try:
            found = _list(request, tenant)
        except BadPosition:
            return HttpResponseRedirect(reverse("dashboard:runs"))
        except ValueError as error:
            wrong = str(error)
    live, hour = _figures(tenant)
    context = frame(
        request,
        "runs",
        "Runs",
        rows=[_row(run) for run in found.rows] if found else [],
        wrong=wrong,
        live=live,
        most=MOST,
        hour=hour,
        statuses=[("", "all", _address(request, status="")), *_statuses(request)],
        chosen=request.GET.get("status", ""),
        patterns=tenancy.patterns(tenant),
        values={name: request.GET.get(name, "") for name in FILTERS},
        filtered=any(request.GET.get(name) for name in FILTERS if name != "tenant"),
        older=found and found.older and _address(request, older=found.older),
        newer=found and found.newer and _address(request, newer=found.newer),
        cut=bool(found and found.cut),
        first_page=not (request.GET.get("older") or request.GET.get("newer")),
    )
    return render(request, "lychd/dashboard/runs.html", context)


def _statuses(request: HttpRequest) -> list[tuple[str, str, str]]:
    return [(status.value, WORDS[status], _address(request, status=status.value)) for status in RunStatus]


def _list(request: HttpRequest, tenant: str) -> keyset.Page:
    """A page.

    Raises:
        ValueError: a filter makes no sense; the sentence says which.
        BadPosition: the position does.
    """
    indexed: dict[str, Any] = {"tenant": tenant}
    other = Q()
    asked = request.GET
    if asked.get("status"):
        if asked["status"] not in set(RunStatus):
            raise ValueError("There is no such status.")
        indexed["status"] = asked["status"]
    if asked.get("pattern"):
        other &= Q(pattern_key=asked["pattern"])
    if asked.get("source"):
        other &= Q(source=asked["source"])
    if asked.get("session"):
        try:
            other &= Q(session_id=uuid.UUID(asked["session"]))
        except ValueError:
            raise ValueError("A session is named by its id.") from None
    for name, lookup in (("since", "created_at__gte"), ("until", "created_at__lte")):
        if asked.get(name):
            other &= Q(**{lookup: _moment(asked[name])})
    if "status" not in indexed and asked.get("pattern"):
        indexed["pattern_key"] = asked["pattern"]
    order = next(one for one in ORDERS if one.equal <= indexed.keys())
    return keyset.fetch(
        visible(request).only(*COLUMNS),
        order,
        indexed=indexed,
        other=other,
        size=SIZE,
        scan=keyset.SCAN,
        older=asked.get("older") or None,
        newer=asked.get("newer") or None,
    )


def _moment(text: str) -> datetime:
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise ValueError("A time is written as 2026-12-01T09:30.")
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


def _row(run: Run) -> Row:
    ended = run.finished_at or timezone.now()
    note = ""
    if run.error_code:
        note = run.error_code
    elif run.wait_kind and run.wait_since:
        note = f"for a {run.wait_kind}, since {span((timezone.now() - run.wait_since).total_seconds())}"
    elif run.containment_error and run.status not in TERMINAL:
        note = "not everything is stopped yet"
    return Row(
        run=run,
        state=shown.status(
            run.status, quarantined=run.quarantined_at is not None, uncontained=bool(run.containment_error)
        ),
        created=shown.moment(run.created_at),
        took=span((ended - run.created_at).total_seconds()),
        note=note,
    )


def _figures(tenant: str | None) -> tuple[int, Outcomes]:
    """How many Runs are live, and how those went that were admitted in the last hour; both counted up to a bound."""
    hour = Outcomes()
    if tenant is None:
        return 0, hour
    params = {
        "tenant": tenant,
        "most": MOST,
        "statuses": sorted(TERMINAL),
        "live": sorted(status.value for status in NONTERMINAL),
    }
    with connection.cursor() as cursor:
        cursor.execute(_LIVE, params)
        (live,) = cursor.fetchall()[0]
        cursor.execute(_LAST_HOUR, params)
        hour.numbers = {status: number for status, number in cursor.fetchall() if number}
    hour.total = sum(hour.numbers.values())
    return live, hour


def visible(request: HttpRequest) -> QuerySet[Run]:
    """The Runs of the tenants of this person."""
    own = tenancy.visible(request)
    return Run.objects.all() if own is None else Run.objects.filter(tenant__in=own)


def _address(request: HttpRequest, **changes: str) -> str:
    kept: Mapping[str, str] = {name: value for name in FILTERS if (value := request.GET.get(name))}
    query = {name: value for name, value in {**kept, **changes}.items() if value}
    return f"{reverse('dashboard:runs')}?{urlencode(query)}" if query else reverse("dashboard:runs")
