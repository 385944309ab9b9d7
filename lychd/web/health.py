"""The three questions of operators' machines: does the loop turn, is the Vessel ready, what are its figures.

Asks the database nothing itself; what readiness means is the Vessel's to say. Open to everyone who reaches the port:
the reasons name parts, never data.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from lychd.web import encoding
from runs.errors import NotAdmitting

READINESS_SECONDS = 5.0


class Check(Protocol):
    """One named condition of readiness; `age` is in seconds since it was last seen to be so, None if not known."""

    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def age(self) -> float | None: ...


class Observable(Protocol):
    """What the probes need of the Vessel."""

    def readiness(self) -> Sequence[Check] | Awaitable[Sequence[Check]]:
        """All conditions, met or not."""
        ...

    def metrics(self) -> CollectorRegistry | Awaitable[CollectorRegistry]:
        """The registry of all figures."""
        ...


async def healthz(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 a view
    """200 as long as the loop turns: that it answers is the proof."""
    return _plain("ok", 200)


async def readyz(request: HttpRequest) -> HttpResponse:
    """200 when every condition is met, else 503; both with the conditions as JSON."""
    try:
        found: Any = _vessel(request).readiness()
        async with asyncio.timeout(READINESS_SECONDS):
            checks: Sequence[Check] = await found if inspect.isawaitable(found) else found
    except NotAdmitting as error:
        return _readiness([_condition("vessel", ok=False, reason=error.detail)])
    except TimeoutError:
        return _readiness([_condition("readiness", ok=False, reason=f"no answer within {READINESS_SECONDS:g} s")])
    return _readiness([_condition(one.name, ok=one.ok, reason=one.reason, age=one.age) for one in checks])


async def metrics(request: HttpRequest) -> HttpResponse:
    """The figures in the format that the client asks for: Prometheus text or OpenMetrics."""
    try:
        found: Any = _vessel(request).metrics()
        registry: CollectorRegistry = await found if inspect.isawaitable(found) else found
    except NotAdmitting as error:
        return _plain(error.detail, 503)
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


def _vessel(request: HttpRequest) -> Observable:
    vessel: Observable | None = getattr(request, "vessel", None)
    if vessel is None:
        raise NotAdmitting("No Vessel is running behind this address.")
    return vessel


def _condition(name: str, *, ok: bool, reason: str | None = None, age: float | None = None) -> dict[str, Any]:
    return {"name": name, "ok": ok, "reason": reason, "age": age}


def _readiness(conditions: list[dict[str, Any]]) -> HttpResponse:
    ready = all(one["ok"] for one in conditions)
    response = HttpResponse(
        encoding.dumps({"ready": ready, "checks": conditions}),
        status=200 if ready else 503,
        content_type="application/json",
    )
    response["Cache-Control"] = "no-store"
    return response


def _plain(text: str, status: int) -> HttpResponse:
    response = HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
    response["Cache-Control"] = "no-store"
    return response
