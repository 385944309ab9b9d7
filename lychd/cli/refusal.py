"""Why the last start was refused, for `lychd doctor`: the report of its recovery, Run by Run, with what to do (REC-19).

The report says how things stood at that start; each Run is looked at as it stands now, so what was dealt with since is
not told again. Reads only.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from lychd.cli.report import Finding, Named, Report
from lychd.cli.texts import harmless, sentence
from runs.errors import LychdError
from runs.patterns import PatternRegistry
from runs.states import TERMINAL, WORDS, RunStatus

# Of those that the report names; the others are counted.
SHOWN = 20

LAST = """
select b.started_at, b.ready_at is not null, b.report::text
from runs_vesselslot v join runs_boot b on b.id = v.boot_id
"""

NOW = """
select r.id::text, r.status, r.quarantined_at is not null, r.wait_kind,
       r.pattern_key, r.pattern_revision, r.pattern_digest,
       exists (select 1 from runs_step s where s.run_id = r.id and s.kind = 'done' and s.data->>'status' = r.status)
from runs_run r
where r.id = any(%(ids)s::uuid[])
"""


class Cursor(Protocol):
    """As much of a database cursor as is needed."""

    def execute(self, sql: str, params: Any = None) -> Any:
        """Run a statement."""
        ...

    def fetchone(self) -> Any:
        """The next row."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows."""
        ...


@dataclass(frozen=True, slots=True)
class Now:
    """A Run as it stands."""

    id: str
    status: RunStatus
    quarantined: bool
    wait_kind: str | None
    pattern_key: str
    revision: str
    digest: str
    proved: bool

    @property
    def settled(self) -> bool:
        """Whether no start stops at it any more."""
        return self.quarantined or (self.status in TERMINAL and self.proved)


def examine_refusal(
    cursor: Cursor, report: Report, *, registry: PatternRegistry | None, kinds: Collection[str], running: bool
) -> None:
    """Explain what the recovery of the last boot could not judge.

    Args:
        registry: the Patterns that are installed; None where they cannot be loaded.
        kinds: names of the kinds of wait that are installed.
        running: whether that boot holds the database now (the memory profile starts nevertheless).
    """
    cursor.execute(LAST)
    row = cursor.fetchone()
    if row is None:
        return
    since, ready, text = row
    told: dict[str, Any] = json.loads(text)
    if told.get("complete", True) or (ready and not running):
        return
    degraded = [(one.get("run"), str(one.get("reason"))) for one in told.get("degraded", [])]
    cursor.execute(NOW, {"ids": [run for run, _ in degraded if run]})
    standing = {now.id: now for now in (Now(found[0], RunStatus(found[1]), *found[2:]) for found in cursor.fetchall())}
    open_ones = [(run, reason) for run, reason in degraded if run is None or _open(standing.get(run))]
    more = int(told.get("degraded_more", 0))
    if not open_ones and not more:
        report.fact("recovery", "what the last start stopped at has been dealt with: start again")
        return
    named = tuple(_named(run, reason, standing, registry, kinds) for run, reason in open_ones[:SHOWN])
    runs = [run for run, _ in open_ones if run]
    left = len(open_ones) - len(named) + more
    rest = f" {left:,} more are not named here." if left else ""
    what = f"{len(runs) + more:,} Run{'' if len(runs) + more == 1 else 's'}" if runs or more else "everything"
    when = f"{since:%Y-%m-%d %H:%M:%S} UTC"
    said = (
        f"The Vessel of {when} started although its recovery could not judge {what}.{rest}"
        if ready
        else f"The last start, {when}, was refused: its recovery could not judge {what}.{rest}"
    )
    remedy = "Do for each what is said here, then start again: `lychd up` or `lychd vessel`."
    report.findings.append(Finding("recovery", said, remedy, len(runs) + more, tuple(runs[:SHOWN]), named))


def _open(now: Now | None) -> bool:
    return now is not None and not now.settled


def _named(
    run: str | None,
    reason: str,
    standing: dict[str, Now],
    registry: PatternRegistry | None,
    kinds: Collection[str],
) -> Named:
    said = sentence(harmless(reason, 1000))
    if run is None:
        return Named(None, said, "Repair what this names (database, broker), then start again.")
    return Named(run, said, _remedy(standing[run], registry, kinds))


def _remedy(now: Now, registry: PatternRegistry | None, kinds: Collection[str]) -> str:
    aside = f"`lychd quarantine {now.id} --reason '…'` lets the Vessel start without it"
    then = f"{aside}, `lychd cancel {now.id}` ends it then."
    if now.status in TERMINAL:
        return f"It is {WORDS[now.status]} and needs nothing; only its evidence is wrong: report this. {aside}."
    if now.status == RunStatus.CANCELLING:
        return f"See to it that what this names answers, and start again: the cancellation is tried anew. Or: {aside}."
    if now.wait_kind is not None and now.wait_kind not in kinds:
        return f"Install the app that brings this kind of wait ({harmless(now.wait_kind)}) again. Or: {then}"
    if registry is not None:
        try:
            registry.exact(now.pattern_key, now.revision, now.digest)
        except LychdError:
            return (
                f"Install {harmless(now.pattern_key)} {harmless(now.revision)} again, "
                f"or declare a newer one with continues=[…]. Or: {then}"
            )
    return f"It is {WORDS[now.status]}. Start again if the reason has gone. Or: {then}"
