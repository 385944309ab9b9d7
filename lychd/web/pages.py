"""The start page and the icon: the way to everything else, readable without JavaScript and without logging in."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.shortcuts import render
from django.templatetags.static import static
from django.views.decorators.http import require_safe


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Links to admin, API and health."""
    return render(request, "lychd/home.html")


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 a view
    """Where browsers look on pages that name no icon, such as the admin's."""
    return HttpResponsePermanentRedirect(static("lychd/favicon.svg"))
