"""The front page: for people who are logged in what needs them, for others the ways in."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from lychd.dashboard.context import frame, page


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The front page; whoever is not logged in sees where to do so, and the places that need no login."""
    if not request.user.is_authenticated:
        return render(request, "lychd/dashboard/entrance.html", frame(request, "home", "Welcome"))
    return _home(request)


@page("home")
def _home(request: HttpRequest) -> HttpResponse:
    return render(request, "lychd/dashboard/home.html", frame(request, "home", "Home"))
