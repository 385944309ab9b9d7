"""The front page: what needs a person first, then what is live, then the ways on; and how to make a first Run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from consents.admin import look, values
from lychd.dashboard import needs, vessel
from lychd.dashboard.context import frame, page
from runs.admin import shown, tenancy
from runs.models import Run, VesselSlot
from runs.states import NONTERMINAL, WORDS, RunStatus

# Counting stops here, and says so.
MOST_COUNTED = 1000
NEWEST = 8
SEES_VESSEL = ("runs.view_vesselslot", "runs.view_boot")

# Each status by itself, so that each is a bounded walk along one index.
_ONE = """
select '{status}', (select count(*) from (
    select 1 from runs_run r where r.tenant = %(tenant)s::text and r.status = '{status}' limit %(most)s::int) q)
"""
_LIVE = [status.value for status in RunStatus if status in NONTERMINAL]
COUNTS = " union all ".join(_ONE.format(status=status) for status in _LIVE)


@dataclass(frozen=True, slots=True)
class Count:
    """How many Runs are in one status, in words."""

    status: str
    words: str
    state: str
    number: str


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The front page; whoever is not logged in sees where to do so, and the places that need no login."""
    if not request.user.is_authenticated:
        return render(request, "lychd/dashboard/entrance.html", frame(request, "home", "Welcome"))
    return _home(request)


@page("home")
def _home(request: HttpRequest) -> HttpResponse:
    """What needs this person, what is live, what came last."""
    user: Any = request.user
    found = needs.needs(request)
    sees_vessel = any(user.has_perm(name) for name in SEES_VESSEL)
    if sees_vessel:
        found.vessel = _unwell(request)
    tenant = tenancy.chosen(request)
    sees_runs = user.has_perm("runs.view_run") and tenant is not None
    newest = _newest(tenant) if sees_runs else []
    told = [
        (look.risk(one.risk), values.plain(one.title), one, shown.moment(one.requested_at), _ends(one))
        for one in found.questions or []
    ]
    context = frame(
        request,
        "home",
        f"({found.count}) Home" if found.count else "Home",
        needs=found,
        questions=told[: needs.MOST_NAMED],
        more_questions=max(0, len(told) - needs.MOST_NAMED),
        troubles=_troubles(found),
        named=needs.MOST_NAMED,
        sees_runs=sees_runs,
        sees_vessel=sees_vessel,
        counts=_counts(tenant) if sees_runs else [],
        newest=[(run, shown.status(run.status), shown.moment(run.created_at)) for run in newest],
        fresh=sees_runs and not newest,
        may_submit=user.has_perm("runs.submit_run"),
    )
    return render(request, "lychd/dashboard/home.html", context)


def _troubles(found: needs.Needs) -> list[dict[str, Any]]:
    """The three lists of Runs in trouble, each with what it means and where all of them are."""
    told: tuple[tuple[str, str, str, str, list[needs.Trouble] | None], ...] = (
        (
            "uncertain",
            "?",
            "Outcome unknown",
            "What these did outside is not certain: look before you do the same again.",
            found.uncertain,
        ),
        ("stuck", "⚠", "Cancelling, and not stopped yet", "It is tried again by itself.", found.stuck),
        ("quarantined", "⚑", "In quarantine", "Nothing claims these until somebody lets them go.", found.quarantined),
    )
    return [
        {"id": key, "sign": sign, "heading": heading, "meaning": meaning, "runs": runs}
        for key, sign, heading, meaning, runs in told
        if runs
    ]


def _unwell(request: HttpRequest) -> list[str]:
    """What is wrong with the Vessel, in sentences."""
    running = vessel.vessel_of(request)
    if running is None:
        slot = VesselSlot.objects.select_related("boot").defer("boot__report").first()
        if slot is None or slot.boot.ended_at is not None:
            return ["No Vessel holds the database: nothing is worked on until one is started."]
        return []
    told: list[str] = []
    recovery: Mapping[str, Any] = running.recovery
    if not recovery.get("complete", True):
        told.append(f"Recovery is degraded: {recovery.get('reason')}")
    ready = vessel.readiness(running)
    if isinstance(ready, str):
        return [*told, f"The Vessel does not say whether it is ready: {ready}."]
    return [*told, *(f"{one.name}: {one.reason}" for one in ready if not one.ok and one.name != "recovery")]


def _counts(tenant: str | None) -> list[Count]:
    with connection.cursor() as cursor:
        cursor.execute(COUNTS, {"tenant": tenant, "most": MOST_COUNTED + 1})
        rows: list[tuple[str, int]] = cursor.fetchall()
    return [
        Count(
            status,
            WORDS[RunStatus(status)],
            "waiting" if status.startswith("awaiting") else status,
            f"{number:,}" if number <= MOST_COUNTED else f"{MOST_COUNTED:,}+",
        )
        for status, number in rows
        if number or status in {RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.AWAITING_CONSENT}
    ]


def _newest(tenant: str | None) -> list[Run]:
    found = Run.objects.filter(tenant=tenant).only("id", "pattern_key", "status", "created_at", "sigil_name")
    return list(found.order_by("-created_at", "-id")[:NEWEST])


def _ends(one: needs.Question) -> Any:
    return None if one.expires_at is None else shown.moment(one.expires_at)
