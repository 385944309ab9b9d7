"""The page of System."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from lychd.dashboard.context import frame, page


@require_safe
@page("system")
def system(request: HttpRequest) -> HttpResponse:
    """The ways on from here."""
    return render(request, "lychd/dashboard/system.html", frame(request, "system", "System"))
