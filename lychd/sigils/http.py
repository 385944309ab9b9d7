"""How a REST request says who sends it: a bearer token, else a browser's session with CSRF protection.

Runs behind the short handler stack, where no session or CSRF middleware has been; so the cookie is read and the
CSRF law asked here. A presented token that is not good never falls back to the cookie beside it.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from lychd.sigils.authenticate import Lookup, by_session, by_token
from runs.authority import Caller, Surface
from runs.errors import Forbidden, NotAdmitting, Unauthenticated

TENANT_HEADER = "Lychd-Tenant"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class CsrfRefused(Forbidden):
    """The request carries a session but no proof that this site sent it."""

    code, title = "csrf_refused", "CSRF check failed"


class BadToken(Unauthenticated):
    """The token is unknown, revoked or expired."""

    title = "Bad token"


class _Csrf(CsrfViewMiddleware):
    """Django's CSRF law asked as a question: the answer is the reason to refuse, or None."""

    def _reject(self, request: HttpRequest, reason: str) -> Any:  # noqa: ARG002 Django's signature
        return reason


async def bearer_caller(request: HttpRequest) -> Caller | None:
    """The caller behind `Authorization: Bearer …`; None when the request has no such header.

    Raises:
        Unauthenticated: the header is not of this form, or its token opens nothing.
        Forbidden: the request names a foreign tenant.
        NotAdmitting: there is no Vessel behind this door.
    """
    header = request.headers.get("Authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("The Authorization header must be of the form: Bearer <token>.")
    caller = await by_token(token.strip(), Surface.REST, lookup_of(request), tenant=_tenant(request))
    if caller is None:
        raise BadToken
    return caller


async def session_caller(request: HttpRequest) -> Caller | None:
    """The person behind the session cookie; None when the request has no such cookie.

    Raises:
        Unauthenticated: the session is not good.
        CsrfRefused: an unsafe method without proof that this site sent it.
        Forbidden: the request names a foreign tenant.
        NotAdmitting: there is no Vessel behind this door.
    """
    key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if key is None:
        return None
    caller = await by_session(key, Surface.REST, lookup_of(request), tenant=_tenant(request))
    if caller is None:
        raise Unauthenticated("The session has ended; log in again.")
    require_csrf(request)
    return caller


def require_csrf(request: HttpRequest) -> None:
    """Ask Django's CSRF law about a request that a session stands behind.

    Raises:
        CsrfRefused: an unsafe method, and the origin or the token is not good.
    """
    if request.method in _SAFE:
        return
    # The check looks into POST, which would use up the stream of a form; a body that is kept can be read twice.
    _ = request.body
    law = _Csrf(_no_view)
    law.process_request(request)
    reason: Any = law.process_view(request, _no_view, (), {})
    if isinstance(reason, str):
        raise CsrfRefused(reason)


def lookup_of(request: HttpRequest) -> Lookup:
    """The reading pool of the Vessel behind the request.

    Raises:
        NotAdmitting: there is none.
    """
    vessel: Any = getattr(request, "vessel", None)
    if vessel is None:
        raise NotAdmitting("No Vessel is running behind this address.")
    lookup: Lookup = vessel.reads
    return lookup


def _tenant(request: HttpRequest) -> str | None:
    return request.headers.get(TENANT_HEADER) or None


def _no_view(request: HttpRequest) -> HttpResponse:
    """Stands for the view, which may not excuse itself from the check."""
    raise AssertionError(request.path)
