"""What the handlers share: the request as they see it, the values that a client may send, and the answer as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from django.http import HttpRequest, HttpResponse
from ninja import Schema
from pydantic import AfterValidator

from runs.authority import Caller, Scope
from runs.engine import Engine
from runs.patterns import PatternRegistry
from runs.stream import Sources


class Served(Sources, Protocol):
    """The parts of a Vessel that the API uses."""

    @property
    def engine(self) -> Engine:
        """Admits."""
        ...

    @property
    def registry(self) -> PatternRegistry:
        """What can be submitted."""
        ...


class Problem(Schema):
    """Problem details (RFC 9457); `errors` says for invalid input where it is invalid."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[dict[str, Any]] = []


def problems(*codes: int) -> dict[int, type[Schema]]:
    """The refusals of an operation, for OpenAPI; 401 and 403 go with every one."""
    return dict.fromkeys((*codes, 401, 403), Problem)


def allowed(request: HttpRequest, scope: Scope) -> tuple[Caller, Served]:
    """Who asks, and the Vessel that is asked.

    Raises:
        Forbidden: the caller does not have the scope.
        NotAdmitting: no Vessel is behind this address.
    """
    asked: Any = request
    caller: Caller = asked.auth
    caller.require(scope)
    return caller, asked.vessel


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """The value as the response, exactly as it is: what we built needs no second validation."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return HttpResponse(
        text.encode("utf-8", "backslashreplace"),
        status=status,
        content_type="application/json; charset=utf-8",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds characters that cannot be printed")
    return text


# Text that may reach a query: PostgreSQL knows no NUL, and nothing that we name holds control characters.
Word = Annotated[str, AfterValidator(_printable)]
