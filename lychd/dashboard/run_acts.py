"""What a person does on the page of a Run: cancel it, answer what it asks."""

from __future__ import annotations

import uuid

from django.http import HttpRequest, HttpResponse

from lychd.dashboard.context import not_found, page


@page("runs", "runs.cancel_run")
def cancel(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:  # noqa: ARG001
    """Cancel."""
    return not_found(request, "runs", "There is no such Run.")


@page("runs", "consents.decide_consent")
def decide(request: HttpRequest, run_id: uuid.UUID, consent_id: uuid.UUID) -> HttpResponse:  # noqa: ARG001
    """Decide."""
    return not_found(request, "runs", "There is no such Run.")
