"""How a WebSocket says who opens it, and what it is told when it may not.

A token comes in `Authorization: Bearer`, or for browsers elsewhere as the subprotocols `lychd.v1, bearer.<token>`,
and needs no Origin: a page of a foreign site cannot know it. A session cookie travels without being asked, so it
counts only together with an Origin whose scheme, host and port are ours or trusted (ruling 35). The token is never
echoed: `lychd.v1` is the only subprotocol that is ever accepted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import structlog
from django.conf import settings
from django.http import parse_cookie
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain

from lychd.sigils.authenticate import Lookup, by_session, by_token
from runs.authority import Caller, Surface
from runs.errors import Forbidden, LychdError, NotAdmitting, NotFound, Unauthenticated

type Scope = dict[str, Any]
type Receive = Callable[[], Awaitable[Any]]
type Send = Callable[[Any], Awaitable[None]]
type Application = Callable[[Scope, Receive, Send], Awaitable[None]]

log = structlog.get_logger()

SUBPROTOCOL = "lychd.v1"
_BEARER = "bearer."
_PORTS = {"http": 80, "https": 443}


async def authenticate_scope(scope: Scope, lookup: Lookup) -> Caller:
    """The caller behind a WebSocket's opening request.

    Raises:
        Unauthenticated: nothing was presented, or it is not good; close with 4401.
        Forbidden: a session with a foreign Origin, or a tenant that is not the caller's; close with 4403.

    Cancellation leaves nothing behind.
    """
    tenant = _tenant(scope)
    token = _token(scope)
    if token is not None:
        caller = await by_token(token, Surface.REST, lookup, tenant=tenant)
        if caller is None:
            raise Unauthenticated("The token is unknown, revoked or expired.")
        return caller
    key = parse_cookie("; ".join(_headers(scope, b"cookie"))).get(settings.SESSION_COOKIE_NAME)
    if key is None:
        raise Unauthenticated
    if not has_allowed_origin(scope):
        raise Forbidden("A session counts only on pages of this site.")
    caller = await by_session(key, Surface.REST, lookup, tenant=tenant)
    if caller is None:
        raise Unauthenticated("The session has ended; log in again.")
    return caller


def chosen_subprotocol(scope: Scope) -> str | None:
    """The subprotocol to accept: `lychd.v1` when the client offers it, else none."""
    return SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None


def close_code(error: LychdError) -> int:
    """The close code of the interface for a refusal."""
    if isinstance(error, Unauthenticated):
        return 4401
    if isinstance(error, Forbidden):
        return 4403
    if isinstance(error, NotFound):
        return 4404
    return 1013 if isinstance(error, NotAdmitting) else 1011


def has_allowed_origin(scope: Scope) -> bool:
    """Whether the one Origin is this very site, by its allowed Host, or in CSRF_TRUSTED_ORIGINS."""
    origins = _headers(scope, b"origin")
    if len(origins) != 1:
        return False
    origin = _parts(origins[0])
    if origin is None:
        return False
    hosts = _headers(scope, b"host")
    if len(hosts) == 1 and validate_host(split_domain_port(hosts[0])[0], settings.ALLOWED_HOSTS):
        own = _parts(f"{'https' if _is_secure(scope) else 'http'}://{hosts[0]}")
        if origin == own:
            return True
    return any(_is_trusted(origin, trusted) for trusted in settings.CSRF_TRUSTED_ORIGINS)


def gated(application: Application) -> Application:
    """Let only authenticated WebSockets through, with `scope["caller"]` and `scope["subprotocol"]` set.

    A refused one is accepted and closed at once, since a browser sees the code of a close but not the status of a
    refused handshake. The pool is `scope["state"]["vessel"].reads`.
    """

    async def gate(scope: Scope, receive: Receive, send: Send) -> None:
        subprotocol = chosen_subprotocol(scope)
        try:
            vessel: Any = scope.get("state", {}).get("vessel")
            if vessel is None:
                raise NotAdmitting("No Vessel is running behind this address.")
            scope["caller"] = await authenticate_scope(scope, vessel.reads)
        except LychdError as error:
            log.info("socket.refused", path=scope.get("path"), code=error.code)
            await receive()
            await send({"type": "websocket.accept", "subprotocol": subprotocol})
            await send({"type": "websocket.close", "code": close_code(error), "reason": error.title})
            return
        scope["subprotocol"] = subprotocol
        await application(scope, receive, send)

    return gate


def _token(scope: Scope) -> str | None:
    """The presented token; an unusable `Authorization` counts as one that opens nothing."""
    presented = _headers(scope, b"authorization")
    if presented:
        scheme, _, token = presented[0].partition(" ")
        return token.strip() if len(presented) == 1 and scheme.lower() == "bearer" else ""
    offered = [name for name in scope.get("subprotocols", ()) if name.startswith(_BEARER)]
    return offered[0].removeprefix(_BEARER) if offered else None


def _tenant(scope: Scope) -> str | None:
    """The tenant that the request names: by header, or by query since pages cannot set headers here."""
    named = _headers(scope, b"lychd-tenant")
    if named:
        return named[0]
    query = parse_qs(bytes(scope.get("query_string", b"")).decode("latin-1"))
    return query.get("tenant", [None])[0]


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope.get("headers", ()) if key == name]


def _is_secure(scope: Scope) -> bool:
    trusted = settings.SECURE_PROXY_SSL_HEADER
    if trusted:
        header = trusted[0].removeprefix("HTTP_").replace("_", "-").lower().encode("latin-1")
        forwarded = _headers(scope, header)
        if forwarded:
            return forwarded[0].split(",")[0].strip() == trusted[1]
    return scope.get("scheme") in {"wss", "https"}


def _parts(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an origin; None for `null` and everything that is none."""
    try:
        split = urlsplit(origin)
        port = split.port
    except ValueError:
        return None
    if (
        split.scheme not in _PORTS
        or not split.hostname
        or split.path
        or split.query
        or split.fragment
        or split.username
    ):
        return None
    return split.scheme, split.hostname, port or _PORTS[split.scheme]


def _is_trusted(origin: tuple[str, str, int], trusted: str) -> bool:
    """Whether a configured origin covers this one; `https://*.example.org` covers subdomains, as for CSRF."""
    scheme, _, netloc = trusted.partition("://")
    if not netloc.startswith("*"):
        return _parts(trusted) == origin
    pattern = _parts(f"{scheme}://{netloc.removeprefix('*').removeprefix('.')}")
    if pattern is None:
        return False
    return (origin[0], origin[2]) == (pattern[0], pattern[2]) and is_same_domain(origin[1], f".{pattern[1]}")
