"""Every error as RFC 9457 problem details: one shape for refusals, bad input, unknown addresses and our own faults.

What a caller may be told is in the error tree; of everything else they learn only that it happened and under which
request id the log has it. Logs what is our fault once, and never a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

import structlog
from django.core.exceptions import (
    BadRequest,
    DisallowedHost,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.http import Http404, HttpRequest, HttpResponse
from ninja.errors import HttpError, ValidationError

from lychd.web import encoding
from lychd.web.refusals import BodyTooLarge, MethodNotAllowed
from lychd.web.request_ids import current
from runs import payloads
from runs.errors import Forbidden, Invalid, LychdError, NotFound, Refused, TooMany, Unauthenticated

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
_LONGEST_NAME = 100
_OWN_MEMBERS = frozenset({"type", "title", "status", "detail", "code", "errors", "request"})


def respond(request: HttpRequest, error: Exception) -> HttpResponse:
    """The response for whatever went wrong; logs it when it is our fault.

    Args:
        request: what was asked; only its method and path reach the log.
        error: a refusal of ours, of ninja or of Django, or anything else.
    """
    known = _known(error)
    if known is None or not isinstance(known, Refused):
        log.error(
            "web.failed",
            method=request.method,
            path=request.path,
            code=known.code if known else "internal",
            exc_info=error,
        )
    return problem(known or LychdError("Something went wrong here; the log has it under this request id."))


def problem(error: LychdError) -> HttpResponse:
    """The problem details of an error of the tree; facts of refusals become members of their own."""
    facts = error.facts if isinstance(error, Refused) else {}
    body: dict[str, Any] = {
        "type": f"urn:lychd:problem:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        **{name: value for name, value in facts.items() if name not in _OWN_MEMBERS},
    }
    if isinstance(error, Invalid) and error.errors:
        body["errors"] = error.errors
    if current():
        body["request"] = current()
    response = HttpResponse(encoding.dumps(body), status=error.status, content_type=MEDIA_TYPE)
    if isinstance(error, Unauthenticated):
        hint = ', error="invalid_token"' if type(error) is not Unauthenticated else ""
        response["WWW-Authenticate"] = f'Bearer realm="LychD"{hint}'
    if isinstance(error, TooMany):
        response["Retry-After"] = str(error.retry_after)
    response["Cache-Control"] = "no-store"
    return response


def as_problem(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """A bare error response of the frameworks turned into problem details; others pass as they are.

    Args:
        request: what was asked.
        response: what a view or a framework answered.
    """
    if response.status_code != 405 or response.get("Content-Type", "").startswith(MEDIA_TYPE):
        return response
    allowed = response.get("Allow", "")
    told = problem(MethodNotAllowed(f"{request.method} is not possible here, only {allowed or 'nothing'}."))
    told["Allow"] = allowed
    return told


def invalid(errors: Iterable[dict[str, Any]]) -> Invalid:
    """The refusal for errors as pydantic reports them, their first `loc` naming the part of the request.

    It names at most `MOST_ERRORS` of them, and never repeats a long name that the client made up.
    """
    told: list[dict[str, Any]] = []
    for error in islice(errors, payloads.MOST_ERRORS):
        part, *path = error.get("loc") or ("body",)
        one: dict[str, Any] = {
            "pointer": encoding.pointer([_short(step) for step in path]),
            "detail": str(error.get("msg", "is not valid")),
            "code": str(error.get("type", "invalid")),
        }
        if part != "body":
            one["in"] = str(part)
        told.append(one)
    first = told[0] if told else {"pointer": "", "detail": "it is not valid"}
    where = first["pointer"] or f"the {first.get('in', 'body')}"
    return Invalid(f"The request is not valid: {where}: {first['detail']}.", errors=told)


def _short(step: Any) -> Any:
    return f"{step[:_LONGEST_NAME]}…" if isinstance(step, str) and len(step) > _LONGEST_NAME else step


def _known(error: Exception) -> LychdError | None:
    if isinstance(error, LychdError):
        return error
    if isinstance(error, ValidationError):
        return invalid(error.errors)
    if isinstance(error, HttpError):
        # ninja wraps whatever reading the body raised.
        if isinstance(error.__cause__, LychdError):
            return error.__cause__
        if isinstance(error.__cause__, json.JSONDecodeError | UnicodeDecodeError):
            return Refused("The request body is not JSON.")
        return _by_status(error.status_code, str(error))
    if isinstance(error, Http404):
        return NotFound("There is nothing at this address.")
    if isinstance(error, RequestDataTooBig):
        return BodyTooLarge()
    if isinstance(error, PermissionDenied):
        return Forbidden()
    if isinstance(error, DisallowedHost):
        return Refused("This host name is not served here.")
    if isinstance(error, BadRequest | SuspiciousOperation):
        return Refused("The request is not well formed.")
    return None


def _by_status(status: int, detail: str) -> LychdError | None:
    if status == 401:
        return Unauthenticated()
    if status == 403:
        return Forbidden(detail)
    if status == 404:
        return NotFound(detail)
    if status == 429:
        return TooMany(detail)
    return Refused(detail) if 400 <= status < 500 else None
