"""The page of Consents."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from lychd.dashboard.context import frame, page


@require_safe
@page("consents")
def consents(request: HttpRequest) -> HttpResponse:
    """The ways on from here."""
    return render(request, "lychd/dashboard/inbox.html", frame(request, "consents", "Consents"))
