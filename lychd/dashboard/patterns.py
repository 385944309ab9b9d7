"""The page of Patterns."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from lychd.dashboard.context import frame, page


@require_safe
@page("patterns")
def patterns(request: HttpRequest) -> HttpResponse:
    """The ways on from here."""
    return render(request, "lychd/dashboard/patterns.html", frame(request, "patterns", "Patterns"))


@require_safe
@page("patterns")
def pattern(request: HttpRequest, key: str) -> HttpResponse:
    """One Pattern."""
    return render(request, "lychd/dashboard/patterns.html", frame(request, "patterns", key))
