"""The page of the system: Vessel, readiness, lanes by ledger and by broker, relays, database, recovery.

Only looks. What the process knows it says itself; what the tables hold is one bounded statement each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from lychd.dashboard.context import frame, page
from lychd.dashboard.outcomes import span
from lychd.dashboard.vessel import lane_stats, readiness, vessel_of
from runs.admin import shown
from runs.models import Boot, VesselSlot
from runs.routing import QUEUES

if TYPE_CHECKING:
    from lychd.graph import Vessel

VIEW_BOOT, VIEW_SLOT = "runs.view_boot", "runs.view_vesselslot"
BOOTS = 6
MOST_DEGRADED = 50
# Counting stops here, and says so.
MOST = 10_000

# Both views of one moment: the outbox of the ledger, and the live rows of the broker. Ends are left out: they are many.
LANES = """
with ours as (
    select q.queue_name, q.state, count(*)::int as number, min(q.updated_at) as since
    from (select queue_name, state, updated_at from runs_rundelivery where state <> 'settled' limit %(most)s::int) q
    group by 1, 2
),
theirs as (
    select q.queue, q.status, count(*)::int as number
    from (select queue, status from saq_jobs where status in ('queued', 'active', 'aborting') limit %(most)s::int) q
    group by 1, 2
)
select 'ours', o.queue_name, o.state, o.number, extract(epoch from now() - o.since)::float8 from ours o
union all
select 'broker', t.queue, t.status, t.number, null from theirs t
"""
OURS_ONLY = """
select 'ours', q.queue_name, q.state, count(*)::int, extract(epoch from now() - min(q.updated_at))::float8
from (select queue_name, state, updated_at from runs_rundelivery where state <> 'settled' limit %(most)s::int) q
group by 2, 3
"""
BROKER = "select to_regclass('saq_jobs') is not null"

# What each relay would find to do, bounded; a name that is not here has no list of its own.
BACKLOGS = {
    "delivery": """
        select count(*) from (
            select 1 from runs_rundelivery d where d.state in ('held', 'pending') limit %(most)s::int) q
    """,
    "waits consent": """
        select count(*) from (
            select 1 from runs_run r join consents_consent c on c.id = r.wait_owner
            where r.status = 'awaiting_consent' and r.quarantined_at is null
              and c.status in ('granted', 'denied', 'expired')
            limit %(most)s::int) q
    """,
    "cancel": """
        select count(*) from (select 1 from runs_run r where r.status = 'cancelling' limit %(most)s::int) q
    """,
    "custody": """
        select count(*) from (
            select 1 from runs_rundelivery d
            where d.state = 'claimed' and d.boot_id is distinct from %(boot)s::uuid limit %(most)s::int) q
    """,
}

DATABASE = """
select current_setting('server_version'), current_database(), pg_database_size(current_database()),
       current_setting('max_connections')::int,
       (select count(*)::int from pg_stat_activity where datname = current_database()),
       pg_postmaster_start_time()
"""
# Rows as the statistics have them: counting a million would cost more than it tells.
TABLES = """
select c.relname, greatest(c.reltuples, 0)::bigint, pg_total_relation_size(c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname = current_schema()
  and (c.relname like 'runs\\_%%' or c.relname like 'consents\\_%%' or c.relname like 'saq\\_%%')
order by 3 desc
limit 10
"""


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane: what the process has, what the ledger has, what the broker has."""

    name: str
    free: int | None
    slots: int | None
    works: bool | None
    waits: str | None
    pending: int
    published: int
    claimed: int
    queued: int
    active: int
    aborting: int

    @property
    def differs(self) -> str | None:
        """Where the two views do not say the same; for moments that is how a hop changes hands."""
        told: list[str] = []
        if self.published != self.queued:
            told.append(f"{self.published:,} published and {self.queued:,} queued at the broker")
        if self.claimed != self.active + self.aborting:
            told.append(f"{self.claimed:,} claimed and {self.active + self.aborting:,} active at the broker")
        return "; ".join(told) or None


@dataclass(frozen=True, slots=True)
class RelayRow:
    """One relay as the supervisor knows it."""

    name: str
    ok: bool
    last: str
    interval: float
    passes: int
    failures: int
    restarts: int
    error: str | None
    backlog: str | None


@require_safe
@page("system", VIEW_SLOT, VIEW_BOOT)
def system(request: HttpRequest) -> HttpResponse:
    """Everything about the machine, as of now."""
    user: Any = request.user
    vessel = vessel_of(request)
    slot = VesselSlot.objects.select_related("boot").first()
    boot = None if slot is None else slot.boot
    ready = None if vessel is None else readiness(vessel)
    sees_boots = user.has_perm(VIEW_BOOT)
    context = frame(
        request,
        "system",
        "System",
        vessel=vessel,
        boot=boot,
        taken=None if slot is None else shown.moment(slot.taken_at),
        started=None if boot is None else shown.exact_moment(boot.started_at),
        uptime=None if vessel is None else span(time.monotonic() - vessel.started),
        ready=[] if ready is None or isinstance(ready, str) else ready,
        unready=sum(not one.ok for one in ready or [] if not isinstance(one, str)),
        silent=ready if isinstance(ready, str) else None,
        lanes=_lanes(vessel),
        relays=[] if vessel is None else _relays(vessel),
        gates=[] if vessel is None else [vessel.claim_gate, vessel.publish_gate],
        inside=[] if vessel is None else _inside(vessel),
        database=_database(),
        tables=[(name, f"{rows:,}", shown.size(size)) for name, rows, size in _rows(TABLES)],
        sees_boots=sees_boots,
        boots=_boots() if sees_boots else [],
        recovery=_recovery(vessel, boot) if sees_boots else None,
        live_every=5,
    )
    return render(request, "lychd/dashboard/system.html", context)


def _lanes(vessel: Vessel | None) -> list[Lane]:
    broker = _rows(BROKER)[0][0]
    counted: dict[tuple[str, str, str], int] = {}
    oldest: dict[str, float] = {}
    for side, queue, state, number, age in _rows(LANES if broker else OURS_ONLY, most=MOST):
        counted[side, queue, state] = number
        if side == "ours" and state in {"pending", "published"}:
            oldest[queue] = max(oldest.get(queue, 0.0), float(age))
    stats = {} if vessel is None else lane_stats(vessel)
    known = {} if isinstance(stats, str) else stats
    names = sorted({*QUEUES, *(queue for _, queue, _ in counted)}, key=lambda name: (name not in QUEUES, name))
    return [
        Lane(
            name=name,
            free=known[name].free if name in known else None,
            slots=known[name].concurrency if name in known else None,
            works=known[name].running if name in known else None,
            waits=span(oldest[name]) if name in oldest else None,
            pending=counted.get(("ours", name, "held"), 0) + counted.get(("ours", name, "pending"), 0),
            published=counted.get(("ours", name, "published"), 0),
            claimed=counted.get(("ours", name, "claimed"), 0),
            queued=counted.get(("broker", name, "queued"), 0),
            active=counted.get(("broker", name, "active"), 0),
            aborting=counted.get(("broker", name, "aborting"), 0),
        )
        for name in names
    ]


def _relays(vessel: Vessel) -> list[RelayRow]:
    now = time.monotonic()
    found: list[RelayRow] = []
    for name, status in vessel.supervisor.status.items():
        age = None if status.last_pass is None else now - status.last_pass
        late = age is not None and age > max(10.0, status.interval * 10)
        sql = BACKLOGS.get(name)
        number = None if sql is None else int(_rows(sql, most=MOST, boot=str(vessel.boot_id))[0][0])
        found.append(
            RelayRow(
                name=name,
                ok=status.last_error is None and not late,
                last="no pass yet" if age is None else f"{span(age)} ago",
                interval=status.interval,
                passes=status.passes,
                failures=status.failures,
                restarts=status.restarts,
                error=status.last_error,
                backlog=None if number is None else f"{number:,}{'+' if number >= MOST else ''}",
            )
        )
    return found


def _inside(vessel: Vessel) -> list[tuple[str, str]]:
    """What the process holds in memory."""
    bus, evidence = vessel.bus.stats(), vessel.evidence.stats()
    return [
        ("Queued, as back-pressure counts", f"{vessel.limits.queued:,} of at most {vessel.limits.max_queued:,}"),
        ("Live event channels", f"{bus.channels:,}, and {bus.folded:,} folded"),
        ("Live readers", f"{bus.subscribers:,}"),
        ("Events since the start", f"{bus.emitted:,}"),
        ("Resyncs for slow readers", f"{bus.dropped_resyncs:,}"),
        ("Steps written", f"{evidence.written:,}, {evidence.waiting:,} waiting, {evidence.lost:,} lost"),
        ("Node threads", f"{vessel.threads.live:,}"),
    ]


def _database() -> dict[str, Any]:
    version, name, size, most, used, since = _rows(DATABASE)[0]
    return {
        "version": version,
        "name": name,
        "size": shown.size(size),
        "most": most,
        "used": used,
        "since": shown.moment(since),
    }


def _boots() -> list[dict[str, Any]]:
    newest = Boot.objects.defer("report").order_by("-started_at", "-id")[:BOOTS]
    return [
        {
            "boot": boot,
            "started": shown.moment(boot.started_at),
            "lived": span(((boot.ended_at or timezone.now()) - boot.started_at).total_seconds()),
            "end": (boot.end_reason or "ended") if boot.ended_at else None,
        }
        for boot in newest
    ]


def _recovery(vessel: Vessel | None, boot: Boot | None) -> dict[str, Any] | None:
    """The last report of the reconciliation: the Vessel's own, else the one that is kept on the boot."""
    kept: Mapping[str, Any] = {} if boot is None else boot.report
    report = kept if vessel is None else vessel.recovery
    if not report:
        return None
    degraded: list[Mapping[str, Any]] = list(report.get("degraded") or [])
    return {
        "complete": bool(report.get("complete", True)),
        "reason": report.get("reason"),
        "seconds": span(float(report.get("seconds") or 0)),
        "counts": [(name.replace("_", " "), number) for name, number in (report.get("counts") or {}).items() if number],
        "degraded": degraded[:MOST_DEGRADED],
        "more": max(0, len(degraded) - MOST_DEGRADED) + int(report.get("degraded_more") or 0),
        "notes": report.get("notes") or [],
    }


def _rows(sql: str, **params: Any) -> list[tuple[Any, ...]]:
    with transaction.atomic(), connection.cursor() as cursor:
        # A page that looks must not hang on a database that is in trouble.
        cursor.execute("set local statement_timeout = '5s'")
        cursor.execute(sql, params)
        return cursor.fetchall()
