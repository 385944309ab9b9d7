"""Decisions for many at once: a page that lists each Consent first, then one verdict after the other."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import F, QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from consents.admin import look, values
from consents.admin.journal import note
from consents.admin.outcome import unanswered
from consents.admin.review import refusal, standing
from consents.admin.verdicts import Result, decide_each
from consents.decisions import COMMENT_LIMIT, Vote
from consents.models import Consent, ConsentStatus
from consents.people import voter_of
from runs.errors import Invalid, Unknown

MOST = 500
MOST_TOLD = 10
EXCERPT = 400
_NEEDED = ("id", "run", "tenant", "title", "permission", "group", "quorum", "self_approval", "asked_by")


@dataclass(frozen=True, slots=True)
class Row:
    """One Consent on the page that asks for confirmation."""

    consent: Any
    title: SafeString
    risk: SafeString
    status: SafeString
    body: SafeString
    facts: SafeString
    effect: SafeString | None
    why_not: str | None


def problem(request: HttpRequest) -> str | None:
    """Why this selection cannot be acted on; None when it can."""
    selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
    if request.POST.get("select_across", "0") not in {"", "0"}:
        return "Consents are decided row by row, never all that match. Nothing was decided."
    if len(selected) > MOST:
        return f"At most {MOST} Consents are decided at once. Nothing was decided."
    return None if all(map(_is_id, selected)) else "The selection holds something that is no id. Nothing was decided."


def act(page: Any, request: HttpRequest, queryset: QuerySet[Consent], *, grant: bool) -> HttpResponse | None:
    """Show what was selected; with the confirmation of that page, decide.

    Args:
        page: the ModelAdmin whose list it is.
        queryset: the selected Consents that this person may see.

    Returns:
        A page; None to go back to the list, with messages that tell what became of each.
    """
    if request.POST.get("post") != "yes":
        return _confirm(page, request, queryset, grant=grant)
    comment = request.POST.get("comment", "")
    shown = _digests(request)
    found = {consent.pk: consent for consent in queryset.select_related(None).only(*_NEEDED).order_by("run_id", "id")}
    # A Consent whose digest the page did not carry was not shown; it is refused like one that changed since.
    votes = [(consent, Vote(pk, grant, "admin", comment, shown.get(str(pk), ""))) for pk, consent in found.items()]
    who = voter_of(request.user, {consent.tenant for consent in found.values()})
    try:
        results = decide_each(who, votes)
    except Invalid as error:
        messages.error(request, f"{error.detail} Nothing was decided.")
        return _confirm(page, request, queryset, grant=grant, comment=comment[:COMMENT_LIMIT], status=error.status)
    note(
        request,
        [
            (found[result.vote.consent_id], result.vote, result.decided)
            for result in results
            if result.decided is not None and result.decided.changed
        ],
    )
    lost = next((result.error for result in results if isinstance(result.error, Unknown)), None)
    if lost is not None:
        return unanswered(request, lost, reverse("admin:consents_consent_changelist"))
    _tell(request, results, found, grant=grant)
    return None


def _confirm(
    page: Any, request: HttpRequest, queryset: QuerySet[Consent], *, grant: bool, comment: str = "", status: int = 200
) -> HttpResponse:
    facts: Any = Cast(F("facts"), TextField())
    effect: Any = Cast(F("effect"), TextField())
    found: Sequence[Any] = list(
        queryset.defer("facts", "effect", "body")
        .annotate(
            facts_text=Left(facts, EXCERPT),
            effect_text=Left(effect, EXCERPT),
            body_text=Left("body", EXCERPT),
        )
        .order_by("-requested_at", "-id")[:MOST]
    )
    who = voter_of(request.user, {consent.tenant for consent in found})
    rows = [_row(consent, refusal(who, consent)) for consent in found]
    willing = [row for row in rows if row.why_not is None]
    context = {
        **page.admin_site.each_context(request),
        "opts": page.opts,
        "media": page.media,
        "title": f"{'Grant' if grant else 'Deny'} {len(willing):,} Consent{'' if len(willing) == 1 else 's'}?",
        "grant": grant,
        "rows": willing,
        "left_out": [row for row in rows if row.why_not is not None],
        "digests": json.dumps({str(row.consent.pk): row.consent.digest for row in willing}, separators=(",", ":")),
        "action": "grant_selected" if grant else "deny_selected",
        "action_checkbox_name": ACTION_CHECKBOX_NAME,
        "comment": comment,
        "comment_limit": COMMENT_LIMIT,
        "back": request.get_full_path(),
    }
    return TemplateResponse(request, "admin/consents/consent/confirm.html", context, status=status)


def _row(consent: Any, refused: str | None) -> Row:
    why_not = refused
    if standing(consent) != ConsentStatus.PENDING:
        why_not = f"It is {standing(consent)} already."
    return Row(
        consent=consent,
        title=values.plain(consent.title),
        risk=look.risk(consent.risk),
        status=look.status(standing(consent)),
        body=_excerpt(consent.body_text),
        facts=_excerpt(consent.facts_text if consent.facts_text != "{}" else ""),
        effect=None if consent.effect_text is None else _excerpt(consent.effect_text),
        why_not=why_not,
    )


def _excerpt(text: str) -> SafeString:
    return values.plain(text + "…" if len(text) == EXCERPT else text)


def _digests(request: HttpRequest) -> dict[str, str]:
    """What the page of confirmation showed: Consent → digest."""
    try:
        found = json.loads(request.POST.get("digests", ""))
    except (ValueError, RecursionError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _tell(request: HttpRequest, results: list[Result], found: dict[Any, Consent], *, grant: bool) -> None:
    """How many, and each that was not, up to a bound."""
    verdict = "granted" if grant else "denied"
    done = sum(result.decided is not None and result.decided.status != ConsentStatus.PENDING for result in results)
    waiting = sum(result.decided is not None and result.decided.status == ConsentStatus.PENDING for result in results)
    if done:
        messages.success(request, f"{done:,} {verdict}; {'its Run goes' if done == 1 else 'their Runs go'} on.")
    if waiting:
        messages.info(request, f"{waiting:,} wait for more people to say yes.")
    refused = [result for result in results if result.error is not None]
    if not refused:
        return
    lines = format_html_join(
        "",
        '<li><a href="{}">{}</a>: {}</li>',
        (
            (
                reverse("admin:consents_consent_change", args=[result.vote.consent_id]),
                values.plain(found[result.vote.consent_id].title),
                result.error.detail if result.error is not None else "",
            )
            for result in refused[:MOST_TOLD]
        ),
    )
    more = f" The first {MOST_TOLD}:" if len(refused) > MOST_TOLD else ""
    messages.warning(request, format_html("{} not {}.{}<ul>{}</ul>", f"{len(refused):,}", verdict, more, lines))


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
