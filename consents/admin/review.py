"""What the page of one Consent says: the question, who may answer, what follows, and the Run so far. Only reads."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import BooleanField, Case, F, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Left, Now
from django.http import HttpRequest
from django.utils.safestring import SafeString

from consents.admin import look, values
from consents.decisions import DECIDE, Voter, authorise
from consents.models import Consent, ConsentStatus, ConsentVote
from consents.people import voter_of
from runs.admin import tenancy, words
from runs.errors import Forbidden, LychdError
from runs.models import Checkpoint, Run, Step
from runs.patterns import PatternRegistry, discover

STEPS, SIBLINGS, EXCERPT = 100, 20, 240
SURFACES = {
    "admin": "in the admin",
    "dashboard": "on the dashboard",
    "rest": "over REST",
    "cli": "from the command line",
    "policy": "by a standing policy",
    "engine": "with its Run",
    "relay": "by the clock",
}


@dataclass(frozen=True, slots=True)
class Review:
    """Everything on the page; None where the person may not look or where there is nothing."""

    consent: Consent
    open: bool
    title: SafeString
    body: SafeString | None
    facts: SafeString | None
    effect: SafeString | None
    asker: str
    rules: list[str]
    refusal: str | None
    on_yes: list[str]
    on_no: list[str]
    otherwise: str
    warning: str | None
    receipt: str | None
    votes: list[ConsentVote]
    run: Run | None
    story: str | None
    steps: list[Step] | None
    more_steps: bool
    siblings: list[Consent]


def due() -> Case:
    """Whether the time to answer is over by the database's clock although that was not recorded yet."""
    over = When(status=ConsentStatus.PENDING.value, expires_at__lte=Now(), then=Value(value=True))
    return Case(over, default=Value(value=False), output_field=BooleanField())


def find(consents: QuerySet[Consent], consent_id: uuid.UUID) -> Consent | None:
    """One Consent of those that the person may see, with its JSON as the database's text."""
    return (
        consents.filter(pk=consent_id)
        .select_related("policy")
        .defer("facts", "effect", "policy__constraints")
        .annotate(
            facts_text=Cast(F("facts"), TextField()),
            effect_text=Cast(F("effect"), TextField()),
            due=due(),
        )
        .first()
    )


def voter(request: HttpRequest, tenant: str) -> Voter:
    """The person behind the request as one who decides a Consent of this tenant, with the rights of this moment."""
    own = tenancy.visible(request)
    return voter_of(request.user, {tenant} if own is None else own)


def refusal(who: Voter, consent: Consent) -> str | None:
    """Why this person may not decide it, whatever its status; None when they may."""
    try:
        authorise(
            who,
            consent.permission,
            consent.group,
            self_approval=consent.self_approval,
            asked_by=consent.asked_by,
        )
    except Forbidden as error:
        return error.detail
    return None


def standing(consent: Any) -> str:
    """The status of this moment: what is over by the clock is told as expired before the relay has written it."""
    return ConsentStatus.EXPIRED.value if consent.due else consent.status


def review(request: HttpRequest, consent: Any) -> Review:
    """The page's content for one Consent that `find` found."""
    user: Any = request.user
    run_id: uuid.UUID = consent.run_id
    run = None
    if user.has_perm("runs.view_run"):
        run = Run.objects.filter(pk=run_id).defer("input", "output", "intent", "manifest", "scopes").first()
    steps = _steps(run_id, payloads=user.has_perm("runs.view_payload")) if user.has_perm("runs.view_step") else None
    votes = list(ConsentVote.objects.filter(consent=consent.pk).order_by("at", "id"))
    others = Consent.objects.filter(run=run_id).exclude(pk=consent.pk).only("id", "title", "status", "visit")
    siblings = list(others.order_by("visit")[:SIBLINGS])
    for other in siblings:
        other.title = values.bare(other.title)
    facts = values.parse(consent.facts_text)
    is_open = consent.status == ConsentStatus.PENDING and not consent.due
    return Review(
        consent=consent,
        open=is_open,
        title=values.plain(consent.title),
        body=values.block(consent.body) if consent.body.strip() else None,
        facts=values.shown(facts) if facts else None,
        effect=None if consent.effect_text is None else values.shown(values.parse(consent.effect_text)),
        asker=_asker(consent),
        rules=_rules(consent),
        refusal=refusal(voter(request, consent.tenant), consent),
        on_yes=_on_yes(consent, _next_node(consent), sum(vote.granted for vote in votes)),
        on_no=_on_no(_next_node(consent)),
        otherwise=_otherwise(consent),
        warning=_warning(request, run) if is_open and run is not None else None,
        receipt=None if consent.status == ConsentStatus.PENDING else receipt(consent),
        votes=votes,
        run=run,
        story=words.story(run) if run is not None else None,
        steps=None if steps is None else list(reversed(steps[:STEPS])),
        more_steps=steps is not None and len(steps) > STEPS,
        siblings=siblings,
    )


def receipt(consent: Consent) -> str:
    """Who settled it, how and when, as a sentence."""
    at = consent.decided_at
    when = "" if at is None else f" at {at:%Y-%m-%d %H:%M:%S} UTC, {look.since(at)} ago"
    surface = SURFACES.get(consent.surface or "", f"over {consent.surface}")
    if consent.status == ConsentStatus.EXPIRED:
        return f"Nobody answered in time: it expired{when}. That counts as no."
    if consent.status == ConsentStatus.CANCELLED:
        return f"It was cancelled {surface} by {consent.decided_by}{when}. Nothing was approved."
    return f"{consent.status.capitalize()} by {consent.decided_by} {surface}{when}."


def _asker(consent: Consent) -> str:
    """The Sigil that asked for the Run, and the person behind it."""
    if consent.asked_by is None:
        return consent.sigil_name
    users: Any = get_user_model()
    name = users.objects.filter(pk=consent.asked_by).values_list(users.USERNAME_FIELD, flat=True).first()
    return consent.sigil_name if name in {None, consent.sigil_name} else f"{consent.sigil_name} ({name})"


def _rules(consent: Consent) -> list[str]:
    """Who may decide, in sentences."""
    rules = [f"People who have the permission {DECIDE}."]
    if consent.permission:
        rules.append(f"They also need the permission {consent.permission}.")
    if consent.group:
        rules.append(f"They must be in the group {consent.group}.")
    if not consent.self_approval:
        rules.append("The person who asked for the Run may not decide it.")
    rules.append(
        "One person decides; the first verdict stands."
        if consent.quorum == 1
        else f"{consent.quorum} different people must say yes; the first no decides."
    )
    return rules


def _next_node(consent: Any) -> str | None:
    """The node that is entered with the answer, as the checkpoint of the parked Run says."""
    found = (
        Checkpoint.objects.filter(run=consent.run_id)
        .values_list("snapshots__0__node", "snapshots__0__wait__owner")
        .first()
    )
    return found[0] if found is not None and found[1] == str(consent.pk) else None


def _on_yes(consent: Any, node: str | None, grants: int) -> list[str]:
    where = f" in its node “{node}”" if node else ""
    told = [f"The Run goes on at once{where}."]
    if consent.quorum > 1:
        missing = consent.quorum - grants
        told = [
            f"{grants} of {consent.quorum} have said yes so far.",
            told[0] if missing == 1 else f"With {missing - 1} more after yours, the Run goes on{where}.",
        ]
    told.append(
        "You approve exactly the effect that is listed here, and the Run can compare it with what it is about to do."
        if consent.effect_text is not None
        else "The Pattern names no exact effect: what you approve is the question as it stands here."
    )
    return told


def _on_no(node: str | None) -> list[str]:
    where = f" in its node “{node}”" if node else ""
    return [
        f"The Run goes on at once{where}, and is told no, by whom, and your comment.",
        "Nothing that is asked for here is approved; what the Pattern does without it is its own matter.",
    ]


def _otherwise(consent: Consent) -> str:
    if consent.expires_at is None:
        return "Without an answer the Run waits, over restarts, for as long as it takes."
    return f"Without an answer until {consent.expires_at:%Y-%m-%d %H:%M:%S} UTC the answer is no."


def _steps(run_id: uuid.UUID, *, payloads: bool) -> list[Step]:
    found = Step.objects.filter(run=run_id).only("id", "seq", "kind", "node", "at").order_by("-seq")
    if payloads:
        text: Any = Cast(F("data"), TextField())
        found = found.annotate(excerpt=Left(text, EXCERPT))
    return list(found[: STEPS + 1])


def _warning(request: HttpRequest, run: Run) -> str | None:
    """That nothing here can carry the Run on (ruling 19)."""
    registry = _registry(request)
    if registry is None:
        return None
    try:
        registry.exact(run.pattern_key, run.pattern_revision, run.pattern_digest)
    except LychdError as error:
        return f"{error.detail} A yes would be recorded, and the Run would then fail without acting on it."
    return None


def _registry(request: Any) -> PatternRegistry | None:
    """The Patterns of the Vessel behind this address, else those that are installed."""
    try:
        return request.vessel.registry
    except (AttributeError, LychdError):
        return _installed()


@cache
def _installed() -> PatternRegistry | None:
    try:
        return PatternRegistry(discover())
    except LychdError:
        return None
