"""The parts between admission and settlement, composed as in a Vessel over the database of the tests, without a host.

Everything is real: ledger, reads, bus with its evidence writer on Steps, publisher, engine, ghoul, driver. What a
Vessel adds (guard, relays, listening) is left out, so that a test causes each step itself. The fixtures are in
`vessel_parts_fixtures`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString, Protocol, cast

import psycopg
from psycopg.rows import dict_row
from pydantic import BaseModel, Field

from runs import ids
from runs.authority import Caller, Scope, Surface
from runs.broker.lanes import Lanes
from runs.broker.publish import Publisher
from runs.driver.drive import Driver
from runs.driver.threads import Threads
from runs.engine import Engine
from runs.events.bus import RunEventBus
from runs.events.evidence import EvidenceWriter
from runs.gate import Gate
from runs.ghoul import Ghoul, Revalidate
from runs.ledger import boots
from runs.ledger.claim import Claimed
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.steps import Steps
from runs.limits import Limits
from runs.parking import Parking
from runs.patterns import Context, Finish, Pattern, PatternRegistry
from runs.patterns.pattern import AnyPattern
from runs.reads import Reads
from runs.routing import QUEUES, Router
from runs.states import TERMINAL
from runs.submission import Submission
from runs.waits import WaitKind, WaitKinds
from tests.support.broker import STILL

MIB = 1024 * 1024


class Note(BaseModel):
    """Input of the test Patterns."""

    text: str = ""
    number: float = 0


class Tally(BaseModel):
    """State of the test Patterns."""

    visited: list[str] = Field(default_factory=list)
    value: Any = None


class Report(BaseModel):
    """Output of the test Patterns."""

    text: str = ""
    value: Any = None


type Ctx = Context[Note, Tally]
type Body = Callable[[Ctx], Awaitable[Any]]


def solo(body: Body, key: str = "solo", *, timeout: float | None = None, **options: Any) -> AnyPattern:
    """A Pattern of one node that does `body` and finishes with the text that it returns, or the Report."""
    pattern = Pattern(key, input=Note, state=Tally, output=Report, **options)

    @pattern.start(timeout=timeout)
    async def only(ctx: Context[Note, Tally]) -> Finish[Report]:
        return finish(await body(ctx))

    return pattern


def finish(value: Any) -> Finish[Report]:
    """The outcome that a body's result stands for: itself, a model, or a text."""
    if isinstance(value, Finish):
        return cast("Finish[Report]", value)
    return Finish(cast("Report", value) if isinstance(value, BaseModel) else Report(text=value))


async def echo(ctx: Ctx) -> str:
    """A body that finishes with the input's text."""
    return ctx.input.text


def a_caller(**changes: Any) -> Caller:
    """A caller that may submit."""
    facts: dict[str, Any] = {
        "tenant": "default",
        "name": "tester",
        "scopes": frozenset({Scope.RUNS_SUBMIT.value, Scope.RUNS_READ.value}),
        "surface": Surface.REST,
    }
    return Caller(**(facts | changes))


def asks(pattern: str = "solo", **changes: Any) -> Submission:
    """A submission of that Pattern."""
    facts: dict[str, Any] = {"input": {"text": "hello", "number": 0}}
    return Submission(pattern, **(facts | changes))


@dataclass
class Parts:
    """The parts of one boot, and eyes of their own on the database."""

    dsn: str
    boot_id: uuid.UUID
    ledger: Ledger
    reads: Reads
    evidence: EvidenceWriter
    bus: RunEventBus
    publisher: Publisher
    threads: Threads
    limits: Limits
    claim_gate: Gate
    publish_gate: Gate
    engine: Engine
    ghoul: Ghoul
    watcher: psycopg.AsyncConnection[Any]
    moves: list[tuple[uuid.UUID, str]] = field(default_factory=list[tuple[uuid.UUID, str]])

    async def rows(self, sql: str, *params: Any) -> list[Any]:
        """Rows of a query by nobody's connection, as dicts."""
        async with self.watcher.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(cast("LiteralString", sql), params)
            return await cursor.fetchall() if cursor.description else []

    async def run(self, run_id: uuid.UUID) -> Any:
        """The Run as it is stored."""
        (found,) = await self.rows("select * from runs_run where id = %s", run_id)
        return found

    async def delivery(self, run_id: uuid.UUID, seq: int = 0) -> Any:
        """One hop as it is stored."""
        (found,) = await self.rows("select * from runs_rundelivery where run_id = %s and enqueue_seq = %s", run_id, seq)
        return found

    async def standing(self, run_id: uuid.UUID, seq: int = 0) -> tuple[str, str]:
        """Status of the Run and state of the hop."""
        return (await self.run(run_id))["status"], (await self.delivery(run_id, seq))["state"]

    async def steps(self, run_id: uuid.UUID) -> list[tuple[int, str, Any]]:
        """Stored events, in order."""
        found = await self.rows("select seq, kind, data from runs_step where run_id = %s order by seq", run_id)
        return [(row["seq"], row["kind"], row["data"]) for row in found]

    async def ends(self, run_id: uuid.UUID) -> list[str]:
        """The status that each stored terminal event tells."""
        return [data["status"] for _, kind, data in await self.steps(run_id) if kind == "done"]

    async def snapshots(self, run_id: uuid.UUID) -> Any:
        """The checkpoint; None when there is none."""
        found = await self.rows("select snapshots from runs_checkpoint where run_id = %s", run_id)
        return found[0]["snapshots"] if found else None

    async def journal(self, run_id: uuid.UUID) -> list[tuple[int, str, int, Any]]:
        """The recorded steps: visit, name, occurrence, result."""
        found = await self.rows(
            "select visit, name, occurrence, result from runs_journalentry where run_id = %s order by id", run_id
        )
        return [(row["visit"], row["name"], row["occurrence"], row["result"]) for row in found]

    async def jobs(self, run_id: uuid.UUID | None = None) -> dict[str, Any]:
        """The broker's jobs by key: the stored job with the row's status and priority."""
        found = await self.rows(
            "select key, status, priority, job from saq_jobs where key like %s", f"run:{run_id or '%'}%"
        )
        return {
            row["key"]: {**json.loads(row["job"]), "status": row["status"], "priority": row["priority"]}
            for row in found
        }

    async def runs_stored(self) -> int:
        """How many Runs there are."""
        return (await self.rows("select count(*) as n from runs_run"))[0]["n"]

    async def submit(self, pattern: str = "solo", /, **changes: Any) -> uuid.UUID:
        """Admit one Run."""
        return (await self.engine.submit(a_caller(), asks(pattern, **changes))).run_id

    async def perform(self, run_id: uuid.UUID, seq: int = 0) -> dict[str, Any]:
        """Carry a hop as a lane would."""
        return await self.ghoul.perform_run(run_id, seq)

    async def carried(self, pattern: str = "solo", /, **changes: Any) -> uuid.UUID:
        """Admit one Run and carry its first hop."""
        run_id = await self.submit(pattern, **changes)
        await self.perform(run_id)
        return run_id

    async def park_and_return(self, run_id: uuid.UUID, snapshots: Any, *, error: str | None = None) -> None:
        """Make the next hop in resume mode, as a resume does: the claimed hop settled, the next one pending."""
        async with self.watcher.transaction():
            await self.rows(
                "update runs_rundelivery set state = 'settled', settled_at = now() where run_id = %s", run_id
            )
            await self.rows(
                "insert into runs_rundelivery (run_id, tenant, enqueue_seq, queue_name, priority, resume, state,"
                " publish_attempts, created_at, updated_at)"
                " select id, tenant, enqueue_seq + 1, queue_name, priority, true, 'pending', 0, now(), now()"
                " from runs_run where id = %s",
                run_id,
            )
            await self.rows(
                "update runs_run set status = 'queued', enqueue_seq = enqueue_seq + 1, error_code = %s,"
                " error_message = %s where id = %s",
                error,
                error,
                run_id,
            )
            if snapshots is not None:
                await self.rows(
                    "insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at,"
                    " updated_at) values (%s, 'default', 0, %s, %s, now(), now())"
                    " on conflict (run_id) do update set snapshots = excluded.snapshots",
                    run_id,
                    uuid.uuid4(),
                    json.dumps(snapshots),
                )

    @asynccontextmanager
    async def lanes(self, *, runs: int = 2, rites: int = 1) -> AsyncGenerator[Lanes]:
        """Real lanes that carry what is published, until the block ends."""
        lanes = Lanes(
            self.dsn,
            concurrency={"runs": runs, "rites": rites},
            perform=self.ghoul.perform_run,
            boot_id=self.boot_id,
            pace=STILL,
        )
        await lanes.connect()
        try:
            lanes.start()
            yield lanes
        finally:
            await lanes.stop(deadline=10)
            await lanes.disconnect()

    @asynccontextmanager
    async def held_row(self, run_id: uuid.UUID) -> AsyncGenerator[None]:
        """A foreign lock on the Run: every edge of it waits until the block ends."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as holder:
            await holder.execute("select 1 from runs_run where id = %s for update", (run_id,))
            yield
            await holder.rollback()

    async def waits_for_lock(self, name: str) -> bool:
        """Whether a connection of that application name waits for a lock."""
        return bool(
            await self.rows(
                "select 1 from pg_stat_activity where datname = current_database() and application_name = %s"
                " and wait_event_type = 'Lock'",
                name,
            )
        )

    @asynccontextmanager
    async def refusing(self, table: str, when: str, message: str = "not today") -> AsyncGenerator[None]:
        """The database refuses each write of `table` for which the SQL condition `when` holds (NEW is the row)."""
        name = f"refuse_{uuid.uuid4().hex[:12]}"
        await self.rows(
            f"create function {name}() returns trigger language plpgsql as $$"
            f" begin if {when} then raise exception '{message}'; end if; return coalesce(new, old); end $$"
        )
        await self.rows(
            f"create trigger {name} before insert or update or delete on {table} for each row execute function {name}()"
        )
        try:
            yield
        finally:
            await self.rows(f"drop function if exists {name}() cascade")


class Build(Protocol):
    """Composes parts; they are taken down at the end of the test."""

    async def __call__(self, *patterns: AnyPattern, **options: Any) -> Parts: ...


@asynccontextmanager
async def composed(
    dsn: str,
    *patterns: AnyPattern,
    through: str | None = None,
    boot_id: uuid.UUID | None = None,
    revalidate: Callable[[Reads], Revalidate] | None = None,
    limit: int = MIB,
    max_queued: int = 1000,
    max_live: int = 1000,
    within: float = 10.0,
    patience: float = 15.0,
    router: Router | None = None,
    waits: tuple[WaitKind, ...] = (),
) -> AsyncGenerator[Parts]:
    """The parts of one boot.

    Args:
        through: the ledger's way to the database, where it is not the plain one.
        boot_id: of the boot that holds the slot, for a second process of it; default: a new boot takes the slot.
        patience: seconds for which ledger connections look for a lost database.
        waits: the kinds of wait that are installed.
    """
    async with AsyncExitStack() as stack:
        watcher = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        stack.push_async_callback(watcher.close)
        reads = Reads(dsn)
        await reads.open()
        stack.push_async_callback(reads.close)
        ledger = Ledger(through or dsn)
        _set_patience(ledger, patience)
        stack.push_async_callback(ledger.close)
        if boot_id is None:
            boot_id = ids.mint()
            record = boots.BootRecord(boot_id, "test", os.getpid(), "durable", "0")
            await ledger.script(ScriptFactory(boots.take, record))
        evidence = EvidenceWriter(Steps(ledger.evidence), first_delay=0.01)
        evidence.start()
        stack.push_async_callback(evidence.stop)
        bus = RunEventBus(evidence=evidence)
        stack.push_async_callback(bus.aclose)
        stack.push_async_callback(evidence.drain)
        threads = Threads(4)
        stack.callback(threads.close)
        publisher = Publisher(dsn, within=within)
        await publisher.connect()
        stack.push_async_callback(publisher.close)
        await watcher.execute("truncate saq_jobs")
        registry = PatternRegistry(patterns or (solo(echo),))
        limits = Limits(max_queued, max_live)
        claim_gate, publish_gate = Gate("claim"), Gate("publish")
        engine = Engine(
            ledger=ledger,
            reads=reads,
            bus=bus,
            publisher=publisher,
            registry=registry,
            router=router or Router((), QUEUES),
            limits=limits,
            publish_gate=publish_gate,
            boot_id=boot_id,
            limit=limit,
            admitting=True,
        )
        moves: list[tuple[uuid.UUID, str]] = []

        def moved(claimed: Claimed, status: str) -> None:
            moves.append((claimed.run_id, status))
            if status == "running":
                limits.started()
            elif status in TERMINAL:
                limits.ended(claimed.tenant)

        kinds = WaitKinds(waits)

        async def as_recorded(claimed: Claimed) -> frozenset[str]:
            return frozenset(claimed.scopes)

        ghoul = Ghoul(
            ledger=ledger,
            bus=bus,
            driver=Driver(ledger, bus, threads, reads, kinds, limit),
            registry=registry,
            revalidate=revalidate(reads) if revalidate is not None else as_recorded,
            gate=claim_gate,
            boot_id=boot_id,
            parking=Parking(ledger, reads, bus, engine.resume, moved),
            moved=moved,
        )
        yield Parts(
            dsn=dsn,
            boot_id=boot_id,
            ledger=ledger,
            reads=reads,
            evidence=evidence,
            bus=bus,
            publisher=publisher,
            threads=threads,
            limits=limits,
            claim_gate=claim_gate,
            publish_gate=publish_gate,
            engine=engine,
            ghoul=ghoul,
            watcher=watcher,
            moves=moves,
        )
        assert threads.live == 0, "a node's thread outlived its node"


def _set_patience(ledger: Ledger, seconds: float) -> None:
    # A lost database is looked for at length; tests of what follows after that do not wait as long.
    connections = [ledger._slow._connection, ledger._scripts]  # pyright: ignore[reportPrivateUsage]
    connections += [hot._own for hot in ledger._hot.values()]  # pyright: ignore[reportPrivateUsage]
    for connection in connections:
        connection._patience = seconds  # pyright: ignore[reportPrivateUsage]


async def cancelled[T](task: asyncio.Task[T]) -> BaseException | None:
    """Wait for a task that was cancelled; what it ended with, None for a cancellation.

    Raises:
        AssertionError: it ended as if nobody had cancelled it.
    """
    await asyncio.wait({task})
    if task.cancelled():
        return None
    with contextlib.suppress(asyncio.CancelledError):
        error = task.exception()
        assert error is not None, f"the cancellation was swallowed: {task.result()!r}"
        return error
    return None


class Latch:
    """A place where something stops until a test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self.passes = 0

    async def __call__(self, *_: Any) -> None:
        self.passes += 1
        self.reached.set()
        await self.release.wait()

    async def arrived(self) -> None:
        """Return when something has stopped here."""
        await asyncio.wait_for(self.reached.wait(), 5)
