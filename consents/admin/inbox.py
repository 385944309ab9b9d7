"""The list of Consents: what waits for an answer first, by key and never counted; filters that end where they must."""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest

from consents.models import ConsentStatus, Risk
from runs.admin.changelist import KeysetChangeList
from runs.admin.filters import Choice, Condition

SIZES = (50, 200, 500)
EVERYTHING = "all"

WORDS: dict[str, str] = {
    ConsentStatus.PENDING: "waits for an answer",
    ConsentStatus.GRANTED: "granted",
    ConsentStatus.DENIED: "denied",
    ConsentStatus.EXPIRED: "expired",
    ConsentStatus.CANCELLED: "cancelled",
}


class StatusFilter(Choice):
    """What waits for an answer, unless something else is asked for; a search looks everywhere."""

    title = "status"
    parameter_name = "status"

    def __init__(self, request: HttpRequest, *rest: Any) -> None:
        self._searched = bool(request.GET.get("q", "").strip())
        super().__init__(request, *rest)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """Every status there is, and all of them together."""
        return [*((status.value, WORDS[status]) for status in ConsentStatus), (EVERYTHING, "all, newest first")]

    @property
    def chosen(self) -> str:
        """The status that is shown; `all` for every one."""
        return self.value() or (EVERYTHING if self._searched else ConsentStatus.PENDING.value)

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        """No choice beside them: without one it is what waits."""
        for value, title in self.lookup_choices:
            yield {
                "selected": self.chosen == value,
                "query_string": changelist.get_query_string({"status": value}),
                "display": title,
            }

    def conditions(self) -> list[Condition]:
        """One status, or none."""
        return [] if self.chosen == EVERYTHING else [Condition("status", self.chosen)]


class RiskFilter(Choice):
    """By the word that the Pattern gave."""

    title = "risk"
    parameter_name = "risk"
    column = "risk"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """From the highest down."""
        return [(risk.value, risk.value) for risk in reversed(Risk)]


class ConsentChangeList(KeysetChangeList):
    """The walk of all lists, with actions and a choice of how many are on a page.

    Attributes:
        sizes: the choices as (rows, address); the address is None for the present one.
        inbox: whether this is the plain list of what waits.
    """

    sizes: list[tuple[int, str | None]]
    inbox: bool
    _size: str | None = None

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """As for all lists, and how many rows a page has.

        Raises:
            IncorrectLookupParameters: a parameter is none of this list; Django answers with the plain list.
        """
        asked = self._take("size")
        if asked is not None and asked not in {str(size) for size in SIZES}:
            raise IncorrectLookupParameters("size")
        self._size = asked
        self.list_per_page = int(asked) if asked is not None else SIZES[0]
        return super().get_queryset(request, exclude_parameters)

    def get_results(self, request: HttpRequest) -> None:
        """One page, with actions; every way on keeps the number of rows.

        Raises:
            IncorrectLookupParameters: the position is none of this list.
        """
        super().get_results(request)
        self.show_admin_actions = True
        self.sizes = [
            (size, None if size == self.list_per_page else self.get_query_string({"size": size})) for size in SIZES
        ]
        self.inbox = not request.GET

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> str:
        """Addresses keep the number of rows, which is no filter."""
        params: Any = {**({} if self._size is None else {"size": self._size}), **(new_params or {})}
        return super().get_query_string(params, remove)
