"""What the handlers share: the request as they see it, the values that a client may send, and the answer as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from django.http import HttpRequest, HttpResponse
from ninja import Schema
from pydantic import AfterValidator, ConfigDict, Field

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
    """Problem details (RFC 9457); `errors` says where input is invalid. Some carry facts of their own."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[dict[str, Any]] = []
    request: str | None = Field(None, description="the id under which the log knows this request")


def problems(*codes: int) -> dict[int, type[Schema]]:
    """The refusals of an operation, for OpenAPI; those of the door go with every one.

    400: the request is not well formed, or its host is not served here; 503: no Vessel, or its database is away.
    """
    return dict.fromkeys(sorted({*codes, 400, 401, 403, 503}), Problem)


def header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """A request header that a handler reads for itself, for OpenAPI."""
    shown = {"type": "string", **schema}
    return {"in": "header", "name": name, "required": False, "description": description, "schema": shown}


def told(*names: str) -> dict[str, Any]:
    """Headers of an answer, for OpenAPI."""
    return {"headers": {name: {"schema": {"type": "string"}} for name in names}}


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
