"""The two ways in as the API declares them, in OpenAPI too. The law itself is in `lychd.sigils.http`."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest
from ninja.security.base import AuthBase

from lychd.sigils.http import bearer_caller, session_caller
from runs.authority import Caller


class BearerAuth(AuthBase):
    """`Authorization: Bearer …` against the Sigils."""

    openapi_type = "http"
    openapi_scheme = "bearer"
    openapi_description = "The token of a Sigil."

    async def __call__(self, request: HttpRequest) -> Caller | None:
        """The caller, or None when the request has no token; see `bearer_caller`."""
        return await bearer_caller(request)


class SessionAuth(AuthBase):
    """The session cookie of a person who is logged in, with a CSRF token for everything that is not a mere look."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME
    openapi_description = "The session of the site, for browsers; unsafe methods need the header X-CSRFToken."
    # The docs page asks for this, and then sends the token along.
    csrf = True

    async def __call__(self, request: HttpRequest) -> Caller | None:
        """The caller, or None when the request has no session; see `session_caller`."""
        return await session_caller(request)


# A token that was presented decides alone; the cookie beside it counts only where there is none.
AUTH = (BearerAuth(), SessionAuth())
