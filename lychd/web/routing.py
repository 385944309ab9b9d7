"""The WebSocket half of the ASGI application: Channels' router behind the gate that authenticates."""

from __future__ import annotations

from typing import Any, cast

from channels.routing import URLRouter
from django.urls import re_path

from consents.consumers import all_consents
from lychd.sigils.websocket import gated
from lychd.web.request_ids import Application, with_request_id
from runs.consumers import all_runs, nothing_here, run_events


def websocket_application() -> Application:
    """The application for `websocket` scopes; needs Django to be set up."""
    routes: list[Any] = [
        re_path(r"^ws/runs/$", all_runs()),
        re_path(r"^ws/consents/?$", all_consents()),
        re_path(r"^ws/runs/(?P<run_id>[^/]+)/?$", run_events),
        re_path(r"", nothing_here),
    ]
    return with_request_id(gated(cast("Application", URLRouter(routes))))
