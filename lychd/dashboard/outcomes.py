"""How the last Runs of a Pattern went: outcomes and durations, over a bounded number of them.

Durations are of Runs that are done, from admission to the end, waiting included, and from the first claim to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connection

from runs.models import Run
from runs.states import NONTERMINAL, TERMINAL, RunStatus

# Of how many of the newest Runs of a Pattern the figures are.
RECENT = 500
NEWEST = 10
MOST_LIVE = 1000

# A range of one key and its place in the order: with plain equality the planner may walk all Runs of the tenant, newest
# first, to find those of a Pattern that has few or none (400 ms more with a million Runs).
_FIGURES = """
select k.key, r.status, count(*)::int,
       extract(epoch from percentile_cont(0.5) within group (order by r.finished_at - r.created_at))::float8,
       extract(epoch from percentile_cont(0.95) within group (order by r.finished_at - r.created_at))::float8,
       extract(epoch from percentile_cont(0.5) within group (order by r.finished_at - r.started_at))::float8,
       extract(epoch from percentile_cont(0.95) within group (order by r.finished_at - r.started_at))::float8,
       max(r.created_at)
from unnest(%(keys)s::text[]) k(key)
cross join lateral (
    select status, created_at, started_at, finished_at
    from runs_run
    where tenant = %(tenant)s::text and pattern_key >= k.key and pattern_key <= k.key
    order by pattern_key, created_at desc, id desc
    limit %(recent)s::int
) r
group by k.key, r.status
"""

_LIVE = """
select q.pattern_revision, count(*)::int
from (
    select pattern_revision from runs_run
    where status in ({live}) and tenant = %(tenant)s::text and pattern_key = %(key)s::text
    limit %(most)s::int
) q
group by q.pattern_revision
order by q.pattern_revision
""".format(live=", ".join(f"'{status.value}'" for status in sorted(NONTERMINAL)))  # noqa: S608 - only constants are put together


@dataclass(frozen=True, slots=True)
class Part:
    """One outcome among the recent Runs: how many, and where its bar begins and how wide it is (of 100)."""

    status: str
    state: str
    number: int
    begin: float
    width: float


@dataclass(slots=True)
class Outcomes:
    """The figures of one Pattern; durations in words, None where nothing is done yet."""

    total: int = 0
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    p50: str | None = None
    p95: str | None = None
    work_p50: str | None = None
    work_p95: str | None = None
    last: Any = None

    @property
    def parts(self) -> list[Part]:
        """The bar: what is done, failed, cancelled, and what still goes on."""
        order = [RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED]
        numbers = [(status.value, status.value, self.numbers.get(status.value, 0)) for status in order]
        live = sum(number for status, number in self.numbers.items() if status not in TERMINAL)
        found: list[Part] = []
        begin = 0.0
        for status, state, number in (*numbers, ("live", "running", live)):
            if number:
                width = 100 * number / self.total
                found.append(Part(status, state, number, round(begin, 2), round(width, 2)))
                begin += width
        return found

    @property
    def words(self) -> str:
        """The same as a sentence."""
        return ", ".join(f"{part.number:,} {part.status}" for part in self.parts)


def of_many(tenant: str, keys: Sequence[str]) -> dict[str, Outcomes]:
    """The figures of each Pattern that has Runs in the tenant."""
    with connection.cursor() as cursor:
        cursor.execute(_FIGURES, {"tenant": tenant, "keys": list(keys), "recent": RECENT})
        rows = cursor.fetchall()
    found: dict[str, Outcomes] = {}
    for key, status, number, p50, p95, work50, work95, last in rows:
        one = found.setdefault(key, Outcomes())
        one.total += number
        one.numbers[status] = number
        one.last = last if one.last is None else max(one.last, last)
        if status == RunStatus.DONE:
            one.p50, one.p95 = _words(p50), _words(p95)
            one.work_p50, one.work_p95 = _words(work50), _words(work95)
    return found


def of_one(tenant: str, key: str) -> Outcomes | None:
    """The figures of one Pattern; None when it has no Runs in the tenant."""
    return of_many(tenant, [key]).get(key)


def newest(tenant: str, key: str) -> list[Run]:
    """Its newest Runs."""
    within = Run.objects.filter(tenant=tenant, pattern_key__gte=key, pattern_key__lte=key)
    found = within.order_by("pattern_key", "-created_at", "-id")
    return list(found.only("id", "status", "created_at", "started_at", "finished_at", "sigil_name")[:NEWEST])


def live_by_revision(tenant: str, key: str) -> list[tuple[str, str]]:
    """How many unfinished Runs hold each revision, counted up to a bound."""
    with connection.cursor() as cursor:
        cursor.execute(_LIVE, {"tenant": tenant, "key": key, "most": MOST_LIVE})
        rows: list[tuple[str, int]] = cursor.fetchall()
    many = sum(number for _, number in rows) >= MOST_LIVE
    return [(revision, f"{number:,}{' or more' if many else ''}") for revision, number in rows]


def took(run: Run) -> str | None:
    """How long a Run took from its admission to its end; None while it goes on."""
    return None if run.finished_at is None else span((run.finished_at - run.created_at).total_seconds())


def span(seconds: float) -> str:
    """A duration as people say it: two units at most."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    left = timedelta(seconds=round(seconds))
    hours, rest = divmod(left.seconds, 3600)
    if left.days:
        return f"{left.days} d {hours} h"
    minutes, rest = divmod(rest, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _words(seconds: float | None) -> str | None:
    return None if seconds is None else span(seconds)
