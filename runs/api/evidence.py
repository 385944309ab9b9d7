"""What happened in a Run: its stored Steps in pages, and its events as they happen.

A Step carries its `data` as it was emitted, log lines included, to callers who may read Runs; the interface says so and
stands above EVT-21, which speaks of a page for onlookers. What EVT-21 keeps back of the request itself is kept: no
Step repeats a Run's input, and neither do refusals nor the log.
"""

from __future__ import annotations

import uuid
from typing import Annotated

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Router
from pydantic import Field

from runs import reads as rows
from runs import sse
from runs.api import schemas
from runs.api.request import allowed, answer, header, problems
from runs.authority import Scope
from runs.errors import NotFound
from runs.events import cursor as cursors
from runs.stream import RunStream
from runs.stream.rows import standing

router = Router(tags=["runs"])

MOST_STEPS = 500
LARGEST_SEQ = 2**31 - 1


@router.get("/runs/{run_id}/steps", summary="Stored Steps", response={200: schemas.StepPage, **problems(404, 422)})
async def steps(
    request: HttpRequest,
    run_id: uuid.UUID,
    after_seq: Annotated[int, Field(ge=-1, le=LARGEST_SEQ)] = -1,
    limit: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 100,
) -> HttpResponse:
    """Steps with a greater number, in order; `gaps` names numbers that are missing and were no tokens.

    A page of large Steps may be shorter than `limit`; `next_after` tells.
    """
    caller, vessel = allowed(request, Scope.RUNS_READ)
    if await standing(vessel.reads, run_id, caller.tenant) is None:
        raise NotFound("There is no such Run.")
    page = await rows.steps(vessel.reads, run_id, after=after_seq, limit=limit)
    return answer(
        {
            "items": [step.to_json(run_id) for step in page.items],
            "gaps": page.gaps,
            "next_after": page.items[-1].seq if page.more else None,
        }
    )


@router.get(
    "/runs/{run_id}/events",
    summary="Events as they happen",
    response={200: None, **problems(404, 422)},
    openapi_extra={
        "parameters": [
            header("Last-Event-ID", "the cursor of the last event that the client has; goes before `cursor`")
        ],
        "responses": {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    },
)
async def events(
    request: HttpRequest, run_id: uuid.UUID, cursor: str | None = None, history: bool = False
) -> StreamingHttpResponse:
    """Server-sent events: `event`, `resync`, `gap`, and `end`, after which the client closes.

    The header `Last-Event-ID` or `cursor` says what the client has; `history=1` gives stored Steps before a resync.
    """
    caller, vessel = allowed(request, Scope.RUNS_READ)
    # What the browser remembers is newer than the address that it was given.
    place = request.headers.get("Last-Event-ID") or cursor
    scope = getattr(request, "scope", {})
    stream = RunStream(
        vessel,
        caller.tenant,
        run_id,
        cursor=cursors.parse(place) if place else None,
        history=history,
        writable=sse.writable_of(scope),
    )
    return sse.response(await stream.open(), sse.stopping_of(scope))
