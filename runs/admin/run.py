"""The pages of Runs: the list, and one Run with its hops, its newest Steps and where it may return to."""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString

from runs import payloads
from runs.admin import cancel, shown, tenancy, words
from runs.admin.base import ReadOnlyAdmin
from runs.admin.filters import (
    PatternFilter,
    QuarantineFilter,
    SourceFilter,
    StatusFilter,
    TenantFilter,
    quarantined,
    uncontained,
)
from runs.admin.keyset import Order
from runs.errors import LychdError
from runs.models import Checkpoint, CheckpointArchive, JournalEntry, Run, RunDelivery, Step
from runs.patterns import Manifest
from runs.states import TERMINAL

STEPS, HOPS, ENTRIES = 200, 50, 50
EXCERPT = 240


@dataclass(frozen=True, slots=True)
class Around:
    """What surrounds a Run on its page; None where the person may not look, lists cut at their bounds."""

    story: str
    quarantine: str | None
    unsettled: str | None
    may_cancel: bool
    rest_url: str | None
    steps: list[Step] | None
    more_steps: bool
    hops: list[RunDelivery] | None
    more_hops: bool
    checkpoint: Checkpoint | None
    archive: CheckpointArchive | None
    journal: list[JournalEntry] | None


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    """The canonical records."""

    orders = (
        Order(frozenset({"tenant", "status"}), ("created_at", "id")),
        Order(frozenset({"tenant", "pattern_key"}), ("created_at", "id")),
        Order(frozenset({"tenant"}), ("created_at", "id")),
        # Only under ids or a session, which leave few rows to sort.
        Order(frozenset(), ("created_at", "id")),
    )
    few = frozenset({"id", "session_id", "idempotency_key"})
    qualifiers = {
        "id": "id",
        "pattern": "pattern_key",
        "session": "session_id",
        "key": "idempotency_key",
        "tenant": "tenant",
    }
    by_tenant = True
    list_only = (
        "id",
        "tenant",
        "pattern_key",
        "pattern_revision",
        "status",
        "source",
        "sigil_name",
        "priority",
        "enqueue_seq",
        "created_at",
        "finished_at",
        "quarantined_at",
        "containment_error",
    )
    payloads = ("input", "output", "intent")
    open_payloads = ("manifest",)

    actions = ("cancel",)
    list_display = ("title", "state", "source", "sigil_name", "hop", "created", "finished")
    list_filter = (StatusFilter, QuarantineFilter, TenantFilter, PatternFilter, SourceFilter)
    search_help_text = "An id, or exactly: id: pattern: session: key: tenant:"
    change_form_template = "admin/runs/run/change_form.html"
    fieldsets = (
        (None, {"fields": ("id", "state", "tenant", "road")}),
        ("Payload", {"fields": ("input_shown", "output_shown", "error_code", "error_node", "error_shown")}),
        ("Pattern", {"fields": ("pattern_key", "pattern_revision", "pattern_digest", "graph")}),
        (
            "Request",
            {"fields": ("sigil_name", "surface", "source", "granted", "in_session", "idempotency_key", "from_run")},
        ),
        ("Lane and wait", {"fields": ("queue_name", "priority", "hop", "wait_kind", "wait_owner", "waits_since")}),
        ("Cancellation", {"fields": ("cancelled_by", "cancel_asked", "containment_shown")}),
        ("Times", {"fields": ("admitted", "started", "changed", "ended")}),
        ("As it was asked", {"fields": ("intent_shown", "request_digest", "manifest_shown"), "classes": ("collapse",)}),
    )

    input_shown = shown.payload("input")
    output_shown = shown.payload("output")
    intent_shown = shown.payload("intent", "request")
    manifest_shown = shown.payload("manifest")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list, with Runs that need a person named above it whatever is filtered (ruling 15)."""
        if request.method == "POST" and request.POST.get("action") == "cancel":
            return self._cancel(request)
        tenants = tenancy.visible(request)
        found = quarantined(tenants).only("id", "pattern_key", "tenant", "quarantine_reason")[:11]
        stuck = uncontained(tenants).only("id", "pattern_key", "tenant", "status", "containment_error")[:11]
        context: Any = {**(extra_context or {}), "quarantined": list(found), "uncontained": list(stuck)}
        return super().changelist_view(request, context)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whoever may cancel Runs."""
        user: Any = request.user
        return user.has_perm("runs.cancel_run")

    @admin.action(description="Cancel selected Runs", permissions=["cancel"])
    def cancel(self, request: HttpRequest, _queryset: QuerySet[Run]) -> HttpResponse | None:
        """Only the choice of the list: `changelist_view` hears it before Django does."""
        return self._cancel(request)

    def _cancel(self, request: HttpRequest) -> HttpResponse:
        """Ask once, then do it.

        Django would first build the whole list, and would take "all of them" for an answer.
        """
        if not (self.has_view_permission(request) and self.has_cancel_permission(request)):
            raise PermissionDenied
        runs = list(self.get_queryset(request).filter(pk__in=cancel.selected(request)).order_by("-created_at", "-id"))
        if not runs:
            self.message_user(request, "Select the Runs that are to be cancelled.", messages.WARNING)
            return HttpResponseRedirect(request.get_full_path())
        if request.POST.get("post") != "yes":
            return cancel.confirm(self, request, runs)
        return cancel.carry_out(self, request, runs) or HttpResponseRedirect(request.get_full_path())

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Django's page with what surrounds the Run."""
        run: Run | None = kwargs.get("obj")
        if run is not None:
            context["around"] = _around(request, run)
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="Run")
    def title(self, run: Run) -> str:
        """Pattern and the part of the id that tells Runs apart at a glance."""
        return f"{run.pattern_key} {run.pattern_revision} · {str(run.id)[-8:]}"

    @admin.display(description="status")
    def state(self, run: Run) -> SafeString:
        """In words."""
        uncertain = words.unsettled(run) is not None
        return shown.status(run.status, quarantined=run.quarantined_at is not None, uncontained=uncertain)

    @admin.display(description="hop")
    def hop(self, run: Run) -> int:
        """The generation."""
        return run.enqueue_seq

    @admin.display(description="created")
    def created(self, run: Run) -> SafeString:
        """When it was admitted."""
        return shown.moment(run.created_at)

    @admin.display(description="created")
    def admitted(self, run: Run) -> SafeString:
        """The same in full."""
        return shown.exact_moment(run.created_at)

    @admin.display(description="finished")
    def ended(self, run: Run) -> SafeString:
        """When it became terminal, in full."""
        return shown.exact_moment(run.finished_at)

    @admin.display(description="started")
    def started(self, run: Run) -> SafeString:
        """When a hop of it was first claimed."""
        return shown.exact_moment(run.started_at)

    @admin.display(description="changed")
    def changed(self, run: Run) -> SafeString:
        """When the ledger last wrote it."""
        return shown.exact_moment(run.updated_at)

    @admin.display(description="finished")
    def finished(self, run: Run) -> SafeString:
        """When it became terminal."""
        return shown.moment(run.finished_at)

    @admin.display(description="waits since")
    def waits_since(self, run: Run) -> SafeString:
        """When it was parked."""
        return shown.exact_moment(run.wait_since)

    @admin.display(description="cancel asked")
    def cancel_asked(self, run: Run) -> SafeString:
        """When it was asked for."""
        return shown.exact_moment(run.cancel_requested_at)

    @admin.display(description="not stopped yet")
    def containment_shown(self, run: Run) -> SafeString:
        """What could not be contained."""
        return shown.block(run.containment_error)

    @admin.display(description="error")
    def error_shown(self, run: Run) -> SafeString:
        """The message, line by line."""
        return shown.block(run.error_message)

    @admin.display(description="scopes")
    def granted(self, run: Run) -> str:
        """The authority that was recorded at admission."""
        return ", ".join(run.scopes) or "none"

    @admin.display(description="session")
    def in_session(self, run: Run) -> SafeString:
        """The conversation."""
        return shown.link("session", getattr(run, "session_id", None))

    @admin.display(description="rerun of")
    def from_run(self, run: Run) -> SafeString:
        """The Run that this one runs again."""
        return shown.link("run", getattr(run, "ancestor_id", None))

    @admin.display(description="graph")
    def graph(self, run: Run) -> SafeString:
        """The pinned graph, drawn."""
        try:
            return shown.block(Manifest.from_json(payloads.parse(getattr(run, "manifest_text", "null"))).draw())
        except LychdError as error:
            return shown.block(error.detail)


def _around(request: HttpRequest, run: Run) -> Around:
    user: Any = request.user

    def may(model: str) -> bool:
        return user.has_perm(f"runs.view_{model}")

    steps: list[Step] | None = None
    hops: list[RunDelivery] | None = None
    if may("step"):
        found = Step.objects.filter(run=run).only("id", "seq", "kind", "node", "at").order_by("-seq")
        if user.has_perm("runs.view_payload"):
            text: Any = Cast(F("data"), TextField())
            found = found.annotate(excerpt=Left(text, EXCERPT))
        steps = list(found[: STEPS + 1])
    if may("rundelivery"):
        hops = list(RunDelivery.objects.filter(run=run).order_by("-enqueue_seq")[: HOPS + 1])
    return Around(
        story=words.story(run),
        quarantine=words.quarantine(run),
        unsettled=words.unsettled(run),
        may_cancel=run.status not in TERMINAL and user.has_perm("runs.cancel_run"),
        rest_url=_rest_url(run),
        steps=steps and steps[:STEPS],
        more_steps=steps is not None and len(steps) > STEPS,
        hops=hops and hops[:HOPS],
        more_hops=hops is not None and len(hops) > HOPS,
        checkpoint=Checkpoint.objects.filter(run=run).only("enqueue_seq", "updated_at").first()
        if may("checkpoint")
        else None,
        archive=CheckpointArchive.objects.filter(run=run).only("enqueue_seq", "archived_at").first()
        if may("checkpointarchive")
        else None,
        journal=list(JournalEntry.objects.filter(run=run).defer("result").order_by("-visit", "-id")[:ENTRIES])
        if may("journalentry")
        else None,
    )


def _rest_url(run: Run) -> str | None:
    """The Run over REST, where a project mounts the API under its name."""
    try:
        return f"{reverse('api:api-root')}runs/{run.pk}"
    except NoReverseMatch:
        return None
