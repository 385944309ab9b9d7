"""What can be submitted, and the conversations that Runs belong to."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from runs import reads as rows
from runs.api import schemas
from runs.api.request import allowed, answer, problems
from runs.authority import Scope
from runs.errors import NotFound
from runs.patterns import AnyPattern

router = Router()


@router.get("/patterns", summary="Patterns", tags=["patterns"], response={200: schemas.PatternPage, **problems()})
async def patterns(request: HttpRequest) -> HttpResponse:
    """What can be submitted, in the order of registration; there are few, so there is one page."""
    _, vessel = allowed(request, Scope.RUNS_READ)
    return answer({"items": [_shown(pattern) for pattern in vessel.registry.active()], "next": None})


@router.get(
    "/patterns/{key}", summary="One Pattern", tags=["patterns"], response={200: schemas.Pattern, **problems(404)}
)
async def pattern(request: HttpRequest, key: str) -> HttpResponse:
    """The active revision: its graph, its digest, the schemas of input and output."""
    _, vessel = allowed(request, Scope.RUNS_READ)
    return answer(_shown(vessel.registry.select(key)))


@router.get(
    "/sessions/{session_id}",
    summary="One session",
    tags=["sessions"],
    response={200: schemas.Session, **problems(404, 422)},
)
async def session(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    """A conversation with its newest turns and their Runs."""
    caller, vessel = allowed(request, Scope.RUNS_READ)
    found = await rows.session(vessel.reads, session_id, caller.tenant)
    if found is None:
        raise NotFound("There is no such session.")
    return answer(found)


def _shown(pattern: AnyPattern) -> dict[str, Any]:
    shown = pattern.manifest.to_json()
    schemas_of = shown.pop("schemas")
    return {
        **shown,
        "title": pattern.title,
        "description": pattern.description,
        "input": schemas_of["input"],
        "output": schemas_of["output"],
    }
