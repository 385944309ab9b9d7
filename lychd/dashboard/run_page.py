"""The page of one Run."""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from lychd.dashboard.context import not_found, page


@require_safe
@page("runs", "runs.view_run")
def run(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:  # noqa: ARG001
    """One Run."""
    return not_found(request, "runs", "There is no such Run.")
