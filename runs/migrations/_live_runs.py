"""The guard that stands before each change of the tables of Runs: live Runs must be such as this code can carry on.

It looks while no other writer can add to them, and it only looks: it invents no delivery and no history (ADM-50).
"""

from __future__ import annotations

from typing import Any

from django.db import OperationalError

from runs.errors import Degraded

LOCK_SECONDS: float = 10
_SHOWN = 5

_LOCK = "lock table runs_run in access exclusive mode"

# What the status of a live Run says about the one delivery of its current hop, as `runs.states.EDGES` has it. Runs of
# the fleet have no delivery here, and quarantined ones are nobody's to carry.
_STRANGE = """
select r.id::text, r.status,
    case when d.id is null then 'no delivery of its current hop' else 'a delivery that is ' || d.state end
from runs_run r
left join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq
where r.status not in ('done', 'failed', 'cancelled')
  and r.road = 'vessel'
  and r.quarantined_at is null
  and not coalesce(
    jsonb_typeof(r.manifest -> 'nodes') = 'array'
    and case
        when r.status = 'queued' then
            d.state in ('held', 'pending', 'published') and d.queue_name = r.queue_name and d.priority = r.priority
        when r.status in ('running', 'awaiting_hardware') then d.state = 'claimed'
        when r.status = 'cancelling' then true
        else d.state = 'settled'
    end
    and d.id is not null,
    false)
order by r.id
"""

_LIVE = """
select r.id::text, r.status, 'unfinished work'
from runs_run r
where r.status not in ('done', 'failed', 'cancelled')
order by r.id
"""


class LiveRuns(Degraded):
    """Live Runs stand in the way of a change of the database."""

    code, title = "live_runs", "Live Runs stand in the way"


def forwards(apps: Any, schema_editor: Any) -> None:
    """Refuse to go on while a live Run is not of the shape that this code knows.

    Raises:
        LiveRuns: which Runs, and what to do; nothing was changed.
    """
    del apps
    _refuse(
        schema_editor,
        _STRANGE,
        "This version cannot carry on {count} live Run(s) of the database: {runs}. "
        "Let them end, cancel or quarantine them with the version that wrote them, then migrate again.",
    )


def backwards(apps: Any, schema_editor: Any) -> None:
    """Refuse to go back while any Run is live: the older code may not know what it waits for.

    Raises:
        LiveRuns: which Runs, and what to do; nothing was changed.
    """
    del apps
    _refuse(
        schema_editor,
        _LIVE,
        "An older version could not carry on {count} live Run(s) of the database: {runs}. "
        "Let them end or cancel them, then migrate again.",
    )


def _refuse(schema_editor: Any, sql: str, sentence: str) -> None:
    with schema_editor.connection.cursor() as cursor:
        # A Vessel that still writes would otherwise be queued behind this lock for as long as this waits for it.
        cursor.execute(f"set local lock_timeout = {int(LOCK_SECONDS * 1000)}")
        try:
            cursor.execute(_LOCK)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != "55P03":
                raise
            raise LiveRuns(
                f"The table of Runs was in use for {LOCK_SECONDS:g} s. Stop the Vessel, then migrate again."
            ) from error
        cursor.execute("set local lock_timeout = default")
        cursor.execute(f"select count(*) from ({sql}) found")  # noqa: S608 - our own two texts
        (count,) = cursor.fetchone()
        if not count:
            return
        cursor.execute(f"{sql} limit {_SHOWN}")
        shown = "; ".join(f"{run} is {status} and has {what}" for run, status, what in cursor.fetchall())
    raise LiveRuns(sentence.format(count=count, runs=shown + ("; …" if count > _SHOWN else "")))
