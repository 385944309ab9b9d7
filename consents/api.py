"""The REST edge of Consents: list, look at one, decide. Knows no table; `router` is what the API root collects."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Protocol, cast

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.http import parse_etags
from ninja import Router
from pydantic import Field

from consents import rows, schemas
from consents.deciding import decide_here
from consents.decisions import Vote, authorise
from consents.models import ConsentStatus
from consents.people import voter_behind
from consents.rows import ConsentFilter, ConsentRow
from runs import paging
from runs.api.request import Served, allowed, answer, problems
from runs.authority import Caller, Scope
from runs.errors import Conflict, Forbidden, NotFound
from runs.ledger.ledger import Ledger
from runs.paging import Cursor

router = Router(tags=["consents"])

# A page stops early above so many characters of questions, and says where the next one begins.
PAGE_SIZE = 8 * 1024 * 1024
CHUNK = paging.DEFAULT_LIMIT + 1


class Deciding(Served, Protocol):
    """The parts of a Vessel that decisions use."""

    @property
    def ledger(self) -> Ledger:
        """Records verdicts."""
        ...


@router.get("/consents", summary="List", response={200: schemas.ConsentPage, **problems(400, 422, 503)})
async def listing(
    request: HttpRequest,
    status: ConsentStatus | None = None,
    run: uuid.UUID | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Field(ge=1, le=paging.MOST)] = paging.DEFAULT_LIMIT,
) -> HttpResponse:
    """The tenant's Consents, newest first. A page of large questions may be shorter than `limit`; `next` tells.

    One whose time is over is `expired` at once and no longer among the pending; `status=expired` has it as soon as
    that has been recorded.
    """
    caller, vessel = allowed(request, Scope.CONSENTS_READ)
    last = paging.decode_optional(cursor)
    found: list[ConsentRow] = []
    size = 0
    while len(found) <= limit and size < PAGE_SIZE:
        wanted = min(limit + 1 - len(found), CHUNK)
        before = (last.at, last.id) if last else None
        chunk = await rows.page(vessel.reads, caller.tenant, ConsentFilter(status, run), before=before, limit=wanted)
        found += chunk
        size += sum(row.size for row in chunk)
        if len(chunk) < wanted:
            break
        last = _place(chunk[-1])
    else:
        # There may be more: the last row found only says so.
        limit = min(limit, len(found) - 1)
    page = paging.page(found, limit, _place)
    return answer({"items": [row.to_json() for row in page.items], "next": page.next})


@router.get(
    "/consents/{consent_id}",
    summary="One Consent",
    response={200: schemas.OneConsent, 304: None, **problems(404, 422, 503)},
)
async def one(request: HttpRequest, consent_id: uuid.UUID) -> HttpResponse:
    """One Consent, with a weak `ETag`; with `If-None-Match` 304 as long as nothing has changed.

    `you` says whether the caller may decide it, as the rights are at this moment.
    """
    caller, vessel = allowed(request, Scope.CONSENTS_READ)
    row = await _row(vessel, consent_id, caller.tenant)
    you = await _you(vessel, caller, row)
    etag = f'W/"{row.status}-{row.updated_at.timestamp():.6f}-{int(you["may_decide"])}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    known: list[str] = parse_etags(request.headers.get("If-None-Match", ""))
    if etag in known or "*" in known:
        return HttpResponseNotModified(headers=headers)
    return answer({**row.to_json(), "you": you}, 200, headers)


@router.post(
    "/consents/{consent_id}/decision",
    summary="Decide",
    response={200: schemas.Consent, **problems(400, 404, 409, 413, 415, 422, 503)},
)
async def decision(request: HttpRequest, consent_id: uuid.UUID, body: schemas.Decision) -> HttpResponse:
    """Grant or deny. Repeating the same is 200; the opposite of a settled one is 409 with the Consent as `consent`.

    With a quorum the Consent stays pending until enough people have said yes; one no decides. 403 says what is
    missing. Send the `digest` that was shown, and an answer to another question is refused with 409.
    503 `unknown_outcome`: the answer of the database was lost; look at the Consent, or repeat.
    """
    caller, served = allowed(request, Scope.CONSENTS_DECIDE)
    vessel = cast("Deciding", served)
    voter = await voter_behind(vessel.reads, caller)
    vote = Vote(consent_id, body.verdict == "grant", caller.surface.value, body.comment, body.digest)
    try:
        await decide_here(vessel.ledger, vessel.engine, voter, vote)
    except Conflict as error:
        error.facts["consent"] = (await _row(vessel, consent_id, caller.tenant)).to_json()
        raise
    return answer((await _row(vessel, consent_id, caller.tenant)).to_json())


async def _you(vessel: Served, caller: Caller, row: ConsentRow) -> dict[str, Any]:
    try:
        caller.require(Scope.CONSENTS_DECIDE)
        voter = await voter_behind(vessel.reads, caller)
        authorise(voter, row.permission, row.group, self_approval=row.self_approval, asked_by=row.asked_by)
    except Forbidden as error:
        return {"may_decide": False, "why_not": error.detail}
    return {"may_decide": row.status == ConsentStatus.PENDING, "why_not": None}


async def _row(vessel: Served, consent_id: uuid.UUID, tenant: str) -> ConsentRow:
    row = await rows.one(vessel.reads, consent_id)
    if row is None or row.tenant != tenant:
        raise NotFound("There is no such Consent.")
    return row


def _place(row: ConsentRow) -> Cursor:
    return Cursor(row.requested_at, row.id)
