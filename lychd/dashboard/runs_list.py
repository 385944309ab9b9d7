"""The list of Runs."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from lychd.dashboard.context import frame, page


@require_safe
@page("runs", "runs.view_run")
def runs(request: HttpRequest) -> HttpResponse:
    """One page of the list."""
    return render(request, "lychd/dashboard/runs.html", frame(request, "runs", "Runs"))
