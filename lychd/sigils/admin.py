"""The admin's pages of people and Sigils. Shows what a Sigil may do in effect; never shows or makes a token.

Sigils are made with `lychd sigil create`, where the token goes to one terminal and not through a page, a cookie and
a browser's history. They are revoked here or there, and never deleted: Runs name them.
"""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.admin import UserAdmin as StockUserAdmin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from lychd.sigils import rights, tokens
from lychd.sigils.models import Membership, Sigil, User


class MembershipInline(admin.TabularInline):
    """The tenants of a person, on the person's page."""

    model = Membership
    extra = 0
    fields = ("tenant", "created_at")
    readonly_fields = ("created_at",)


@admin.register(User)
class UserAdmin(StockUserAdmin):
    """Django's own page, with memberships."""

    inlines: ClassVar[list[Any]] = [MembershipInline]
    list_display = ("username", "email", "is_staff", "is_superuser", "is_active", "last_login")


class StateFilter(admin.SimpleListFilter):
    """Usable, expired or revoked, as the door sees it."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """The choices."""
        return [("usable", "Usable"), ("expired", "Expired"), ("revoked", "Revoked")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Sigil]) -> QuerySet[Sigil]:  # noqa: ARG002 Django's signature
        """The Sigils in the chosen state."""
        ended = Q(expires_at__lte=timezone.now())
        if self.value() == "usable":
            return queryset.filter(~ended, revoked_at__isnull=True)
        if self.value() == "expired":
            return queryset.filter(ended, revoked_at__isnull=True)
        return queryset.filter(revoked_at__isnull=False) if self.value() == "revoked" else queryset


@admin.register(Sigil)
class SigilAdmin(admin.ModelAdmin):
    """Look, and revoke."""

    list_display = ("name", "tenant", "owner", "granted", "state", "last_used_at", "expires_at")
    list_filter = (StateFilter,)
    list_select_related = ("owner",)
    search_fields = ("name__startswith",)
    search_help_text = "The beginning of a name"
    show_full_result_count = False
    ordering = ("tenant", "name")
    fields = (
        "name",
        "tenant",
        "owner",
        "granted",
        "in_effect",
        "allowed_sources",
        "state",
        "created_at",
        "expires_at",
        "revoked_at",
        "last_used_at",
    )
    readonly_fields = fields
    actions = ("revoke",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Sigil]:
        """All Sigils for superusers, those of their own tenants for others."""
        found: QuerySet[Sigil] = super().get_queryset(request)
        person = _person(request)
        if person.is_superuser:
            return found
        return found.filter(tenant__in=Membership.objects.filter(user=person).values("tenant"))

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 Django's signature
        """Never: the command makes them."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Never: a Sigil's rights are what its token was given out for."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Never: revoking ends it and keeps the name."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Whoever may look at Sigils or revoke them."""
        return _person(request).has_perm("sigils.view_sigil") or self.has_revoke_permission(request)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Whoever may change Sigils: ending one is the only change there is."""
        return _person(request).has_perm("sigils.change_sigil")

    @admin.display(description="scopes")
    def granted(self, sigil: Sigil) -> str:
        """The scopes that it was made with."""
        return ", ".join(sigil.scopes)

    @admin.display(description="scopes in effect")
    def in_effect(self, sigil: Sigil) -> str:
        """What is left of them under the owner's rights."""
        owner = sigil.owner
        if not owner.is_active:
            return "none: the owner is not active"
        if not Membership.objects.filter(user=owner, tenant=sigil.tenant).exists():
            return f"none: the owner is not a member of {sigil.tenant}"
        kept = rights.effective(
            sigil.scopes, superuser=owner.is_superuser, permissions=frozenset(owner.get_all_permissions())
        )
        return ", ".join(sorted(kept)) or "none: the owner has no permission for them"

    @admin.display(description="sources")
    def allowed_sources(self, sigil: Sigil) -> str:
        """What its submissions may name as their source."""
        return ", ".join(sigil.sources) or "only the default of the door"

    @admin.display(description="state")
    def state(self, sigil: Sigil) -> str:
        """In one word."""
        if sigil.revoked_at is not None:
            return "revoked"
        return "expired" if sigil.expires_at is not None and sigil.expires_at <= timezone.now() else "usable"

    @admin.action(description="Revoke selected Sigils", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Sigil]) -> HttpResponse | None:
        """Ask once, then end each selected Sigil and write down who did it."""
        if request.POST.get("post"):
            ended = [sigil for sigil in queryset if tokens.revoke(sigil)]
            for sigil in ended:
                self.log_change(request, sigil, "Revoked.")
            names = ", ".join(str(sigil) for sigil in ended)
            told = f"Revoked: {names}." if ended else "Nothing to do: all of them were revoked before."
            self.message_user(request, told, messages.SUCCESS)
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": "Revoke Sigils",
            "opts": self.opts,
            "sigils": queryset,
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/sigils/sigil/revoke.html", context)


def _person(request: HttpRequest) -> User:
    """The staff member; the admin lets nobody else in."""
    return cast("User", request.user)
