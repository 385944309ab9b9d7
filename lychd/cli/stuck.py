"""Finds Runs that will not move by themselves, for `lychd doctor`. Reads only, and decides nothing about them.

Everything starts from unfinished Runs, which one partial index holds, so a million finished ones cost nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from lychd.cli.report import Finding, Report
from lychd.cli.texts import harmless
from runs.errors import LychdError
from runs.patterns import PatternRegistry

# How long something may take before it counts as stuck. Seconds.
PATIENCE = 60
SHOWN = 5

COUNTS = """
select r.status, count(*) from runs_run r
where r.status not in ('done', 'failed', 'cancelled') and r.road = 'vessel'
group by r.status order by r.status
"""

# How many match, some of them, and a word that explains.
_FOUND = """
select count(*) over () as total, r.id, {why} as why
from runs_run r
left join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq
where r.road = 'vessel' and {scope} and {condition}
order by r.updated_at, r.id
limit %(shown)s
"""

_OLD = "r.updated_at < now() - make_interval(secs => %(patience)s)"

QUEUED = "r.status = 'queued' and d.state in ('pending', 'published')"

WITHOUT_JOB = f"""{QUEUED} and {_OLD}
  and not exists (
      select from saq_jobs j
      where j.key = 'run:' || r.id || ':' || r.enqueue_seq and j.status not in ('aborted', 'failed', 'complete')
  )"""

HELD = f"r.status = 'queued' and d.state = 'held' and {_OLD}"

ORPHANED = "d.state = 'claimed' and d.boot_id is distinct from %(boot)s::uuid"

CANCELLING = f"r.status = 'cancelling' and r.containment_error is null and {_OLD}"

UNCONTAINED = "r.status = 'cancelling' and r.containment_error is not null"

CUSTODY = "r.status in ('running', 'awaiting_hardware') and r.containment_error is not null"

CONTRADICTORY = """(
      d.state is null
      or (r.status = 'queued' and d.state in ('claimed', 'settled'))
      or (r.status in ('running', 'awaiting_hardware') and d.state <> 'claimed')
      or (r.status = 'queued' and (d.queue_name <> r.queue_name or d.priority <> r.priority))
  )"""

PINNED = """
select r.pattern_key, r.pattern_revision, r.pattern_digest, count(*), (array_agg(r.id order by r.created_at))[1:5]
from runs_run r
where r.status not in ('done', 'failed', 'cancelled') and r.road = 'vessel' and r.quarantined_at is null
group by 1, 2, 3 order by 1, 2, 3
"""


class Cursor(Protocol):
    """As much of a database cursor as is needed."""

    def execute(self, sql: str, params: Any = None) -> Any:
        """Run a statement."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows."""
        ...


@dataclass(frozen=True, slots=True)
class Search:
    """One kind of stuck work.

    Attributes:
        condition: SQL that finds it, over the Run `r` and its current delivery `d`.
        sentence, remedy: what is said and what helps; `{n}` becomes `3 Runs`.
        why: SQL of a word that explains the first that is found.
        free: whether it looks at unfinished Runs that are not quarantined, or at all those that are.
    """

    check: str
    condition: str
    sentence: str
    remedy: str
    why: str = "null"
    free: bool = True

    @property
    def sql(self) -> str:
        """The statement."""
        unfinished = "r.status not in ('done', 'failed', 'cancelled') and r.quarantined_at is null"
        scope = unfinished if self.free else "r.quarantined_at is not null"
        return _FOUND.format(why=self.why, condition=self.condition, scope=scope)


_HELD = Search(
    "held",
    HELD,
    "{n} held since admission for more than a minute: the request that admitted ended before it let go",
    "repeat the same request with its idempotency key, or cancel",
)
_CANCELLING = Search(
    "cancelling",
    CANCELLING,
    "{n} cancelling for more than a minute",
    "a Vessel that runs tries again by itself, and one that starts does so first; cancelling again is safe",
)
_UNCONTAINED = Search(
    "uncontained",
    UNCONTAINED,
    "{n} cancelling, and not everything that acts for it is stopped yet",
    "see to it that the named part answers: a Vessel tries again by itself, and one that starts does so first",
    why="r.containment_error",
)
_CUSTODY = Search(
    "custody",
    CUSTODY,
    "{n} failing, but it is not certain that nothing acts for it any more",
    "see to it that the named part answers: a Vessel tries again by itself; the Run becomes failed after that",
    why="r.containment_error",
)
_CONTRADICTORY = Search(
    "contradictory",
    CONTRADICTORY,
    "{n} with a delivery that contradicts the status",
    "this must not happen: quarantine and report it",
    why="r.status || ' with ' || coalesce('a ' || d.state, 'no') || ' delivery'",
)
_QUARANTINED = Search(
    "quarantined",
    "true",
    "{n} quarantined, waiting for a person",
    "look at the reason, then `lychd cancel RUN`, or `lychd quarantine RUN --release` to let it go on",
    why="r.quarantine_reason",
    free=False,
)


def examine(cursor: Cursor, report: Report, *, boot: uuid.UUID | None, broker: bool) -> None:
    """Count unfinished work and find what is stuck.

    Args:
        boot: of the Vessel that runs; None when none does.
        broker: whether the broker's tables are there.
    """
    cursor.execute(COUNTS)
    counts = {str(status): int(number) for status, number in cursor.fetchall()}
    report.fact(
        "work", ", ".join(f"{name} {number:,}" for name, number in counts.items()) or "nothing unfinished", counts
    )
    for search in _searches(boot, broker=broker):
        cursor.execute(search.sql, {"patience": PATIENCE, "shown": SHOWN, "boot": str(boot) if boot else None})
        rows = cursor.fetchall()
        if rows:
            report.findings.append(_finding(search, rows))


def examine_pinned(cursor: Cursor, report: Report, registry: PatternRegistry) -> None:
    """Find unfinished Runs that no registered Pattern can carry on (ruling 19)."""
    cursor.execute(PINNED)
    for key, revision, digest, number, some in cursor.fetchall():
        try:
            registry.exact(key, revision, digest)
        except LychdError as error:
            report.findings.append(
                Finding(
                    "pinned",
                    f"{_many(number)} of {key} {revision} cannot go on: {error.detail.rstrip('.')}.",
                    "Install that revision again, or declare a newer one with continues=[…], or cancel them.",
                    number,
                    tuple(str(run) for run in some),
                )
            )


def _searches(boot: uuid.UUID | None, *, broker: bool) -> Iterable[Search]:
    if boot is None:
        yield Search("queued", QUEUED, "{n} queued while no Vessel runs", "start one: `lychd up` or `lychd vessel`")
        sentence = "{n} at work when the last Vessel ended"
        yield Search("orphaned", ORPHANED, sentence, "start a Vessel: it decides about each before it serves")
    else:
        if broker:
            sentence = "{n} queued without a job at the broker for more than a minute"
            remedy = "the delivery relay should have published: see its reason in the readiness, or in the log"
            yield Search("queued", WITHOUT_JOB, sentence, remedy, why="d.last_error")
        sentence = "{n} at work for a Vessel that is gone, and not taken up by the one that runs"
        yield Search("orphaned", ORPHANED, sentence, "restart the Vessel: it decides about each before it serves")
    yield from (_HELD, _CANCELLING, _UNCONTAINED, _CUSTODY, _CONTRADICTORY, _QUARANTINED)


def _finding(search: Search, rows: list[tuple[Any, ...]]) -> Finding:
    total = int(rows[0][0])
    why = next((harmless(str(row[2]).strip()) for row in rows if row[2]), "")
    said = search.sentence.format(n=_many(total)) + (f" ({why})" if why else "")
    remedy = search.remedy[0].upper() + search.remedy[1:]
    return Finding(search.check, f"{said}.", f"{remedy}.", total, tuple(str(row[1]) for row in rows))


def _many(number: int) -> str:
    return f"{number:,} Run{'' if number == 1 else 's'}"
