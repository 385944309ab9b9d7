"""The pages of sessions and their turns."""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from runs.admin import shown
from runs.admin.base import ReadOnlyAdmin
from runs.admin.evidence import OfRunAdmin
from runs.admin.filters import TenantFilter
from runs.admin.keyset import Order
from runs.models import Session, SessionTurn

TURNS = 50


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    """Conversations."""

    orders = (Order(frozenset({"tenant"}), ("created_at", "id")), Order(frozenset(), ("created_at", "id")))
    few = frozenset({"id"})
    qualifiers = {"id": "id", "tenant": "tenant"}
    by_tenant = True
    search_help_text = "The id of a session"
    list_only = ("id", "tenant", "channel", "title", "sigil_name", "created_at", "updated_at")
    list_display = ("named", "channel", "sigil_name", "created", "changed")
    list_filter = (TenantFilter,)
    payloads = ("meta",)
    change_form_template = "admin/runs/session/change_form.html"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "id",
                    "tenant",
                    "channel",
                    "title",
                    "sigil_name",
                    "last_run",
                    "its_runs",
                    "created",
                    "changed",
                )
            },
        ),
        ("Payload", {"fields": ("meta_shown",)}),
    )
    meta_shown = shown.payload("meta")

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Django's page with the newest turns."""
        session: Session | None = kwargs.get("obj")
        user: Any = request.user
        if session is not None and user.has_perm("runs.view_sessionturn"):
            turns = SessionTurn.objects.filter(session=session).only("id", "run_id", "status", "created_at")
            context["turns"] = list(turns.order_by("-id")[:TURNS])
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="session")
    def named(self, row: Session) -> str:
        """The title, else the id."""
        return row.title or str(row.id)

    @admin.display(description="last Run")
    def last_run(self, row: Session) -> SafeString:
        """The newest Run."""
        return shown.link("run", row.last_run_id)

    @admin.display(description="Runs")
    def its_runs(self, row: Session) -> SafeString:
        """All of them, in the list."""
        return format_html(
            '<a href="{}?q=session:{}">Runs of this session</a>', reverse("admin:runs_run_changelist"), row.id
        )

    @admin.display(description="created")
    def created(self, row: Session) -> SafeString:
        """When it began."""
        return shown.moment(row.created_at)

    @admin.display(description="changed")
    def changed(self, row: Session) -> SafeString:
        """When a Run last joined it."""
        return shown.moment(row.updated_at)


@admin.register(SessionTurn)
class SessionTurnAdmin(OfRunAdmin):
    """What was asked and answered."""

    qualifiers = {"run": "run_id", "session": "session_id"}
    few = frozenset({"run_id", "session_id"})
    search_help_text = "The id of a Run, or session: with the id of a session"
    list_only = ("id", "run", "session", "tenant", "status", "created_at")
    list_display = ("numbered", "of_run", "of_session", "status", "created")
    payloads = ("request", "reply")
    fieldsets = (
        (None, {"fields": ("of_session", "of_run", "tenant", "status", "created")}),
        ("Payload", {"fields": ("request_shown", "reply_shown")}),
    )
    request_shown = shown.payload("request")
    reply_shown = shown.payload("reply")

    @admin.display(description="turn")
    def numbered(self, row: SessionTurn) -> str:
        """Its number over all sessions."""
        return f"turn {row.pk}"

    @admin.display(description="session")
    def of_session(self, row: Any) -> SafeString:
        """The conversation."""
        return shown.link("session", row.session_id)

    @admin.display(description="created")
    def created(self, row: SessionTurn) -> SafeString:
        """When it was asked."""
        return shown.moment(row.created_at)
