"""The list page: filters, search and position of a request become one walk along an index. Counts nothing."""

# The stubs know an older ChangeList.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst

from runs.admin import filters, keyset, search, tenancy

OLDER, NEWER = "older", "newer"


class KeysetChangeList(ChangeList):
    """Django's list with positions for pages.

    Attributes:
        page: the rows and the ways on.
        older_url, newer_url, newest_url: None where there is nothing to go to.
        scanned: how many rows were looked at when the page ended for that, as text; None otherwise.
    """

    model_admin: Any
    filter_params: dict[str, list[str]]
    page: keyset.Page
    older_url: str | None
    newer_url: str | None
    newest_url: str | None
    scanned: str | None

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.title = capfirst(str(self.opts.verbose_name_plural))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:  # noqa: ARG002 Django's signature
        """Collect what is asked for; `get_results` asks for it.

        Raises:
            IncorrectLookupParameters: a parameter is none of this list; Django answers with the plain list.
        """
        self._positions = {name: self._take(name) for name in (OLDER, NEWER)}
        known = {spec.parameter_name for spec in self.list_filter}
        if unknown := set(self.get_filters_params()) - known:
            raise IncorrectLookupParameters(", ".join(sorted(unknown)))
        if any("\0" in value for values in self.filter_params.values() for value in values):
            raise IncorrectLookupParameters("NUL")
        found: Any = self.get_filters(request)
        self.filter_specs, self.has_filters, _, _, self.has_active_filters = found
        specs: Iterable[Any] = found[0]
        self.clear_all_filters_qs = self.get_query_string(remove=sorted(known))
        self._conditions = [condition for spec in specs for condition in spec.conditions()]
        self._asked = self._searched(request)
        return self.root_queryset

    def get_results(self, request: HttpRequest) -> None:
        """Fetch one page.

        Raises:
            IncorrectLookupParameters: the position is none of this list.
        """
        self.page = keyset.Page([], None, None) if self._asked is None else self._fetch(request, self._asked)
        self.result_list = self.page.rows
        # Equal figures keep Django's template from showing them: what is shown of a page is not a count.
        self.result_count = self.full_result_count = len(self.page.rows)
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.model_admin.get_actions(request)) and bool(self.result_list)
        self.can_show_all = self.multi_page = False
        self.paginator = None
        self.scanned = f"{keyset.SCAN:,}" if self.page.cut else None
        self.older_url = self._url(OLDER, self.page.older)
        self.newer_url = self._url(NEWER, self.page.newer)
        self.newest_url = self.get_query_string() if any(self._positions.values()) else None

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str]:  # noqa: ARG002 Django's signature
        """Only that of an index, whatever the address says."""
        return []

    def get_ordering_field_columns(self) -> dict[int, str]:
        """None can be chosen."""
        return {}

    def _searched(self, request: HttpRequest) -> dict[str, Any] | None:
        """What the search field asks for; None when it cannot be understood, which finds nothing."""
        admin = self.model_admin
        try:
            return search.parse(self.query, self.model, admin.qualifiers, admin.bare)
        except search.NotUnderstood as error:
            messages.warning(request, str(error))
            return None

    def _fetch(self, request: HttpRequest, asked: dict[str, Any]) -> keyset.Page:
        admin, own = self.model_admin, tenancy.visible(request)
        conditions = [filters.Condition(column, value, column in admin.few) for column, value in asked.items()]
        conditions += self._conditions
        few = any(condition.few for condition in conditions)
        if admin.by_tenant and not few and "tenant" not in asked:
            tenant = tenancy.chosen(request)
            if tenant is None:
                return keyset.Page([], None, None)
            conditions.append(filters.Condition("tenant", tenant))
        columns = {condition.column for condition in conditions}
        order = next((order for order in admin.orders if order.equal <= columns), admin.orders[-1])
        indexed = {one.column: one.value for one in conditions if few or one.column in order.equal}
        other = filters.as_q([one for one in conditions if not few and one.column not in order.equal])
        if own is not None and admin.has_tenant and "tenant" not in indexed and not few:
            # Already part of what the person sees at all; said again so that the page knows that it looks at rows.
            other &= Q(tenant__in=own)
        rows = self.root_queryset.select_related(None).only(*admin.list_only)
        try:
            return keyset.fetch(
                rows,
                order,
                indexed=indexed,
                other=other,
                size=self.list_per_page,
                scan=keyset.SCAN,
                older=self._positions[OLDER],
                newer=self._positions[NEWER],
            )
        except keyset.BadPosition as error:
            raise IncorrectLookupParameters(str(error)) from error

    def _take(self, name: str) -> str | None:
        """A position is of this page only: links of filters begin at the newest page again."""
        self.params.pop(name, None)
        values = self.filter_params.pop(name, None)
        return values[-1] if values else None

    def _url(self, name: str, position: str | None) -> str | None:
        more: Any = {name: position}
        return None if position is None else self.get_query_string(more)
