"""The icon, where browsers look for it. The pages themselves are the dashboard's and the admin's."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.templatetags.static import static
from django.views.decorators.http import require_safe


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 a view
    """Where browsers look on pages that name no icon, such as the admin's."""
    return HttpResponsePermanentRedirect(static("lychd/favicon.svg"))
