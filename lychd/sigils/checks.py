"""System checks of this app: what sessions must be like for the API and WebSockets to read them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error

# Both write each session to the table that authentication reads.
READABLE = frozenset({"django.contrib.sessions.backends.db", "django.contrib.sessions.backends.cached_db"})


def check_session_engine(**_kwargs: Any) -> list[CheckMessage]:
    """`lychd.E201`: sessions are kept where authentication does not look."""
    if settings.SESSION_ENGINE in READABLE:
        return []
    return [
        Error(
            f"SESSION_ENGINE is {settings.SESSION_ENGINE}, whose sessions the API cannot read.",
            hint=f"Use one of {', '.join(sorted(READABLE))}.",
            id="lychd.E201",
        )
    ]
