"""Cancelling from the admin: a page that says for each Run what will happen, then one election a Run, and its entry.

The election is the whole act of this surface: it freezes the Run and wakes the Vessel, which does the rest (ruling 30).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from runs.admin import shown, words
from runs.errors import Unknown
from runs.ledger.cancel import Election, elect
from runs.ledger.outcomes import Lost
from runs.ledger.runner import run_script
from runs.models import Run, VesselSlot
from runs.states import TERMINAL

log = structlog.get_logger(__name__)

# What a page of the list can show; more at once is no decision of a person any more.
MOST = 100
NAMED = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """One Run of the confirmation page."""

    run: Run
    state: Any
    what: str


def selected(request: HttpRequest) -> list[uuid.UUID]:
    """The Runs that were ticked; what is no id is left out, and so is "all of them"."""
    found: list[uuid.UUID] = []
    for text in request.POST.getlist(ACTION_CHECKBOX_NAME)[:MOST]:
        try:
            found.append(uuid.UUID(text))
        except ValueError:
            continue
    return found


def confirm(admin: ModelAdmin[Run], request: HttpRequest, runs: Sequence[Run]) -> HttpResponse:
    """The page that asks; it changes nothing."""
    slot = VesselSlot.objects.select_related("boot").defer("boot__report").first()
    context = {
        **admin.admin_site.each_context(request),
        "title": "Cancel a Run" if len(runs) == 1 else "Cancel Runs",
        "opts": admin.opts,
        "asked": [Asked(run, shown.status(run.status), words.cancelling(run)) for run in runs],
        "any_live": any(run.status not in TERMINAL for run in runs),
        "no_vessel": slot is None or slot.boot.ended_at is not None,
        "back": _page(runs) if "from_page" in request.POST else reverse("admin:runs_run_changelist"),
        "from_page": "from_page" in request.POST,
        "action_checkbox_name": ACTION_CHECKBOX_NAME,
        "media": admin.media,
    }
    return TemplateResponse(request, "admin/runs/run/cancel.html", context)


def carry_out(admin: ModelAdmin[Run], request: HttpRequest, runs: Sequence[Run]) -> HttpResponse | None:
    """Elect each, in the order of their ids and each in a transaction of its own, and say what became of them."""
    user: Any = request.user
    elected: list[Run] = []
    for run in sorted(runs, key=lambda one: one.pk.bytes):
        try:
            outcome = run_script(elect(Election(run.pk, user.get_username(), run.tenant)))
        except (DatabaseError, Unknown) as error:
            log.warning("admin.not_cancelled", run=str(run.pk), error=str(error))
            said = f"It is not known whether {run} is being cancelled now; look at it, and cancel again: that is safe."
            admin.message_user(request, said, messages.ERROR)
            continue
        if isinstance(outcome, Lost):
            admin.message_user(request, f"{run} is not there any more.", messages.WARNING)
        elif outcome.value.status in TERMINAL:
            admin.message_user(request, f"{run} was {outcome.value.status} before: nothing was changed.")
        else:
            elected.append(run)
            _write_down(admin, request, run, again=outcome.again)
    if elected:
        admin.message_user(request, _told(elected), messages.SUCCESS)
    return HttpResponseRedirect(_page(runs)) if "from_page" in request.POST and runs else None


def _told(elected: Sequence[Run]) -> str:
    rest = len(elected) - NAMED
    names = ", ".join(str(run) for run in elected[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
    they, them = ("They are", "them") if len(elected) > 1 else ("It is", "it")
    return f"Cancelling {names}. {they} cancelled once everything that acts for {them} has stopped."


def _write_down(admin: ModelAdmin[Run], request: HttpRequest, run: Run, *, again: bool) -> None:
    """The entry in the admin's log; one that cannot be written does not undo the election (ruling 5)."""
    try:
        admin.log_change(request, run, "Asked again to cancel it." if again else f"Cancelled while {run.status}.")
    except DatabaseError as error:
        log.error("admin.not_logged", run=str(run.pk), action="cancel", error=str(error))
        admin.message_user(request, f"That {run} was cancelled could not be written down.", messages.WARNING)


def _page(runs: Sequence[Run]) -> str:
    return reverse("admin:runs_run_change", args=[runs[0].pk]) if runs else reverse("admin:runs_run_changelist")
