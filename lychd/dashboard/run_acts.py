"""What a person does on the page of a Run: cancel it. Asks once, then does it, only by POST."""

from __future__ import annotations

import uuid
from typing import Any

import structlog
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from lychd.dashboard.context import frame, not_found, page
from lychd.dashboard.runs_list import visible
from runs.admin import shown, words
from runs.errors import first_line
from runs.ledger.cancel import Election, elect
from runs.ledger.outcomes import Lost
from runs.ledger.runner import run_script
from runs.models import Run
from runs.states import TERMINAL

log = structlog.get_logger(__name__)


@transaction.non_atomic_requests
@page("runs", "runs.cancel_run")
def cancel(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """GET asks and says what will happen; POST freezes the Run and wakes the Vessel, which does the rest."""
    found = visible(request).filter(pk=run_id).first()
    if found is None:
        return not_found(request, "runs", "There is no such Run.")
    if request.method in {"GET", "HEAD"}:
        context = frame(
            request,
            "runs",
            "Cancel a Run",
            run=found,
            state=shown.status(found.status),
            what=words.cancelling(found),
            open=found.status not in TERMINAL,
        )
        context["tenant"] = found.tenant
        return render(request, "lychd/dashboard/cancel.html", context)
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
    user: Any = request.user
    outcome = run_script(elect(Election(found.pk, user.get_username(), found.tenant)))
    if isinstance(outcome, Lost):
        return not_found(request, "runs", "There is no such Run any more.")
    if outcome.value.status in TERMINAL:
        messages.info(request, f"It was {outcome.value.status} before: nothing was changed.")
    else:
        _write_down(user, found)
        messages.success(request, "It is being cancelled, and cancelled once everything that acts for it has stopped.")
    return HttpResponseRedirect(reverse("dashboard:run", args=[run_id]))


def _write_down(user: Any, run: Run) -> None:
    """The entry in the admin's log; one that cannot be written does not undo the election (ruling 5)."""
    try:
        message = f"Cancelled while {run.status}, from the dashboard."
        LogEntry.objects.log_actions(user.pk, [run], CHANGE, message)
    except DatabaseError as error:
        log.warning("run.not_in_admin_log", run=str(run.pk), error=first_line(error))
