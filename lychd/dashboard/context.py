"""What all pages of the dashboard share: who may look, of which tenant, and the frame around the page."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from runs.admin import tenancy

type View[**P] = Callable[Concatenate[HttpRequest, P], HttpResponse]

# The places of the navigation: name of the route, and its word.
PLACES = (
    ("home", "Home"),
    ("runs", "Runs"),
    ("consents", "Consents"),
    ("patterns", "Patterns"),
    ("system", "System"),
)


def frame(request: HttpRequest, place: str, title: str, **more: Any) -> dict[str, Any]:
    """The context of a page.

    Args:
        place: the name of the route under which the navigation shows the page.
        title: of the page, without the product's name.
        more: what the page itself needs.
    """
    tenants = tenancy.choices(request) if request.user.is_authenticated else []
    return {
        "place": place,
        "places": PLACES,
        "title": title,
        "tenant": tenancy.chosen(request) if tenants else None,
        "tenants": tenants if len(tenants) > 1 else [],
        "as_of": timezone.now(),
        **more,
    }


def page[**P](place: str, *permissions: str) -> Callable[[View[P]], View[P]]:
    """A view that needs a login and one of these permissions; without them it says in words which are missing.

    Args:
        place: the name of the route under which the navigation shows the page.
        permissions: as `app_label.codename`; any one of them is enough, none means that a login is enough.
    """

    def guarded(view: View[P]) -> View[P]:
        @wraps(view)
        def looked(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            user: Any = request.user
            if permissions and not any(user.has_perm(name) for name in permissions):
                return no_permission(request, place, *permissions)
            answer = view(request, *args, **kwargs)
            answer.headers.setdefault("Cache-Control", "private, no-store")
            return answer

        return login_required(looked)  # pyright: ignore[reportReturnType] - the stubs forget the parameters

    return guarded


def no_permission(request: HttpRequest, place: str, *permissions: str) -> HttpResponse:
    """403 as a page that names what is missing."""
    context = frame(request, place, "You may not look here", permissions=permissions)
    return render(request, "lychd/dashboard/no_permission.html", context, status=403)


def not_found(request: HttpRequest, place: str, sentence: str, hint: str = "") -> HttpResponse:
    """404 as a page of the dashboard; what belongs to another tenant is not there either."""
    context = frame(request, place, "Not here", sentence=sentence, hint=hint)
    return render(request, "lychd/dashboard/not_found.html", context, status=404)
