"""What all pages of the substrate share: they only show, within the person's tenants, in bounded queries."""

# Django's admin classes take type arguments in the stubs, not at run time.
# Some of its methods take more arguments than the stubs know.
# pyright: reportMissingTypeArgument=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from runs.admin import search, shown, tenancy
from runs.admin.changelist import KeysetChangeList
from runs.admin.keyset import Order

NEWEST_BY_ID = (Order(frozenset(), ("id",)),)


class ReadOnlyAdmin(admin.ModelAdmin):
    """A page that only shows.

    Attributes:
        orders: indexes to walk, the most specific first; the last holds where no other does.
        few: columns whose equality leaves so few rows that they may be sorted.
        qualifiers, bare: what the search field understands (`runs.admin.search`).
        list_only: columns that the list reads; payloads are not among them.
        payloads: JSON columns that only people with `runs.view_payload` see; others get size and digest.
        open_payloads: JSON columns that hold nothing of a Run's payload but are as long.
        by_tenant: whether the list shows one tenant at a time.
        has_tenant: whether the rows belong to tenants at all.
    """

    orders: ClassVar[tuple[Order, ...]] = NEWEST_BY_ID
    few: ClassVar[frozenset[str]] = frozenset()
    qualifiers: ClassVar[dict[str, str]] = {}
    bare: ClassVar[str] = "id"
    list_only: ClassVar[tuple[str, ...]] = ()
    payloads: ClassVar[tuple[str, ...]] = ()
    open_payloads: ClassVar[tuple[str, ...]] = ()
    by_tenant: ClassVar[bool] = False
    has_tenant: ClassVar[bool] = True

    actions = None
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
    list_per_page = 50
    sortable_by = ()
    list_select_related = False

    def get_changelist(self, request: HttpRequest, **_kwargs: Any) -> type[KeysetChangeList]:  # noqa: ARG002 Django's signature
        """Django's hook for another list."""
        return KeysetChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows of the person's tenants; payloads are not read unless asked for."""
        found: QuerySet[Any] = self.model._default_manager.defer(*self.payloads, *self.open_payloads)  # noqa: SLF001 Django's own way
        own = tenancy.visible(request) if self.has_tenant else None
        return found if own is None else found.filter(tenant__in=own)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:  # noqa: ARG002 Django's signature
        """The row with its payloads, as far as the person may see them; None when there is none for them."""
        user: Any = request.user
        may_see = user.has_perm("runs.view_payload")
        found = self.get_queryset(request).annotate(
            **shown.payload_columns(self.payloads, may_see=may_see),
            **shown.payload_columns(self.open_payloads, may_see=True),
        )
        if "\0" in object_id:
            return None
        key: Any = self.opts.pk
        try:
            return found.filter(pk=key.to_python(object_id)).first()
        except (ValidationError, ValueError):
            return None

    def get_search_results(
        self,
        request: HttpRequest,  # noqa: ARG002 Django's signature
        queryset: QuerySet[Any],
        search_term: str,
    ) -> tuple[QuerySet[Any], bool]:
        """Exact matches of qualifiers; nothing for what is none. Never duplicates."""
        try:
            return queryset.filter(**search.parse(search_term, self.model, self.qualifiers, self.bare)), False
        except search.NotUnderstood:
            return queryset.none(), False

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:  # noqa: ARG002 Django's signature
        """Only their presence counts: they make the search field appear."""
        return tuple(self.qualifiers.values())

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:  # noqa: ARG002 Django's signature
        """Only what the filters offer: any other lookup could read every row."""
        return lookup in {spec.parameter_name for spec in self.list_filter}  # pyright: ignore[reportAttributeAccessIssue]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Everything."""
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:  # noqa: ARG002 Django's signature
        """Never: the ledger alone writes."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Never: the ledger alone writes."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 Django's signature
        """Never: the ledger alone writes."""
        return False
