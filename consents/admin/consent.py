"""The pages of Consents: the inbox, and the page on which one is read and decided. Decides only by POST."""

# Django's admin classes take type arguments in the stubs, not at run time.
# Some of its methods take more arguments than the stubs know.
# pyright: reportMissingTypeArgument=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import copy
import uuid
from typing import Any, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString

from consents.admin import bulk, look, values
from consents.admin.inbox import ConsentChangeList, RiskFilter, StatusFilter
from consents.admin.journal import note
from consents.admin.outcome import Notice, told, unanswered
from consents.admin.review import due, find, review, standing, voter
from consents.admin.verdicts import decide_now
from consents.decisions import COMMENT_LIMIT, DECIDE, Vote
from consents.models import Consent
from runs.admin import shown
from runs.admin.base import ReadOnlyAdmin
from runs.admin.filters import PatternFilter, TenantFilter
from runs.admin.keyset import Order
from runs.errors import LychdError, NotFound, Unknown

SURFACE = "admin"


@admin.register(Consent)
class ConsentAdmin(ReadOnlyAdmin):
    """Questions, and the receipts of their answers."""

    orders = (
        Order(frozenset({"tenant", "status"}), ("requested_at", "id")),
        Order(frozenset({"tenant"}), ("requested_at", "id")),
        # Only under ids, which leave few rows to sort.
        Order(frozenset(), ("requested_at", "id")),
    )
    few = frozenset({"id", "run_id"})
    qualifiers = {"id": "id", "run": "run_id", "pattern": "pattern_key", "tenant": "tenant", "sigil": "sigil_name"}
    by_tenant = True
    list_only = (
        "id",
        "run",
        "tenant",
        "title",
        "risk",
        "status",
        "node",
        "pattern_key",
        "requested_at",
        "expires_at",
        "decided_by",
        "decided_at",
    )
    open_payloads = ("facts", "effect")
    actions = ("grant_selected", "deny_selected")
    actions_selection_counter = True
    list_display = ("asked", "risk_shown", "state", "pattern", "of_run", "age", "expires")
    list_filter = (StatusFilter, RiskFilter, TenantFilter, PatternFilter)
    search_help_text = "An id, or exactly: id: run: pattern: sigil: tenant:"
    change_list_template = "admin/consents/consent/change_list.html"

    class Media:
        css = {"all": ("consents/consents.css",)}

    def get_urls(self) -> list[Any]:
        """Django's pages, and the address that decides."""
        decide = path(
            "<path:object_id>/decide/",
            self.admin_site.admin_view(self.decide_view),
            name="consents_consent_decide",
        )
        return [decide, *super().get_urls()]

    def get_changelist(self, request: HttpRequest, **_kwargs: Any) -> type[ConsentChangeList]:  # noqa: ARG002 Django's signature
        """The inbox."""
        return ConsentChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The Consents of the person's tenants, and which of them are over by the clock."""
        return super().get_queryset(request).annotate(due=due())

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Whoever may look at Consents or decide them."""
        user: Any = request.user
        return user.has_perm("consents.view_consent") or self.has_decide_permission(request)

    def has_decide_permission(self, request: HttpRequest) -> bool:
        """Whoever may decide at all; each Consent may ask for more, which `decide` judges."""
        user: Any = request.user
        return user.has_perm(DECIDE)

    @method_decorator(transaction.non_atomic_requests)
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The inbox; never inside a transaction, since its actions decide."""
        return super().changelist_view(request, extra_context)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",  # noqa: ARG002 Django's signature
        extra_context: Any = None,  # noqa: ARG002 Django's signature
    ) -> HttpResponse:
        """The page of one Consent. Writes nothing, whatever the method."""
        if request.method not in {"GET", "HEAD"} or object_id is None:
            raise PermissionDenied
        return self._page(request, object_id)

    @method_decorator(transaction.non_atomic_requests)
    def decide_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Record the verdict of a form, then show the page as it stands; a GET only leads to the page."""
        address = reverse("admin:consents_consent_change", args=[object_id])
        if request.method in {"GET", "HEAD"}:
            return HttpResponseRedirect(address)
        if request.method != "POST":
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        consent = self._found(request, object_id)
        if consent is None:
            return self._gone(request, object_id)
        verdict, comment = request.POST.get("verdict"), request.POST.get("comment", "")
        if verdict not in {"grant", "deny"}:
            return self._page(request, object_id, Notice.no_verdict(), comment)
        # A form without a digest saw no question; it is refused like one that saw another.
        vote = Vote(consent.pk, verdict == "grant", SURFACE, comment, request.POST.get("digest", ""))
        try:
            decided = decide_now(voter(request, consent.tenant), vote)
        except NotFound:
            return self._gone(request, object_id)
        except Unknown as error:
            return unanswered(request, error, address)
        except LychdError as error:
            return self._page(request, object_id, Notice.of(error, vote), comment)
        if decided.changed:
            note(request, [(consent, vote, decided)])
        messages.add_message(request, messages.SUCCESS if decided.changed else messages.INFO, told(decided, vote))
        return HttpResponseRedirect(address)

    @admin.action(description="Grant…", permissions=["decide"])
    def grant_selected(self, request: HttpRequest, queryset: QuerySet[Consent]) -> HttpResponse | None:
        """Show each selected Consent, then grant them."""
        return bulk.act(self, request, queryset, grant=True)

    @admin.action(description="Deny…", permissions=["decide"])
    def deny_selected(self, request: HttpRequest, queryset: QuerySet[Consent]) -> HttpResponse | None:
        """Show each selected Consent, then deny them."""
        return bulk.act(self, request, queryset, grant=False)

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], **kwargs: Any) -> Any:
        """Only what was selected row by row is acted on, never "all that match"."""
        if problem := bulk.problem(request):
            self.message_user(request, problem, messages.ERROR)
            return None
        return super().response_action(request, queryset, **kwargs)

    @admin.display(description=getattr(admin.ModelAdmin.action_checkbox, "short_description", ""))  # pyright: ignore[reportAttributeAccessIssue]
    def action_checkbox(self, obj: Consent) -> str:
        """Django's, whose label names the Consent."""
        named = copy.copy(obj)
        named.title = values.bare(obj.title)
        checkbox: str = super().action_checkbox(named)  # pyright: ignore[reportAttributeAccessIssue]
        return checkbox

    @admin.display(description="question")
    def asked(self, row: Consent) -> SafeString:
        """What is asked."""
        return values.plain(row.title)

    @admin.display(description="risk")
    def risk_shown(self, row: Consent) -> SafeString:
        """As the Pattern judged it."""
        return look.risk(row.risk)

    @admin.display(description="status")
    def state(self, row: Consent) -> SafeString:
        """As of now, and whose verdict it is."""
        shown_status = look.status(standing(row), brief=True)
        return format_html("{} by {}", shown_status, values.plain(row.decided_by)) if row.decided_by else shown_status

    @admin.display(description="Pattern")
    def pattern(self, row: Consent) -> str:
        """Of which Pattern the Run is."""
        return row.pattern_key

    @admin.display(description="Run")
    def of_run(self, row: Any) -> SafeString:
        """The Run that asks; the whole id when pointed at."""
        address = reverse("admin:runs_run_change", args=[row.run_id])
        return format_html('<a href="{}" title="{}">{}</a>', address, row.run_id, f"…{str(row.run_id)[-8:]}")

    @admin.display(description="asked")
    def age(self, row: Consent) -> SafeString:
        """How long it has waited."""
        return shown.moment(row.requested_at)

    @admin.display(description="expires")
    def expires(self, row: Consent) -> SafeString:
        """When the answer becomes no by itself."""
        return look.expiry(row)

    def _page(
        self, request: HttpRequest, object_id: str, notice: Notice | None = None, comment: str = ""
    ) -> HttpResponse:
        consent = self._found(request, object_id)
        if consent is None:
            return self._gone(request, object_id)
        about = review(request, consent)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": values.bare(consent.title),
            "review": about,
            "state": look.status(standing(consent)),
            "risk": look.risk(consent.risk),
            "asked_at": shown.exact_moment(consent.requested_at),
            "expires_at": shown.exact_moment(consent.expires_at),
            "may_see_run": about.run is not None,
            "notice": notice and notice.about(consent),
            "comment": comment[:COMMENT_LIMIT],
            "comment_limit": COMMENT_LIMIT,
        }
        status = 200 if notice is None else notice.status
        return TemplateResponse(request, "admin/consents/consent/review.html", context, status=status)

    def _found(self, request: HttpRequest, object_id: str) -> Any:
        """The Consent, as far as this person may look.

        Raises:
            PermissionDenied: they may look at none.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            consent_id = uuid.UUID(object_id)
        except ValueError:
            return None
        return find(cast("QuerySet[Consent]", super().get_queryset(request)), consent_id)

    def _gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # pyright: ignore[reportAttributeAccessIssue]
