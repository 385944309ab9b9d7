"""The pages of Patterns: what can be submitted, how it goes and went, and a form that submits a Run by hand."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from asgiref.sync import async_to_sync
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from lychd.dashboard import drawing, fields, outcomes
from lychd.dashboard.context import frame, no_permission, not_found, page
from lychd.dashboard.vessel import registry_of, vessel_of
from lychd.sigils import rights
from runs import ids
from runs.admin import shown, tenancy
from runs.authority import Caller, Surface
from runs.errors import Invalid, KeyReused, LychdError, NotAdmitting, PatternNotFound
from runs.patterns import AnyPattern
from runs.routing import check_priority
from runs.submission import Submission

log = structlog.get_logger(__name__)

SUBMIT, VIEW = "runs.submit_run", "runs.view_run"
KEY_LENGTH = 64


@dataclass(slots=True)
class Asked:
    """The form of a submission as it stands; `whole` is the input as JSON text, where that was sent instead."""

    form: fields.Field
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    priority: str = ""
    session: str = ""
    whole: str = ""
    by_json: bool = False
    errors: dict[str, str] = field(default_factory=dict[str, str])
    general: list[str] = field(default_factory=list[str])
    code: int = 200

    @property
    def wrong(self) -> bool:
        """Whether anything is to be corrected."""
        return bool(self.errors or self.general) or any(one.errors for one in self.form.walk())

    @property
    def faults(self) -> list[tuple[str, str, str]]:
        """Every fault as (id of the field, its label, sentence), for the summary above the form."""
        return [(one.id, one.label, error) for one in self.form.walk() for error in one.errors] + [
            (f"in-{name}", name, error) for name, error in self.errors.items()
        ]


@require_safe
@page("patterns", VIEW, SUBMIT)
def patterns(request: HttpRequest) -> HttpResponse:
    """What can be submitted, and how the last Runs of each went."""
    registry = registry_of(request)
    active = [] if registry is None else registry.active()
    tenant = tenancy.chosen(request)
    sees = _sees_runs(request) and tenant is not None
    went = outcomes.of_many(tenant, [one.key for one in active]) if sees and tenant else {}
    rows = [(one, went.get(one.key)) for one in active]
    context = frame(
        request, "patterns", "Patterns", rows=rows, sees_runs=sees, broken=registry is None, recent=outcomes.RECENT
    )
    return render(request, "lychd/dashboard/patterns.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@transaction.non_atomic_requests
@page("patterns", VIEW, SUBMIT)
def pattern(request: HttpRequest, key: str) -> HttpResponse:
    """One Pattern: graph, form, recent outcomes. A POST of its form submits a Run."""
    registry = registry_of(request)
    try:
        if registry is None:
            raise PatternNotFound("The Patterns that are installed cannot be loaded.")
        chosen = registry.select(key)
    except PatternNotFound as error:
        return not_found(request, "patterns", error.detail)
    asked = Asked(fields.form_of(chosen.manifest.schemas["input"]))
    if request.method == "POST":
        user: Any = request.user
        if not user.has_perm(SUBMIT):
            return no_permission(request, "patterns", SUBMIT)
        submitted = _submit(request, chosen, asked)
        if submitted is not None:
            return submitted
    return _shown(request, chosen, asked)


def _submit(request: HttpRequest, chosen: AnyPattern, asked: Asked) -> HttpResponse | None:
    """Admit what the form asks for; None when there is something to correct, which then stands in `asked`."""
    value = _read(request.POST, asked)
    wanted = _beside(request.POST, chosen.key, value, asked)
    if asked.wrong or wanted is None:
        asked.code = 422
        return None
    tenant = tenancy.chosen(request)
    vessel = vessel_of(request)
    if tenant is None:
        asked.general.append("You belong to no tenant that could submit this.")
        asked.code = 403
        return None
    caller = _caller(request, tenant)
    try:
        if vessel is None:
            raise NotAdmitting("No Vessel is running behind this address, so nothing can be submitted here.")
        done = async_to_sync(vessel.engine.submit)(caller, wanted)
    except KeyReused:
        first = ids.keyed_run_id(tenant, caller.name, caller.surface, asked.key)
        asked.general.append(
            f"This form was sent before, with another input, and became the Run {first}. "
            "Send it once more to submit a new one."
        )
        asked.key, asked.code = secrets.token_hex(16), 409
        return None
    except Invalid as error:
        asked.general += fields.tell(asked.form, error.errors) if error.errors else [error.detail]
        asked.code = error.status
        return None
    except LychdError as error:
        log.info("dashboard.not_submitted", pattern=chosen.key, code=error.code)
        asked.general.append(error.detail)
        asked.code = error.status
        return None
    if done.replayed:
        messages.info(request, "This form had been sent before: here is its Run, and no second one was made.")
    else:
        messages.success(request, f"Submitted: a Run of {chosen.key}.")
    return HttpResponseRedirect(reverse("dashboard:run", args=[done.run_id]))


def _read(sent: Mapping[str, str], asked: Asked) -> Any:
    """The input that was sent, field by field or whole."""
    asked.key = (sent.get("key") or asked.key)[:KEY_LENGTH]
    asked.by_json = sent.get("how") == "json"
    asked.whole = sent.get("whole", "")
    if not asked.by_json:
        return fields.read(asked.form, sent)
    try:
        return fields.parse_json(asked.whole)
    except ValueError as error:
        asked.errors["whole"] = str(error)
        return None


def _beside(sent: Mapping[str, str], key: str, value: Any, asked: Asked) -> Submission | None:
    """The submission with what is asked beside the input; None when a part of that is wrong."""
    asked.priority, asked.session = sent.get("priority", "").strip(), sent.get("session", "").strip()
    priority, session = None, None
    if asked.priority:
        try:
            priority = int(asked.priority)
            check_priority(priority)
        except (ValueError, Invalid):
            asked.errors["priority"] = "A whole number from 0 to 100, higher first."
    if asked.session:
        try:
            session = uuid.UUID(asked.session)
        except ValueError:
            asked.errors["session"] = "The id of a session."
    if not asked.key.isprintable() or not asked.key:
        asked.general.append("The form was not sent whole; send it again.")
    return None if asked.errors or asked.general else Submission(key, value, priority, session, key=asked.key)


def _caller(request: HttpRequest, tenant: str) -> Caller:
    """The person behind the request, with every scope that their permissions give, as over REST."""
    user: Any = request.user
    return Caller(
        tenant=tenant,
        name=user.get_username(),
        scopes=rights.held(superuser=user.is_superuser, permissions=user.get_all_permissions()),
        surface=Surface.DASHBOARD,
        user_id=user.pk,
    )


def _shown(request: HttpRequest, chosen: AnyPattern, asked: Asked) -> HttpResponse:
    user: Any = request.user
    tenant = tenancy.chosen(request)
    registry = registry_of(request)
    sees = _sees_runs(request) and tenant is not None
    title = f"{chosen.key} {chosen.revision}"
    context = frame(
        request,
        "patterns",
        f"Not submitted: {title}" if asked.wrong else title,
        pattern=chosen,
        manifest=chosen.manifest,
        drawing=drawing.draw(chosen.manifest),
        words=chosen.manifest.draw(),
        schema=fields.pretty(chosen.manifest.schemas["input"]),
        output_schema=fields.pretty(chosen.manifest.schemas["output"]),
        asked=asked,
        may_submit=user.has_perm(SUBMIT),
        admitting=_admits(request),
        sees_runs=sees,
        went=outcomes.of_one(tenant, chosen.key) if sees and tenant else None,
        newest=_newest(tenant, chosen.key) if sees and tenant else [],
        live=outcomes.live_by_revision(tenant, chosen.key) if sees and tenant else [],
        older=[one for one in (registry.all() if registry else ()) if one.key == chosen.key and one is not chosen],
        recent=outcomes.RECENT,
    )
    return render(request, "lychd/dashboard/pattern.html", context, status=asked.code)


def _admits(request: HttpRequest) -> bool:
    vessel = vessel_of(request)
    return vessel is not None and vessel.engine.admitting


def _sees_runs(request: HttpRequest) -> bool:
    user: Any = request.user
    return user.has_perm(VIEW)


def _newest(tenant: str, key: str) -> list[tuple[Any, ...]]:
    return [
        (run, shown.status(run.status), shown.moment(run.created_at), outcomes.took(run))
        for run in outcomes.newest(tenant, key)
    ]
