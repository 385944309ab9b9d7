"""Arranging and reading the ledger of the tests: Runs in any state, whole rows, who waits for a lock.

Runs are made through edges where edges lead there; what only a later version or a damaged database holds is written
as rows, within the constraints.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString, cast

import psycopg
from psycopg.rows import TupleRow

from runs import ids
from runs.ledger.admit import ADMIT, Admission
from runs.ledger.cancel import FINISH_CANCEL, Election, FinishCancel, elect
from runs.ledger.checkpoint import DISCARD_CHECKPOINT, SAVE_CHECKPOINT, DiscardCheckpoint, SaveCheckpoint
from runs.ledger.claim import CLAIM, RECLAIM, Claim
from runs.ledger.edge import Edge
from runs.ledger.give_back import GIVE_BACK, GiveBack
from runs.ledger.hardware import MOVE, Move
from runs.ledger.journal import RECORD_STEP, RecordStep
from runs.ledger.publication import MARK_PUBLISHED, NOTE_PUBLICATION_ERROR, PublicationError, Published
from runs.ledger.release import REFUSE, REFUSE_QUEUED, RELEASE, Refusal, Release
from runs.ledger.rotate import ROTATE, Rotation
from runs.ledger.script import Script
from runs.ledger.settle import SETTLE, Settlement
from runs.states import DeliveryState, RunStatus

S, D = RunStatus, DeliveryState


@dataclass(frozen=True, slots=True)
class Hop:
    """A hop as its claimant, or would-be claimant, names it."""

    run_id: uuid.UUID
    seq: int
    claim_id: uuid.UUID
    boot_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Case:
    """An edge of `runs.states.EDGES` as the code has it, and a request for a hop."""

    edge: Edge[Any, Any]
    request: Callable[[Hop], Any]


CASES: dict[str, Case] = {
    "release": Case(RELEASE, lambda h: Release(h.run_id, h.seq)),
    "refuse": Case(REFUSE, lambda h: Refusal(h.run_id, h.seq, "retention_failed", "no")),
    "refuse_queued": Case(REFUSE_QUEUED, lambda h: Refusal(h.run_id, h.seq, "pattern_gone", "no")),
    "mark_published": Case(MARK_PUBLISHED, lambda h: Published(h.run_id, h.seq)),
    "note_publication_error": Case(
        NOTE_PUBLICATION_ERROR, lambda h: PublicationError(h.run_id, h.seq, "the broker is away")
    ),
    "claim": Case(CLAIM, lambda h: Claim(h.run_id, h.seq, h.claim_id, h.boot_id)),
    "reclaim": Case(RECLAIM, lambda h: Claim(h.run_id, h.seq, h.claim_id, h.boot_id)),
    "checkpoint": Case(SAVE_CHECKPOINT, lambda h: SaveCheckpoint(h.run_id, h.seq, h.claim_id, '[{"kind":"node"}]')),
    "journal": Case(RECORD_STEP, lambda h: RecordStep(h.run_id, h.seq, h.claim_id, 0, "fetch", 0, "a" * 64, "[1]")),
    "enter_hardware": Case(MOVE, lambda h: Move(h.run_id, h.seq, h.claim_id, S.RUNNING, S.AWAITING_HARDWARE)),
    "leave_hardware": Case(MOVE, lambda h: Move(h.run_id, h.seq, h.claim_id, S.AWAITING_HARDWARE, S.RUNNING)),
    "settle_done": Case(SETTLE, lambda h: Settlement(h.run_id, h.seq, h.claim_id, "done", output_json='{"n":1}')),
    "settle_failed": Case(
        SETTLE,
        lambda h: Settlement(
            h.run_id, h.seq, h.claim_id, "failed", error_code="broke", error_message="it broke", error_node="count"
        ),
    ),
    "discard_checkpoint": Case(DISCARD_CHECKPOINT, lambda h: DiscardCheckpoint(h.run_id, h.seq)),
    "give_back": Case(GIVE_BACK, lambda h: GiveBack(h.run_id, h.seq, h.claim_id, True, "drained", '[{"kind":"node"}]')),
    "finish_cancel": Case(FINISH_CANCEL, lambda h: FinishCancel(h.run_id, h.seq, h.boot_id)),
    "rotate": Case(ROTATE, lambda h: Rotation(h.run_id, h.seq, h.boot_id, "spent")),
}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery row to be."""

    seq: int
    state: DeliveryState
    claim_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A Run to be written as rows."""

    run_id: uuid.UUID
    status: RunStatus
    seq: int = 0
    deliveries: tuple[Delivery, ...] = ()
    road: str = "vessel"
    quarantined: bool = False
    session_id: uuid.UUID | None = None
    tenant: str = "default"


_PLACE_RUNS = """
insert into runs_run (
    id, tenant, road, pattern_key, pattern_revision, pattern_digest, manifest, source, surface, sigil_name, scopes,
    intent, request_digest, input, session_id, status, priority, queue_name, enqueue_seq,
    wait_kind, wait_owner, wait_since, error_code, error_message, finished_at, quarantined_at, quarantine_reason)
select w.id, w.tenant, w.road, 'p', '1', 'd', '{}', 'cli', 'cli', 'op', '[]', '{}', 'r', '{"x":1}', w.session,
    w.status, 50, 'runs', w.seq,
    case when w.parked then 'consent' end, case when w.parked then gen_random_uuid() end,
    case when w.parked then now() end,
    case when w.status = 'failed' then 'broke' end, case when w.status = 'failed' then 'it broke' end,
    case when w.ended then now() end,
    case when w.quarantined then now() end, case when w.quarantined then 'bad' end
from json_to_recordset(%(batch)s::json) as w(
    id uuid, tenant text, road text, status text, seq int, parked bool, ended bool, quarantined bool, session uuid)
"""

_PLACE_DELIVERIES = """
insert into runs_rundelivery (
    run_id, tenant, enqueue_seq, queue_name, priority, resume, state, publish_attempts, claim_id, boot_id, claimed_at,
    settled_at)
select w.run, 'default', w.seq, 'runs', 50, w.seq > 0, w.state, 0, w.claim,
    case when w.claim is not null then w.boot end, case when w.claim is not null then now() end,
    case when w.state = 'settled' then now() end
from json_to_recordset(%(batch)s::json) as w(run uuid, seq int, state text, claim uuid, boot uuid)
"""

_SNAPSHOT = """
select 'run', r.id, to_jsonb(r) from runs_run r where r.id = any(%(ids)s::uuid[])
union all select 'delivery', d.run_id, to_jsonb(d) from runs_rundelivery d where d.run_id = any(%(ids)s::uuid[])
union all select 'checkpoint', c.run_id, to_jsonb(c) from runs_checkpoint c where c.run_id = any(%(ids)s::uuid[])
union all select 'archive', a.run_id, to_jsonb(a) from runs_checkpointarchive a where a.run_id = any(%(ids)s::uuid[])
union all select 'journal', j.run_id, to_jsonb(j) from runs_journalentry j where j.run_id = any(%(ids)s::uuid[])
union all select 'step', s.run_id, to_jsonb(s) from runs_step s where s.run_id = any(%(ids)s::uuid[])
union all select 'turn', t.run_id, to_jsonb(t) from runs_sessionturn t where t.run_id = any(%(ids)s::uuid[])
order by 1, 2, 3
"""


@dataclass(slots=True)
class Rows:
    """Everything that is stored of one Run, each row as a dict of its columns."""

    run: dict[str, Any] = field(default_factory=dict[str, Any])
    deliveries: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    others: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    def of(self, table: str) -> list[dict[str, Any]]:
        """The rows of one of the other tables."""
        return [row for name, row in self.others if name == table]

    def timeless(self) -> Any:
        """The same without times and serial numbers: what two roads to the same truth must agree on."""

        def strip(row: dict[str, Any]) -> dict[str, Any]:
            return {
                name: (value is not None) if name.endswith(("_at", "_since")) else value
                for name, value in row.items()
                if name not in {"id", "wait_owner"}
            }

        return (
            strip(self.run),
            {seq: strip(row) for seq, row in self.deliveries.items()},
            [(name, strip(row)) for name, row in self.others],
        )


class LedgerDesk:
    """A connection of nobody's, for arranging and reading. Never waits for a lock while a loop must run."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection: psycopg.Connection[TupleRow] = psycopg.connect(
            dsn, autocommit=True, options="-c lock_timeout=10000", application_name="lychd tests"
        )
        self.boot = ids.mint()
        self.take_slot(self.boot)

    def take_slot(self, boot: uuid.UUID) -> None:
        """Another life of the Vessel holds the database from now on."""
        self.execute(
            "insert into runs_boot (id, host, pid, profile, version, url, started_at, report) "
            "values (%s, 'here', 1, 'durable', '0', '', now(), '{}')",
            boot,
        )
        self.execute(
            "insert into runs_vesselslot (id, boot_id, taken_at) values (1, %s, now()) "
            "on conflict (id) do update set boot_id = excluded.boot_id",
            boot,
        )

    def execute(self, sql: str, *args: Any) -> list[Any]:
        """One statement on the desk's own connection; its rows."""
        cursor = self.connection.execute(cast("LiteralString", sql), args)
        return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *args: Any) -> Any:
        """The first column of the first row."""
        return self.execute(sql, *args)[0][0]

    def admission(self, **changes: Any) -> Admission:
        """What a submission would ask to admit."""
        return replace(
            Admission(
                run_id=ids.mint(),
                tenant="default",
                pattern_key="p",
                pattern_revision="1",
                pattern_digest="d",
                manifest_json='{"nodes":[]}',
                source="cli",
                surface="rest",
                sigil_id=None,
                user_id=None,
                sigil_name="op",
                scopes=("runs:read", "runs:submit"),
                intent_json="{}",
                idempotency_key=None,
                request_digest="r",
                input_json='{"x":1}',
                session_id=None,
                priority=50,
                queue_name="runs",
                retains=False,
                boot_id=self.boot,
            ),
            **changes,
        )

    def statement(
        self, edge: Edge[Any, Any], *requests: Any, on: psycopg.Connection[TupleRow] | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of the edge's batch statement for these requests, in one statement whatever they are."""
        batch = "[" + ",".join(edge.encode(request) for request in requests) + "]"
        cursor = (on or self.connection).execute(
            cast("LiteralString", edge.statement(skip_locked=True)), {"batch": batch}
        )
        return cursor.fetchall()

    def _go(self, edge: Edge[Any, Any], request: Any) -> None:
        assert len(self.statement(edge, request)) == 1, f"{edge.name} lost while a Run was made"

    def _follow(self, script: Script[Any]) -> None:
        """Drive a several-statement edge to its end over the desk's own connection."""
        with self.connection.transaction():
            rows: list[tuple[Any, ...]] | None = None
            while True:
                try:
                    statement = next(script) if rows is None else script.send(rows)
                except StopIteration:
                    return
                cursor = self.connection.execute(cast("LiteralString", statement.sql), statement.params)
                rows = cursor.fetchall() if cursor.description else []

    def a_run(
        self,
        *,
        status: RunStatus = S.QUEUED,
        delivery: DeliveryState | None = None,
        seq: int = 0,
        **admission: Any,
    ) -> Hop:
        """A Run that edges led to `status` at hop `seq`; `delivery` chooses among the states of a queued one."""
        asked = self.admission(retains=delivery is D.HELD and seq == 0, **admission)
        self._go(ADMIT, asked)
        for spent in range(seq):
            self._go(ROTATE, Rotation(asked.run_id, spent, self.boot, "spent"))
        hop = Hop(asked.run_id, seq, uuid.uuid4(), self.boot)
        if status is S.QUEUED:
            if delivery is D.PUBLISHED:
                self._go(MARK_PUBLISHED, Published(hop.run_id, seq))
            return hop
        if status is S.CANCELLING:
            self._follow(elect(Election(hop.run_id, "olga", None, self.boot)))
            return hop
        ways: dict[RunStatus, tuple[str, ...]] = {
            S.RUNNING: ("claim",),
            S.AWAITING_HARDWARE: ("claim", "enter_hardware"),
            S.DONE: ("claim", "checkpoint", "settle_done"),
            S.FAILED: ("claim", "checkpoint", "settle_failed"),
        }
        for name in ways[status]:
            self._go(CASES[name].edge, CASES[name].request(hop))
        return hop

    def place(self, runs: Iterable[Placed]) -> None:
        """Write Runs as rows, for states to which no edge of this version leads."""
        placed = list(runs)
        parked = {S.AWAITING_CONSENT, S.AWAITING_DELEGATE, S.AWAITING_SERVICE, S.AWAITING_TIMER, S.AWAITING_SIGNAL}
        batch = [
            {
                "id": str(run.run_id),
                "tenant": run.tenant,
                "road": run.road,
                "status": run.status.value,
                "seq": run.seq,
                "parked": run.status in parked,
                "ended": run.status in {S.DONE, S.FAILED, S.CANCELLED},
                "quarantined": run.quarantined,
                "session": str(run.session_id) if run.session_id else None,
            }
            for run in placed
        ]
        deliveries = [
            {
                "run": str(run.run_id),
                "seq": row.seq,
                "state": row.state.value,
                "claim": str(row.claim_id) if row.claim_id else None,
                "boot": str(self.boot),
            }
            for run in placed
            for row in run.deliveries
        ]
        with self.connection.transaction():
            self.connection.execute(_PLACE_RUNS, {"batch": json.dumps(batch)})
            self.connection.execute(_PLACE_DELIVERIES, {"batch": json.dumps(deliveries)})

    def empty(self) -> None:
        """Forget all Runs in the middle of a test."""
        self.execute("truncate runs_run cascade")

    @contextmanager
    def without_check(self, name: str) -> Generator[None]:
        """Take a check of Run away to damage a row; afterwards the Runs are gone and the check is back."""
        check = self.value("select pg_get_constraintdef(oid) from pg_constraint where conname = %s", name)
        self.execute(f"alter table runs_run drop constraint {name}")
        try:
            yield
        finally:
            self.empty()
            self.execute(f"alter table runs_run add constraint {name} {check}")

    @contextmanager
    def another(self) -> Generator[psycopg.Connection[TupleRow]]:
        """A transaction of somebody else, on a connection of its own; commits at the end."""
        with psycopg.connect(self.dsn, application_name="lychd tests other") as other:
            yield other

    def rows(self, run_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Rows]:
        """Everything that is stored of these Runs."""
        found: dict[uuid.UUID, Rows] = {run_id: Rows() for run_id in run_ids}
        for table, run_id, row in self.connection.execute(_SNAPSHOT, {"ids": [str(run_id) for run_id in found]}):
            if table == "run":
                found[run_id].run = row
            elif table == "delivery":
                found[run_id].deliveries[row["enqueue_seq"]] = row
            else:
                found[run_id].others.append((table, row))
        return found

    def row(self, hop: Hop) -> Rows:
        """Everything that is stored of one Run."""
        return self.rows([hop.run_id])[hop.run_id]

    def waiting(self, name: str = "%") -> list[int]:
        """Backends of this database that wait for a lock, by application name."""
        return [
            pid
            for (pid,) in self.execute(
                "select pid from pg_stat_activity where datname = current_database() "
                "and wait_event_type = 'Lock' and application_name like %s",
                name,
            )
        ]

    def kill(self, pids: Iterable[int]) -> None:
        """End these backends, as an administrator or a crash would."""
        for pid in pids:
            self.execute("select pg_terminate_backend(%s)", pid)
