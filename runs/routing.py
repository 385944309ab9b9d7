"""Which lane and priority a Run gets: asked once, at admission, and stored; never asked again for that Run (ADM-2).

Pure rules over (source, Pattern). Also the one conversion of priority for the wire (ADM-41). Knows no broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runs.errors import Invalid

LOWEST, HIGHEST = 0, 100
QUEUES = ("runs", "rites")


def check_priority(priority: Any) -> int:
    """The priority, if it is a whole number from 0 to 100 (ADM-40).

    Raises:
        Invalid: it is not; True and False are no numbers here.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or not LOWEST <= priority <= HIGHEST:
        # Neither a huge number nor somebody's object is written out.
        shown = (
            str(priority) if isinstance(priority, int) and abs(priority) < 10**12 else f"a {type(priority).__name__}"
        )
        detail = f"must be a whole number from {LOWEST} to {HIGHEST}"
        raise Invalid(
            f"The priority {detail}, not {shown}.",
            errors=[{"pointer": "/priority", "detail": detail, "code": "priority_out_of_range"}],
        )
    return priority


def wire_priority(priority: int) -> int:
    """What the broker sorts by, lowest first: 100 minus the priority. Only for the enqueue edge (ADM-41)."""
    return HIGHEST - check_priority(priority)


@dataclass(frozen=True, slots=True)
class Route:
    """The lane and the priority (0 to 100, higher first) of one Run."""

    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Sends what comes from `source` for `pattern` (None: any) to a queue with a priority.

    Raises:
        Invalid: the priority is not a whole number from 0 to 100, or a name is empty (ADM-40).
    """

    queue: str
    priority: int
    source: str | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        check_priority(self.priority)
        for field, value in (("queue", self.queue), ("source", self.source), ("pattern", self.pattern)):
            if value is None and field != "queue":
                continue
            if not isinstance(value, str) or not value:
                raise Invalid(f"A routing rule needs a name as its {field}, not {value!r}.")


DEFAULT_RULES = (
    Rule("runs", 50),
    Rule("runs", 70, source="bridge"),
    Rule("runs", 70, source="dashboard"),
    Rule("runs", 50, source="cli"),
    Rule("runs", 50, source="api"),
    Rule("rites", 20, source="rite"),
)


class Router:
    """Chooses the most specific rule: Pattern and source, then Pattern, then source, then the default.

    Args:
        rules: stand above the default rules; two for the same (source, Pattern) contradict each other.
        queues: the lanes that exist.
        defaults: what holds where no rule speaks; must hold one rule without source and Pattern unless `rules` does.

    Raises:
        Invalid: rules contradict each other, name a queue that does not exist, or leave no default.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), queues: Iterable[str] = QUEUES, *, defaults: Iterable[Rule] = DEFAULT_RULES
    ) -> None:
        self.queues = tuple(queues)
        own = _by_target(rules)
        self._rules = {**_by_target(defaults), **own}
        if (None, None) not in self._rules:
            raise Invalid("Routing has no default: one rule must name neither source nor Pattern.")
        for rule in self._rules.values():
            if rule.queue not in self.queues:
                known = ", ".join(self.queues) or "none"
                raise Invalid(f"A routing rule sends Runs to the queue {rule.queue!r}, but the queues are: {known}.")

    def route(self, source: str, pattern: str, priority: int | None = None) -> Route:
        """The lane of one Run; the same answer for the same question.

        Args:
            source: the server's word for where the request came from; an unknown one gets the default rule.
            pattern: key of the Pattern.
            priority: overrides the rule's when it is given (ADM-40).

        Raises:
            Invalid: the priority is not a whole number from 0 to 100.
        """
        for target in ((source, pattern), (None, pattern), (source, None), (None, None)):
            rule = self._rules.get(target)
            if rule is not None:
                return Route(rule.queue, rule.priority if priority is None else check_priority(priority))
        raise AssertionError("the default rule was proved at construction")


def rules_from(entries: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Rules from their JSON form: `{"queue": …, "priority": …, "source"?: …, "pattern"?: …}`.

    Raises:
        Invalid: an entry lacks a field, has one too many, or a bad value.
    """
    rules: list[Rule] = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, Mapping):
            raise Invalid(f"Routing rule {number} must be an object, not {entry!r}.")
        odd = sorted(set(entry) - {"queue", "priority", "source", "pattern"})
        if odd:
            raise Invalid(f"Routing rule {number} has an unknown field: {', '.join(map(str, odd))}.")
        try:
            priority: Any = entry.get("priority")
            rules.append(Rule(entry.get("queue", ""), priority, entry.get("source"), entry.get("pattern")))
        except Invalid as error:
            raise Invalid(f"Routing rule {number}: {error.detail}", errors=error.errors) from error
    return tuple(rules)


def _by_target(rules: Iterable[Rule]) -> dict[tuple[str | None, str | None], Rule]:
    found: dict[tuple[str | None, str | None], Rule] = {}
    for rule in rules:
        target = (rule.source, rule.pattern)
        if target in found:
            raise Invalid(
                f"Two routing rules speak for source {rule.source or 'any'} and Pattern {rule.pattern or 'any'}."
            )
        found[target] = rule
    return found
