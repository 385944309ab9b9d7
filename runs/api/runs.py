"""`/runs`: submit, list, look at one."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.http import parse_etags
from ninja import Router
from pydantic import Field

from runs import paging
from runs import reads as rows
from runs.api import schemas
from runs.api.request import Word, allowed, answer, header, problems, told
from runs.authority import Scope
from runs.errors import Invalid, NotFound, Unknown
from runs.paging import Cursor
from runs.reads import RunFilter, RunRow
from runs.states import RunStatus
from runs.submission import Submission

router = Router(tags=["runs"])

LONGEST_KEY = 200
# A page stops early above so many characters of payload, and says where the next one begins.
PAGE_SIZE = 8 * 1024 * 1024
CHUNK = paging.DEFAULT_LIMIT + 1


@router.post(
    "/runs",
    summary="Submit",
    response={201: schemas.Run, 200: schemas.Run, **problems(404, 409, 410, 413, 415, 422, 429)},
    openapi_extra={
        "parameters": [header("Idempotency-Key", "makes it safe to repeat", minLength=1, maxLength=LONGEST_KEY)],
        "responses": {
            201: told("Location"),
            200: told("Location", "Idempotency-Replayed"),
            429: told("Retry-After"),
        },
    },
)
async def submit(request: HttpRequest, body: schemas.Submit) -> HttpResponse:
    """Admit a Run. The header `Idempotency-Key` (1 to 200 printable characters) makes it safe to repeat.

    201 with `Location`; 200 with `Idempotency-Replayed: true` when this very request was admitted before; 409 when
    the key was used for other work or the session has an unfinished Run; 429 with `Retry-After` under pressure.
    """
    caller, vessel = allowed(request, Scope.RUNS_SUBMIT)
    asked = _asked(body, _key(request))
    try:
        submitted = await vessel.engine.submit(caller, asked)
    except Invalid as error:
        # All else was proved above, so this speaks of the input; the client sees it as a part of its body.
        error.errors = [{**one, "pointer": f"/input{one.get('pointer', '')}"} for one in error.errors]
        raise
    row = await rows.run(vessel.reads, submitted.run_id, caller.tenant)
    if row is None:
        raise Unknown(f"Run {submitted.run_id} was admitted and cannot be found.")
    headers = {"Location": f"{request.path.rstrip('/')}/{row.id}"}
    if submitted.replayed:
        return answer(row.to_json(), 200, {**headers, "Idempotency-Replayed": "true"})
    return answer(row.to_json(), 201, headers)


@router.get("/runs", summary="List", response={200: schemas.RunPage, **problems(422)})
async def listing(
    request: HttpRequest,
    status: RunStatus | None = None,
    pattern: Word | None = None,
    session: uuid.UUID | None = None,
    source: Word | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Field(ge=1, le=paging.MOST)] = paging.DEFAULT_LIMIT,
) -> HttpResponse:
    """The tenant's Runs, newest first. A page of large Runs may be shorter than `limit`; `next` tells."""
    caller, vessel = allowed(request, Scope.RUNS_READ)
    where = RunFilter(status=status, pattern=pattern, session=session, source=source)
    last = paging.decode_optional(cursor)
    found: list[RunRow] = []
    size = 0
    while len(found) <= limit and size < PAGE_SIZE:
        wanted = min(limit + 1 - len(found), CHUNK)
        before = (last.at, last.id) if last else None
        chunk = await rows.runs(vessel.reads, caller.tenant, where, before=before, limit=wanted)
        found += chunk
        size += sum(len(row.input_json) + len(row.output_json or "") for row in chunk)
        if len(chunk) < wanted:
            break
        last = _place(chunk[-1])
    else:
        # There may be more: the last row found only says so.
        limit = min(limit, len(found) - 1)
    page = paging.page(found, limit, _place)
    return answer({"items": [row.to_json() for row in page.items], "next": page.next})


@router.get(
    "/runs/{run_id}",
    summary="One Run",
    response={200: schemas.Run, 304: None, **problems(404, 422)},
    openapi_extra={
        "parameters": [header("If-None-Match", "an ETag from before: 304 as long as nothing has changed")],
        "responses": {200: told("ETag"), 304: told("ETag")},
    },
)
async def one(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """One Run, with a weak `ETag`; with `If-None-Match` 304 as long as nothing has changed."""
    caller, vessel = allowed(request, Scope.RUNS_READ)
    row = await rows.run(vessel.reads, run_id, caller.tenant)
    if row is None:
        raise NotFound("There is no such Run.")
    etag = _etag(row)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    known: list[str] = parse_etags(request.headers.get("If-None-Match", ""))
    if etag in known or "*" in known:
        return HttpResponseNotModified(headers=headers)
    return answer(row.to_json(), 200, headers)


def _asked(body: schemas.Submit, key: str | None) -> Submission:
    if body.fence_session and body.session is None:
        detail = "needs a session"
        error = {"pointer": "/fence_session", "detail": detail, "code": "missing"}
        raise Invalid(f"fence_session {detail}.", errors=[error])
    return Submission(
        pattern=body.pattern,
        input=body.input,
        priority=body.priority,
        session=body.session,
        fence_session=body.fence_session,
        source=body.source,
        key=key,
    )


def _key(request: HttpRequest) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None or (1 <= len(key) <= LONGEST_KEY and key.isprintable()):
        return key
    detail = f"must be 1 to {LONGEST_KEY} printable characters"
    error: dict[str, Any] = {"in": "header", "pointer": "/Idempotency-Key", "detail": detail, "code": "idempotency_key"}
    raise Invalid(f"Idempotency-Key {detail}.", errors=[error])


def _place(row: RunRow) -> Cursor:
    return Cursor(row.created_at, row.id)


def _etag(row: RunRow) -> str:
    # Every change of a Run moves one of the two.
    return f'W/"{row.hop}-{row.updated_at.timestamp():.6f}"'
