"""The pages of Consents: the inbox, and the page on which one is read and decided with the admin's own component.

Decides only by POST, through the same code as the admin; the digest in the form says what the person was shown.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from consents.admin import look, values
from consents.admin.inbox import EVERYTHING, WORDS
from consents.admin.journal import note
from consents.admin.outcome import Notice, told
from consents.admin.review import due, find, refusal, review, standing, voter
from consents.admin.verdicts import decide_now
from consents.decisions import COMMENT_LIMIT, DECIDE, Vote, Voter
from consents.models import Consent, ConsentStatus, Risk
from lychd.dashboard import needs
from lychd.dashboard.context import frame, no_permission, not_found, page
from runs.admin import keyset, shown, tenancy
from runs.admin.keyset import BadPosition, Order
from runs.authority import Surface
from runs.errors import LychdError, NotFound, Unknown

SIZE = 25
VIEW = "consents.view_consent"
# Consents may be looked at by whoever decides them, as in the admin.
LOOKS = (VIEW, DECIDE)
BY_STATUS = Order(frozenset({"tenant", "status"}), ("requested_at", "id"))
BY_TIME = Order(frozenset({"tenant"}), ("requested_at", "id"))
COLUMNS = (
    "id",
    "run",
    "tenant",
    "title",
    "risk",
    "status",
    "node",
    "pattern_key",
    "sigil_name",
    "requested_at",
    "expires_at",
    "decided_by",
    "decided_at",
    "permission",
    "group",
    "quorum",
    "self_approval",
    "asked_by",
    "updated_at",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One Consent of the list as it is shown; `mine` says whether this person may decide it now."""

    consent: Consent
    title: Any
    risk: Any
    state: Any
    asked: Any
    expires: Any
    mine: bool


@require_safe
@page("consents", *LOOKS)
def consents(request: HttpRequest) -> HttpResponse:
    """A page of the inbox: what waits, newest first, or what was answered."""
    tenant = tenancy.chosen(request)
    chosen = request.GET.get("status", ConsentStatus.PENDING.value)
    risk = request.GET.get("risk", "")
    if chosen not in {EVERYTHING, *WORDS} or risk not in {"", *Risk}:
        return HttpResponseRedirect(reverse("dashboard:consents"))
    rows: list[Row] = []
    found: keyset.Page | None = None
    if tenant is not None:
        try:
            found = _list(request, tenant, chosen, risk)
        except BadPosition:
            return HttpResponseRedirect(reverse("dashboard:consents"))
        who = voter(request, tenant)
        rows = [_row(who, consent) for consent in found.rows]
    context = frame(
        request,
        "consents",
        "Consents",
        rows=rows,
        chosen=chosen,
        risk=risk,
        statuses=[(value, words, _address(request, status=value)) for value, words in (*WORDS.items(), ("all", "all"))],
        risks=[(value, value or "any risk", _address(request, risk=value)) for value in ("", *reversed(Risk))],
        older=found and found.older and _address(request, older=found.older),
        newer=found and found.newer and _address(request, newer=found.newer),
        cut=bool(found and found.cut),
        first_page=not (request.GET.get("older") or request.GET.get("newer")),
        mine=sum(row.mine for row in rows),
        may_see_feed=_may_follow(request),
    )
    return render(request, "lychd/dashboard/inbox.html", context)


@require_safe
@page("consents", *LOOKS)
def consent(request: HttpRequest, consent_id: uuid.UUID) -> HttpResponse:
    """The page of one Consent."""
    return _shown(request, consent_id)


@transaction.non_atomic_requests
@page("consents", *LOOKS)
def decide(request: HttpRequest, consent_id: uuid.UUID) -> HttpResponse:
    """Record the verdict of a form, then show the Consent as it stands; a GET only leads to its page."""
    address = reverse("dashboard:consent", args=[consent_id])
    if request.method in {"GET", "HEAD"}:
        return HttpResponseRedirect(address)
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
    user: Any = request.user
    if not user.has_perm(DECIDE):
        return no_permission(request, "consents", DECIDE)
    asked = _found(request, consent_id)
    if asked is None:
        return _gone(request)
    verdict, comment = request.POST.get("verdict"), request.POST.get("comment", "")
    if verdict not in {"grant", "deny"}:
        return _shown(request, consent_id, Notice.no_verdict(), comment)
    # A form without a digest saw no question; it is refused like one that saw another.
    digest = request.POST.get("digest", "")
    vote = Vote(consent_id, verdict == "grant", Surface.DASHBOARD.value, comment, digest)
    try:
        decided = decide_now(voter(request, asked.tenant), vote)
    except NotFound:
        return _gone(request)
    except Unknown as error:
        context = {"error": error.detail, "address": address}
        return render(request, "admin/consents/consent/unanswered.html", context, status=error.status)
    except LychdError as error:
        return _shown(request, consent_id, Notice.of(error, vote), comment)
    if decided.changed:
        note(request, [(asked, vote, decided)])
    messages.add_message(request, messages.SUCCESS if decided.changed else messages.INFO, told(decided, vote))
    return HttpResponseRedirect(address)


def _list(request: HttpRequest, tenant: str, chosen: str, risk: str) -> keyset.Page:
    indexed: dict[str, Any] = {"tenant": tenant}
    other = Q(risk=risk) if risk else Q()
    if chosen != EVERYTHING:
        indexed["status"] = chosen
    return keyset.fetch(
        _visible(request).annotate(due=due()).only(*COLUMNS),
        BY_TIME if chosen == EVERYTHING else BY_STATUS,
        indexed=indexed,
        other=other,
        size=SIZE,
        scan=keyset.SCAN,
        older=request.GET.get("older") or None,
        newer=request.GET.get("newer") or None,
    )


def _row(who: Voter, one: Any) -> Row:
    status = standing(one)
    allowed = needs.may(who, one.permission, one.group, self_approval=one.self_approval, asked_by=one.asked_by)
    return Row(
        consent=one,
        title=values.plain(one.title),
        risk=look.risk(one.risk),
        state=look.status(status, brief=True),
        asked=shown.moment(one.requested_at),
        expires=shown.moment(one.expires_at) if one.expires_at and status == ConsentStatus.PENDING else None,
        mine=status == ConsentStatus.PENDING and allowed,
    )


def _shown(
    request: HttpRequest, consent_id: uuid.UUID, notice: Notice | None = None, comment: str = ""
) -> HttpResponse:
    asked = _found(request, consent_id)
    if asked is None:
        return _gone(request)
    about = review(request, asked)
    following = None if about.open else _following(request, asked)
    context = frame(
        request,
        "consents",
        asked.title,
        review=about,
        state=look.status(standing(asked)),
        risk=look.risk(asked.risk),
        asked_at=shown.exact_moment(asked.requested_at),
        expires_at=shown.exact_moment(asked.expires_at),
        run_state=None if about.run is None else shown.status(about.run.status),
        notice=notice and notice.about(asked),
        comment=comment[:COMMENT_LIMIT],
        comment_limit=COMMENT_LIMIT,
        decide_address=reverse("dashboard:consent_decide", args=[consent_id]),
        following=following,
        following_title=following and values.plain(following.title),
        may_see_feed=_may_follow(request),
    )
    # The page speaks of the tenant of its Consent, whichever is chosen elsewhere.
    context["tenant"] = asked.tenant
    return render(request, "lychd/dashboard/consent.html", context, status=200 if notice is None else notice.status)


def _following(request: HttpRequest, asked: Consent) -> Consent | None:
    """The Consent that has waited longest among those that this person may decide: what to do after this one."""
    who = voter(request, asked.tenant)
    waiting = Consent.objects.filter(tenant=asked.tenant, status=ConsentStatus.PENDING.value).annotate(due=due())
    for one in waiting.only(*COLUMNS).order_by("requested_at", "id")[:SIZE]:
        if standing(one) == ConsentStatus.PENDING and refusal(who, one) is None:
            return one
    return None


def _found(request: HttpRequest, consent_id: uuid.UUID) -> Any:
    return find(_visible(request), consent_id)


def _visible(request: HttpRequest) -> QuerySet[Consent]:
    """The Consents of the tenants of this person."""
    own = tenancy.visible(request)
    return Consent.objects.all() if own is None else Consent.objects.filter(tenant__in=own)


def _gone(request: HttpRequest) -> HttpResponse:
    return not_found(request, "consents", "There is no such Consent.", "It may belong to another tenant.")


def _may_follow(request: HttpRequest) -> bool:
    """Whether the feed of Consents is open to this person: it asks for the right to look at them, and membership."""
    user: Any = request.user
    return user.has_perm(VIEW)


def _address(request: HttpRequest, **changes: str) -> str:
    """This list with another choice; every choice begins at the newest again unless it is a position."""
    kept: Mapping[str, str] = {
        name: value for name in ("status", "risk", "tenant") if (value := request.GET.get(name)) is not None
    }
    query = {name: value for name, value in {**kept, **changes}.items() if value}
    return f"{reverse('dashboard:consents')}?{urlencode(query)}" if query else reverse("dashboard:consents")
