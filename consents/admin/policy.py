"""The pages of standing policies: what answers beforehand, in whose name, and how often it did. Files declare them."""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from consents.admin import look
from consents.models import StandingPolicy
from consents.policies import switch
from runs.admin import shown
from runs.admin.base import ReadOnlyAdmin
from runs.admin.keyset import Order
from runs.ledger.runner import run_script


@admin.register(StandingPolicy)
class StandingPolicyAdmin(ReadOnlyAdmin):
    """The rules, as the last start found them in the files."""

    orders = (Order(frozenset(), ("slug",)),)
    actions = ("switch_off", "switch_on")
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

    def has_switch_permission(self, request: HttpRequest) -> bool:
        """Whoever may change policies; all else in them is written by files alone."""
        user: Any = request.user
        return user.has_perm("consents.change_standingpolicy")

    @admin.action(description="Switch off: they answer nothing until switched on again", permissions=["switch"])
    def switch_off(self, request: HttpRequest, policies: QuerySet[StandingPolicy]) -> None:
        """Keep the selected policies from answering."""
        self._switch(request, policies, on=False)

    @admin.action(description="Switch on: they may answer again", permissions=["switch"])
    def switch_on(self, request: HttpRequest, policies: QuerySet[StandingPolicy]) -> None:
        """Let the selected policies answer again."""
        self._switch(request, policies, on=True)

    def _switch(self, request: HttpRequest, policies: QuerySet[StandingPolicy], *, on: bool) -> None:
        word = "on" if on else "off"
        changed: list[str] = []
        for policy in policies.order_by("slug"):
            if run_script(switch(policy.pk, on=on)):
                changed.append(policy.slug)
                self.log_change(request, policy, f"Switched {word}.")
        said = f"Switched {word}: {', '.join(changed)}." if changed else f"They were {word} before."
        self.message_user(request, said, messages.SUCCESS if changed else messages.INFO)

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
