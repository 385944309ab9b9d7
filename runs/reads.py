"""Every SELECT that an edge or a relay needs. Rows out, never a write.

All list queries are keyset-paged and begin with the tenant; what belongs to another tenant does not exist.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from runs.connections import Reads
from runs.states import NONTERMINAL

# Unfinished statuses as the partial indexes name them: `not in` the terminal ones would read every ended Run.
UNFINISHED = ", ".join(f"'{status.value}'" for status in sorted(NONTERMINAL))


def rfc3339(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC, microseconds, `Z`."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


_RUN = """
    r.id, r.tenant, r.pattern_key, r.pattern_revision, r.pattern_digest, r.status, r.source, r.priority, r.queue_name,
    r.session_id, r.sigil_name, r.error_code, r.error_message, r.error_node, r.wait_kind, r.wait_owner, r.wait_since,
    r.enqueue_seq, r.created_at, r.updated_at, r.started_at, r.finished_at, r.quarantined_at, r.quarantine_reason,
    r.cancelled_by, r.cancel_requested_at, r.containment_error, r.ancestor_id, r.input::text, r.output::text
"""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One Run as readers may see it. `input_json` and `output_json` are JSON text."""

    id: uuid.UUID
    tenant: str
    pattern_key: str
    pattern_revision: str
    pattern_digest: str
    status: str
    source: str
    priority: int
    queue: str
    session_id: uuid.UUID | None
    sigil: str
    error_code: str | None
    error_message: str | None
    error_node: str | None
    wait_kind: str | None
    wait_owner: uuid.UUID | None
    wait_since: datetime | None
    hop: int
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    quarantined_at: datetime | None
    quarantine_reason: str | None
    cancelled_by: str | None
    cancel_requested_at: datetime | None
    containment_error: str | None
    ancestor_id: uuid.UUID | None
    input_json: str
    output_json: str | None

    def to_json(self) -> dict[str, Any]:
        """The Run of the interface."""
        return {
            "id": str(self.id),
            "pattern": {"key": self.pattern_key, "revision": self.pattern_revision, "digest": self.pattern_digest},
            "status": self.status,
            "source": self.source,
            "priority": self.priority,
            "queue": self.queue,
            "session": str(self.session_id) if self.session_id else None,
            "sigil": self.sigil,
            "tenant": self.tenant,
            "input": json.loads(self.input_json),
            "output": json.loads(self.output_json) if self.output_json is not None else None,
            "error": (
                {"code": self.error_code, "message": self.error_message, "node": self.error_node}
                if self.error_code is not None
                else None
            ),
            "wait": (
                {"kind": self.wait_kind, "owner": str(self.wait_owner), "since": rfc3339(self.wait_since)}
                if self.wait_kind is not None
                else None
            ),
            "hop": self.hop,
            "ancestor": str(self.ancestor_id) if self.ancestor_id else None,
            "quarantine": (
                {"since": rfc3339(self.quarantined_at), "reason": self.quarantine_reason}
                if self.quarantined_at is not None
                else None
            ),
            "cancel": (
                {"by": self.cancelled_by, "at": rfc3339(self.cancel_requested_at)}
                if self.cancel_requested_at is not None
                else None
            ),
            "containment": self.containment_error,
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
            "started_at": rfc3339(self.started_at),
            "finished_at": rfc3339(self.finished_at),
        }

    def change(self) -> dict[str, Any]:
        """What the feed of all Runs says of it: no payloads."""
        return {
            "id": str(self.id),
            "pattern": {"key": self.pattern_key, "revision": self.pattern_revision},
            "status": self.status,
            "source": self.source,
            "hop": self.hop,
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
            "finished_at": rfc3339(self.finished_at),
        }


async def run(reads: Reads, run_id: uuid.UUID, tenant: str | None = None) -> RunRow | None:
    """One Run; None when there is none, or it belongs to another tenant."""
    found = await reads.fetch_one(
        f"select {_RUN} from runs_run r "
        "where r.id = %(id)s::uuid and (%(tenant)s::text is null or r.tenant = %(tenant)s::text)",
        {"id": str(run_id), "tenant": tenant},
    )
    return RunRow(*found) if found else None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which Runs a list shows; None shows all."""

    status: str | None = None
    pattern: str | None = None
    session: uuid.UUID | None = None
    source: str | None = None
    quarantined: bool | None = None


async def runs(
    reads: Reads, tenant: str, where: RunFilter, *, before: tuple[datetime, uuid.UUID] | None, limit: int
) -> list[RunRow]:
    """Runs of a tenant, newest first, `before` a (created_at, id) key."""
    clauses = ["r.tenant = %(tenant)s::text"]
    params: dict[str, Any] = {"tenant": tenant, "limit": limit}
    for column, name, kind, value in (
        ("status", "status", "text", where.status),
        ("pattern_key", "pattern", "text", where.pattern),
        ("session_id", "session", "uuid", str(where.session) if where.session else None),
        ("source", "source", "text", where.source),
    ):
        if value is not None:
            clauses.append(f"r.{column} = %({name})s::{kind}")
            params[name] = value
    if where.quarantined is not None:
        clauses.append(f"r.quarantined_at is {'not ' if where.quarantined else ''}null")
    if before is not None:
        clauses.append("(r.created_at, r.id) < (%(at)s::timestamptz, %(id)s::uuid)")
        params |= {"at": before[0], "id": str(before[1])}
    rows = await reads.fetch_all(
        f"select {_RUN} from runs_run r where {' and '.join(clauses)} "
        "order by r.created_at desc, r.id desc limit %(limit)s::int",
        params,
    )
    return [RunRow(*found) for found in rows]


async def changes(reads: Reads, tenant: str, *, after: tuple[datetime, uuid.UUID] | None, limit: int) -> list[RunRow]:
    """Runs of a tenant in the order of their last change, after a (updated_at, id) key."""
    params: dict[str, Any] = {"tenant": tenant, "limit": limit}
    clause = ""
    if after is not None:
        clause = "and (r.updated_at, r.id) > (%(at)s::timestamptz, %(id)s::uuid)"
        params |= {"at": after[0], "id": str(after[1])}
    rows = await reads.fetch_all(
        f"select {_RUN} from runs_run r where r.tenant = %(tenant)s::text {clause} "
        "order by r.updated_at, r.id limit %(limit)s::int",
        params,
    )
    return [RunRow(*found) for found in rows]


@dataclass(frozen=True, slots=True)
class StoredStep:
    """One Step."""

    id: uuid.UUID
    seq: int
    epoch: str
    kind: str
    node: str | None
    data: Any
    meta: Any
    at: datetime
    tokens_before: int

    def to_json(self, run_id: uuid.UUID) -> dict[str, Any]:
        """The Step of the interface, the same shape as a live event."""
        return {
            "run": str(run_id),
            "seq": self.seq,
            "cursor": f"{self.epoch}-{self.seq}",
            "kind": self.kind,
            "node": self.node,
            "data": self.data,
            "meta": self.meta,
            "at": rfc3339(self.at),
        }


@dataclass(frozen=True, slots=True)
class StepPage:
    """Some Steps of a Run in order.

    Attributes:
        gaps: ranges of numbers [from, to] after the page's beginning that are missing and that tokens do not explain.
        more: whether there are further Steps after the last item.
    """

    items: list[StoredStep]
    gaps: list[list[int]]
    more: bool


STEP_PAGE_BYTES = 4 * 1024 * 1024


async def steps(reads: Reads, run_id: uuid.UUID, *, after: int, limit: int, size: int = STEP_PAGE_BYTES) -> StepPage:
    """Steps of a Run with a greater seq, in order.

    Args:
        after: -1 for the first page.
        limit: most Steps of the page.
        size: about the most characters of payload of the page; one Step is given whatever its size.
    """
    rows = await reads.fetch_all(
        """
        with page as (
            select s.id, s.seq, s.epoch, s.kind, s.node, s.data::text, s.meta::text, s.at, s.tokens_before
            from runs_step s
            where s.run_id = %(run)s::uuid and s.seq > %(after)s::int
            order by s.seq
            limit %(limit)s::int + 1
        ),
        weighed as (
            select p.*, row_number() over upto as number, count(*) over () as found,
                   sum(length(p.data) + length(p.meta)) over upto - length(p.data) - length(p.meta) as before
            from page p
            window upto as (order by p.seq rows unbounded preceding)
        )
        select w.found,
               (select max(b.seq) from runs_step b where b.run_id = %(run)s::uuid and b.seq <= %(after)s::int),
               w.id, w.seq, w.epoch, w.kind, w.node, w.data, w.meta, w.at, w.tokens_before
        from weighed w
        where w.number <= %(limit)s::int and w.before < %(size)s::bigint
        order by w.seq
        """,
        {"run": str(run_id), "after": after, "limit": limit, "size": size},
    )
    items = [
        StoredStep(
            row[2],
            row[3],
            row[4],
            row[5],
            row[6],
            json.loads(row[7]),
            json.loads(row[8]),
            at=row[9],
            tokens_before=row[10],
        )
        for row in rows
    ]
    if not rows:
        return StepPage([], [], more=False)
    return StepPage(items, gaps(after, items, rows[0][1]), more=rows[0][0] > len(items))


def gaps(after: int, found: list[StoredStep], previous: int | None) -> list[list[int]]:
    """The ranges of missing seqs that unstored tokens do not explain (ruling 33), as [from, to] pairs.

    A later generation of a channel begins at the number after the last stored one, and `tokens_before` counts from
    there, so the same sum holds across generations and pages. How many are missing between two Steps is exact; which
    of them were tokens is not known, so the first ones are named.

    Args:
        after: names nothing up to this number; the page before did.
        found: Steps in order.
        previous: the greatest stored seq up to `after`; None when there is none.
    """
    missing: list[list[int]] = []
    seen = -1 if previous is None else previous
    for step in found:
        last = step.seq - 1 - step.tokens_before
        if last > seen and last > after:
            missing.append([max(seen, after) + 1, last])
        seen = step.seq
    return missing


@dataclass(frozen=True, slots=True)
class TerminalRow:
    """What is stored of a Run's end."""

    status: str
    next_seq: int
    step_status: str | None


async def terminal(reads: Reads, run_id: uuid.UUID) -> TerminalRow | None:
    """Status, next free seq, and the status that the stored terminal Step tells, if there is one."""
    found = await reads.fetch_one(
        """
        select r.status,
               coalesce((select max(s.seq) + 1 from runs_step s where s.run_id = r.id), 0),
               (select s.data->>'status' from runs_step s where s.run_id = r.id and s.kind = 'done')
        from runs_run r where r.id = %(run)s::uuid
        """,
        {"run": str(run_id)},
    )
    return TerminalRow(*found) if found else None


@dataclass(frozen=True, slots=True)
class Prior:
    """An earlier admission under the same id, and its current delivery."""

    tenant: str
    request_digest: str
    status: str
    seq: int
    queue: str
    priority: int
    delivery: str | None
    session_id: uuid.UUID | None
    next_step: int
    pruned: bool


async def prior(reads: Reads, run_id: uuid.UUID) -> Prior | None:
    """What is known under this id: a Run, else the tombstone of one, else None."""
    found = await reads.fetch_one(
        """
        select r.tenant, r.request_digest, r.status, r.enqueue_seq, r.queue_name, r.priority, d.state, r.session_id,
               coalesce((select max(s.seq) + 1 from runs_step s where s.run_id = r.id), 0), false
        from runs_run r
        left join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq
        where r.id = %(run)s::uuid
        union all
        select t.tenant, t.request_digest, t.status, 0, '', 0, null, null, 0, true
        from runs_runtombstone t where t.id = %(run)s::uuid
        """,
        {"run": str(run_id)},
    )
    return Prior(*found) if found else None


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One recorded step of an activation."""

    name: str
    occurrence: int
    args_digest: str
    result: Any


async def journal(reads: Reads, run_id: uuid.UUID, visit: int) -> list[JournalRow]:
    """What was recorded for one activation of a node."""
    rows = await reads.fetch_all(
        "select j.name, j.occurrence, j.args_digest, coalesce(j.result::text, 'null') from runs_journalentry j "
        "where j.run_id = %(run)s::uuid and j.visit = %(visit)s::int",
        {"run": str(run_id), "visit": visit},
    )
    return [JournalRow(found[0], found[1], found[2], json.loads(found[3])) for found in rows]


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A QUEUED Run and its exact delivery, as a relay sees it; `state` None means that the delivery is missing."""

    run_id: uuid.UUID
    seq: int
    queue: str
    priority: int
    updated_at: datetime
    state: str | None
    delivery_queue: str | None
    delivery_priority: int | None


async def queued_page(
    reads: Reads, *, after: tuple[datetime, uuid.UUID] | None, limit: int, settle_seconds: float
) -> list[QueuedRow]:
    """A page of QUEUED Runs of this road in the order (updated_at, id), left out those that changed just now.

    It starts from Runs, so that a missing delivery shows up (REC-22); quarantined Runs are out (ruling 15).
    """
    params: dict[str, Any] = {"limit": limit, "age": settle_seconds}
    clause = ""
    if after is not None:
        clause = "and (r.updated_at, r.id) > (%(at)s::timestamptz, %(id)s::uuid)"
        params |= {"at": after[0], "id": str(after[1])}
    rows = await reads.fetch_all(
        f"""
        select r.id, r.enqueue_seq, r.queue_name, r.priority, r.updated_at, d.state, d.queue_name, d.priority
        from runs_run r
        left join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq
        where r.status = 'queued' and r.road = 'vessel' and r.quarantined_at is null
          and r.updated_at < now() - make_interval(secs => %(age)s::float8) {clause}
        order by r.updated_at, r.id
        limit %(limit)s::int
        """,
        params,
    )
    return [QueuedRow(*found) for found in rows]


async def live_counts(reads: Reads, *, cap: int) -> tuple[int, dict[str, int]]:
    """How many Runs are queued (counted up to `cap`), and how many are unfinished for each tenant."""
    queued = await reads.fetch_one(
        "select count(*) from (select 1 from runs_run where status = 'queued' limit %(cap)s::int) q", {"cap": cap}
    )
    rows = await reads.fetch_all(
        f"select tenant, count(*) from runs_run where status in ({UNFINISHED}) group by tenant"
    )
    return (queued[0] if queued else 0), dict(rows)


async def session(reads: Reads, session_id: uuid.UUID, tenant: str) -> dict[str, Any] | None:
    """A session with its newest 200 turns and their Runs; None when there is none in the tenant."""
    found = await reads.fetch_one(
        "select s.id, s.channel, s.title, s.sigil_name, s.last_run_id, s.created_at, s.updated_at "
        "from runs_session s where s.id = %(id)s::uuid and s.tenant = %(tenant)s::text",
        {"id": str(session_id), "tenant": tenant},
    )
    if found is None:
        return None
    turns = await reads.fetch_all(
        """
        select t.run_id, r.status, t.request::text, t.reply::text, t.created_at
        from runs_sessionturn t join runs_run r on r.id = t.run_id
        where t.session_id = %(id)s::uuid order by t.id desc limit 200
        """,
        {"id": str(session_id)},
    )
    return {
        "id": str(found[0]),
        "channel": found[1],
        "title": found[2],
        "sigil": found[3],
        "last_run": str(found[4]) if found[4] else None,
        "turns": [
            {
                "run": str(turn[0]),
                "status": turn[1],
                "request": json.loads(turn[2]),
                "reply": json.loads(turn[3]) if turn[3] is not None else None,
                "at": rfc3339(turn[4]),
            }
            for turn in reversed(turns)
        ],
        "created_at": rfc3339(found[5]),
        "updated_at": rfc3339(found[6]),
    }
