"""The pages of standing policies: what answers beforehand, in whose name, and how often it did. Files declare them."""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from consents.admin import look
from consents.models import StandingPolicy
from runs.admin import shown
from runs.admin.base import ReadOnlyAdmin
from runs.admin.keyset import Order


@admin.register(StandingPolicy)
class StandingPolicyAdmin(ReadOnlyAdmin):
    """The rules, as the last start found them in the files."""

    orders = (Order(frozenset(), ("slug",)),)
    few = frozenset({"id", "slug"})
    qualifiers = {"id": "id", "slug": "slug", "tenant": "tenant"}
    search_help_text = "The id of a policy, or exactly: slug: tenant:"
    list_only = (
        "id",
        "tenant",
        "slug",
        "pattern",
        "node",
        "sigil",
        "max_risk",
        "uses",
        "max_uses",
        "expires_at",
        "enabled",
        "source_present",
        "granted_by",
    )
    list_display = ("slug", "state", "up_to", "pattern", "node", "sigil", "used", "granted_by", "until")
    open_payloads = ("constraints",)
    constraints_shown = shown.payload("constraints")
    fieldsets = (
        (None, {"fields": ("slug", "title", "state", "tenant", "granted_by")}),
        ("Answers yes to", {"fields": ("pattern", "node", "sigil", "up_to", "constraints_shown", "priority")}),
        ("How often and until when", {"fields": ("used", "until", "made", "changed")}),
        ("Proof", {"fields": ("id", "digest")}),
    )

    @admin.display(description="state")
    def state(self, row: StandingPolicy) -> str:
        """Whether it answers anything now, and why not."""
        if not row.source_present:
            return "gone from the files"
        if not row.enabled:
            return "switched off"
        return "used up" if row.max_uses is not None and row.uses >= row.max_uses else "in force"

    @admin.display(description="risk up to")
    def up_to(self, row: StandingPolicy) -> SafeString:
        """The highest risk that it answers."""
        return look.risk(row.max_risk)

    @admin.display(description="used")
    def used(self, row: StandingPolicy) -> str:
        """How often, and how often it may be."""
        return f"{row.uses:,} of {row.max_uses:,}" if row.max_uses is not None else f"{row.uses:,}"

    @admin.display(description="until")
    def until(self, row: StandingPolicy) -> SafeString:
        """When it ends."""
        return shown.moment(row.expires_at)

    @admin.display(description="first seen")
    def made(self, row: StandingPolicy) -> SafeString:
        """When it was first read from a file."""
        return shown.exact_moment(row.created_at)

    @admin.display(description="changed")
    def changed(self, row: Any) -> SafeString:
        """When its row was last written, by a start or by a use."""
        return shown.exact_moment(row.updated_at)
