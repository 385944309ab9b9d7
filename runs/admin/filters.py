"""The filters beside the lists. They ask for values, never for counts; the list makes one bounded query of them."""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from runs.admin import tenancy
from runs.events.event import Kind
from runs.models import Run
from runs.routing import DEFAULT_RULES
from runs.states import ON_WORKER, WORDS, DeliveryState, RunStatus

# More quarantined Runs than this are a sign of something else than bad Runs; the list says that it stops.
MOST_QUARANTINED = 1000


@dataclass(frozen=True, slots=True)
class Condition:
    """What a filter asks for. `few` says that an index finds all such rows and that they are few enough to sort."""

    column: str
    value: Any
    few: bool = False


class Choice(admin.SimpleListFilter):
    """A filter whose choice is an equality on one column."""

    column = ""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002 Django's signature
        """Unchanged: the list applies the conditions itself."""
        return queryset

    def conditions(self) -> list[Condition]:
        """What the choice asks for; a value that was not offered is asked for all the same and finds nothing."""
        value = self.value()
        return [] if value is None else [Condition(self.column, value)]


class TenantFilter(Choice):
    """Lists along an index that begins with the tenant show one tenant at a time."""

    title = "tenant"
    parameter_name = "tenant"

    def __init__(self, request: HttpRequest, *rest: Any) -> None:
        self._chosen = tenancy.chosen(request)
        super().__init__(request, *rest)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """The tenants to choose from; no choice, no filter."""
        offered = tenancy.choices(request)
        return [(tenant, tenant) for tenant in offered] if len(offered) > 1 else []

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        """No "All": there is always exactly one."""
        for tenant, title in self.lookup_choices:
            yield {
                "selected": tenant == self._chosen,
                "query_string": changelist.get_query_string({"tenant": tenant}, ["pattern"]),
                "display": title,
            }

    def conditions(self) -> list[Condition]:
        """None of its own: the list always asks for the chosen tenant."""
        return []


class StatusFilter(Choice):
    """The statuses in words."""

    title = "status"
    parameter_name = "status"
    column = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """Every status there is."""
        return [(status.value, WORDS[status]) for status in RunStatus]


class QuarantineFilter(Choice):
    """Runs that nothing claims until an operator lets them go (ruling 15)."""

    title = "quarantine"
    parameter_name = "quarantined"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """One choice."""
        return [("yes", "quarantined")]

    def conditions(self) -> list[Condition]:
        """The ids of those that are, since no list's order leads to them."""
        if self.value() is None:
            return []
        return [Condition("pk__in", [pk for (pk,) in quarantined().values_list("pk")[:MOST_QUARANTINED]], few=True)]


def quarantined(tenants: frozenset[str] | None = None) -> QuerySet[Run]:
    """Runs in quarantine, of these tenants or of all. Unordered, so that the index of just these is read."""
    found = Run.objects.filter(quarantined_at__isnull=False)
    return found if tenants is None else found.filter(tenant__in=tenants)


def uncontained(tenants: frozenset[str] | None = None) -> QuerySet[Run]:
    """Runs that are cancelling or failing while not everything that acts for them is stopped. Unordered."""
    found = Run.objects.filter(
        status__in=[status.value for status in (RunStatus.CANCELLING, *ON_WORKER)], containment_error__isnull=False
    )
    return found if tenants is None else found.filter(tenant__in=tenants)


class PatternFilter(Choice):
    """The Patterns of which the chosen tenant has Runs."""

    title = "Pattern"
    parameter_name = "pattern"
    column = "pattern_key"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """Found by walking the index from key to key."""
        return [(key, key) for key in tenancy.patterns(tenancy.chosen(request))]


class SourceFilter(Choice):
    """Where a Run was asked for, in the server's words."""

    title = "source"
    parameter_name = "source"
    column = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """The sources that routing knows by itself."""
        known = sorted({rule.source for rule in DEFAULT_RULES if rule.source is not None})
        return [(source, source) for source in known]


class DeliveryStateFilter(Choice):
    """The states of the outbox."""

    title = "state"
    parameter_name = "state"
    column = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """Every state there is."""
        return [(state.value, state.value) for state in DeliveryState]

    def conditions(self) -> list[Condition]:
        """Unsettled deliveries have an index of their own."""
        value = self.value()
        unsettled = value in {state.value for state in DeliveryState} - {DeliveryState.SETTLED.value}
        return [] if value is None else [Condition("state", value, few=unsettled)]


class KindFilter(Choice):
    """The kinds of Steps; tokens are never stored."""

    title = "kind"
    parameter_name = "kind"
    column = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002 Django's signature
        """Every kind that is stored."""
        return [(kind.value, kind.value) for kind in Kind if kind is not Kind.TOKEN]


def as_q(conditions: list[Condition]) -> Q:
    """All of them together."""
    found = Q()
    for condition in conditions:
        found &= Q(**{condition.column: condition.value})
    return found
