"""The pages of boots: each life of a Vessel, and which one holds the database."""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from runs.admin import shown
from runs.admin.base import ReadOnlyAdmin
from runs.admin.keyset import Order
from runs.models import Boot, VesselSlot


@admin.register(Boot)
class BootAdmin(ReadOnlyAdmin):
    """The lives of Vessels."""

    orders = (Order(frozenset(), ("started_at", "id")),)
    few = frozenset({"id"})
    qualifiers = {"id": "id"}
    has_tenant = False
    search_help_text = "The id of a boot"
    list_only = ("id", "host", "pid", "profile", "version", "started_at", "ready_at", "ended_at", "end_reason")
    list_display = ("title", "profile", "version", "started", "state")
    open_payloads = ("report",)
    fieldsets = (
        (None, {"fields": ("id", "host", "pid", "profile", "version", "url", "state")}),
        ("Times", {"fields": ("started", "ready", "ended", "end_reason")}),
        ("Report of the start", {"fields": ("report_shown",)}),
    )
    report_shown = shown.payload("report")

    @admin.display(description="Vessel")
    def title(self, row: Boot) -> str:
        """Where it ran."""
        return f"{row.host}:{row.pid}"

    @admin.display(description="state")
    def state(self, row: Boot) -> str:
        """In words; a Vessel that was killed left no end behind."""
        if row.ended_at is not None:
            return f"ended: {row.end_reason}" if row.end_reason else "ended"
        return "no end recorded" if row.ready_at else "never ready"

    @admin.display(description="started")
    def started(self, row: Boot) -> SafeString:
        """By the database's clock."""
        return shown.moment(row.started_at)

    @admin.display(description="ready")
    def ready(self, row: Boot) -> SafeString:
        """When it listened."""
        return shown.exact_moment(row.ready_at)

    @admin.display(description="ended")
    def ended(self, row: Boot) -> SafeString:
        """When it stopped in order."""
        return shown.exact_moment(row.ended_at)


@admin.register(VesselSlot)
class VesselSlotAdmin(ReadOnlyAdmin):
    """The one row that says which boot may write (ruling 13)."""

    has_tenant = False
    list_only = ("id", "boot", "taken_at")
    list_display = ("title", "of_boot", "taken")
    fieldsets = ((None, {"fields": ("of_boot", "taken")}),)

    @admin.display(description="slot")
    def title(self, row: VesselSlot) -> str:
        """There is one."""
        return f"slot {row.pk}"

    @admin.display(description="boot")
    def of_boot(self, row: Any) -> SafeString:
        """The boot that holds it."""
        return shown.link("boot", row.boot_id)

    @admin.display(description="taken")
    def taken(self, row: VesselSlot) -> SafeString:
        """When it took it."""
        return shown.moment(row.taken_at)
