"""The order in which a Vessel starts and stops, and that it leaves nothing behind whichever way that goes."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import structlog
from prometheus_client import generate_latest

from lychd import lifespan, wiring
from lychd.graph import Vessel
from lychd.lifespan import Lifespan
from runs.broker.lanes import Lanes
from runs.broker.queue import LaneQueue
from runs.errors import NotAdmitting, PatternError
from runs.events.event import Kind
from runs.ledger import boots
from runs.ledger.ledger import Ledger
from runs.patterns import PatternRegistry
from runs.relays.supervisor import Supervisor
from runs.seams import install
from tests.support import demo
from tests.support.demo import PATTERNS, fresh_hold
from tests.support.vessels import Life, Watcher, a_config, living, nothing_left, watching
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@asynccontextmanager
async def lived(url: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Life]:
    monkeypatch.setattr(demo, "hold", fresh_hold())
    async with living(url, monkeypatch=monkeypatch, **settings) as life:
        yield life


class Server:
    """The server's half of the lifespan protocol."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.application = Lifespan(a_config(**settings), url)
        self.state: dict[str, Any] = {"lychd.stop": lambda code, reason: None}
        self.said: list[dict[str, Any]] = []
        self._told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def tell(self, what: str) -> dict[str, Any]:
        if self._task is None:
            self._task = asyncio.create_task(
                self.application({"type": "lifespan", "state": self.state}, self._told.get, self._send)
            )
        self._heard.clear()
        self._told.put_nowait({"type": f"lifespan.{what}"})
        await asyncio.wait_for(self._heard.wait(), 30)
        return self.said[-1]

    async def _send(self, message: Any) -> None:
        self.said.append(dict(message))
        self._heard.set()

    async def ended(self) -> None:
        assert self._task is not None
        await asyncio.wait_for(self._task, 30)


async def is_in(life: Life, watcher: Watcher, run: uuid.UUID, status: str) -> Any:
    async def there() -> bool:
        return (await watcher.run(run))[0] == status

    return await eventually(there)


# Start


@pytest.mark.contract("TOP-3", "TOP-1")
async def test_it_starts_in_order_and_admits_last(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(owner: Any, name: str, word: str) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            order.append(word)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    noted(lifespan.Guard, "acquire", "guard")
    noted(lifespan.Publisher, "connect", "publication")
    noted(Lanes, "connect", "lanes")
    noted(Lanes, "start", "workers")
    noted(Supervisor, "start", "relays")
    noted(boots, "ready", "ready")
    async with lived(vessel_url, monkeypatch) as life:
        assert order == ["guard", "publication", "lanes", "workers", "relays", "ready"]
        assert life.vessel.engine.admitting
        boot = await watcher.one("select id, ready_at is not null, ended_at from runs_boot")
        assert boot == (life.vessel.boot_id, True, None)


@pytest.mark.contract("TOP-1", "TOP-5", "TOP-4")
async def test_s237_it_has_exactly_two_workers_and_both_run_the_same_one_function(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(vessel_url, monkeypatch, runs_concurrency=3, rites_concurrency=1) as life:
        workers = life.vessel.lanes.workers
        assert {name: worker.concurrency for name, worker in workers.items()} == {"runs": 3, "rites": 1}
        assert {name: list(worker.functions) for name, worker in workers.items()} == {
            "runs": ["perform_run"],
            "rites": ["perform_run"],
        }
        run = await life.submit("three", {"n": 1})
        await is_in(life, watcher, run, "done")


@pytest.mark.contract("QUE-7", "TOP-3")
async def test_s237_a_route_to_a_lane_that_does_not_exist_refuses_the_start(
    vessel_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(vessel_url, routes=({"source": "cli", "queue": "nowhere", "priority": 1},))
    await refused(server, vessel_url, "nowhere")


async def refused(server: Server, url: str, *words: str) -> str:
    """The start fails in one sentence with these words, and nothing that was opened is left."""
    before = asyncio.all_tasks()
    said = await server.tell("startup")
    await server.ended()
    assert said["type"] == "lifespan.startup.failed"
    sentence = said["message"]
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert server.application.failure == sentence
    assert server.application.vessel is None
    assert "vessel" not in server.state
    await nothing_left(url, before)
    return sentence


@pytest.mark.contract("TOP-3")
async def test_a_database_that_was_never_migrated_refuses_the_start(empty_url: str) -> None:
    await refused(Server(empty_url), empty_url, "no LychD tables", "lychd migrate")


@pytest.mark.contract("TOP-3")
async def test_a_database_of_an_older_version_refuses_the_start_and_names_what_it_lacks(
    vessel_url: str, watcher: Watcher
) -> None:
    await watcher.rows("delete from django_migrations where app = 'runs'")
    await refused(Server(vessel_url), vessel_url, "runs.0001_initial", "lychd migrate")


@pytest.mark.contract("BYD-1", "TOP-3")
async def test_a_second_vessel_refuses_the_start_and_leaves_the_first_alone(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(vessel_url, monkeypatch) as life:
        # Some connections are opened by their first use.
        await eventually(lambda: all(status.passes for status in life.vessel.supervisor.status.values()))
        connections = await watcher.backends()
        server = Server(vessel_url)
        said = await server.tell("startup")
        await server.ended()
        assert str(life.vessel.boot_id) in said["message"]
        assert "Another Vessel holds this database: host " in said["message"]

        async def as_before() -> bool:
            return await watcher.backends() == connections

        await eventually(as_before)
        await is_in(life, watcher, await life.submit("quick"), "done")


@pytest.mark.contract("TOP-3")
async def test_too_few_connections_refuse_the_start(vessel_url: str, watcher: Watcher) -> None:
    name = vessel_url.rsplit("/", 1)[1].partition("?")[0]
    await watcher.rows(f"alter database {name} connection limit 20")
    await refused(Server(vessel_url), vessel_url, "connections", "CONNECTION LIMIT")


@pytest.mark.contract("TOP-3")
async def test_a_server_that_is_not_there_refuses_the_start() -> None:
    server = Server("postgresql://nobody@127.0.0.1:1/none")
    said = await server.tell("startup")
    await server.ended()
    assert said["type"] == "lifespan.startup.failed"
    assert "refused" in said["message"]


async def test_a_pattern_that_is_not_written_correctly_refuses_the_start(
    vessel_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> PatternRegistry:
        raise PatternError("Pattern 'tidy': no node is the start.")

    monkeypatch.setattr(wiring, "registry", broken)
    await refused(Server(vessel_url), vessel_url, "Pattern 'tidy': no node is the start.")


@pytest.mark.contract("TOP-3", "QUE-3")
async def test_broker_tables_of_a_newer_library_refuse_the_start(vessel_url: str, watcher: Watcher) -> None:
    await watcher.rows("create table saq_versions (version int)")
    await watcher.rows("insert into saq_versions values (99)")
    await refused(Server(vessel_url), vessel_url, "version 99")


STAGES: dict[str, Callable[[], tuple[Any, str]]] = {
    "reads": lambda: (lifespan.Reads, "open"),
    "publication": lambda: (lifespan.Publisher, "connect"),
    "the first lane": lambda: (LaneQueue, "connect"),
    "counts": lambda: (lifespan.rows, "live_counts"),
    "the record of being ready": lambda: (Ledger, "script"),
}


@pytest.mark.contract("TOP-3", "QUE-3")
@pytest.mark.parametrize("stage", list(STAGES))
async def test_whatever_fails_while_it_starts_everything_that_was_opened_is_closed(
    vessel_url: str, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    owner, name = STAGES[stage]()

    async def fails(*args: Any, **kwargs: Any) -> Any:
        raise psycopg.OperationalError("the server went away\nwith a hint")

    monkeypatch.setattr(owner, name, fails)
    await refused(Server(vessel_url), vessel_url, "the server went away")


@pytest.mark.contract("QUE-3")
async def test_s197_a_second_lane_that_cannot_connect_takes_the_first_with_it(
    vessel_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LaneQueue.init_db

    async def init_db(queue: LaneQueue) -> None:
        if queue.name == "rites":
            raise psycopg.OperationalError("no rites today")
        await real(queue)

    monkeypatch.setattr(LaneQueue, "init_db", init_db)
    await refused(Server(vessel_url), vessel_url, "no rites today")


async def test_a_start_that_is_cancelled_closes_what_was_opened(
    vessel_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def hangs(*args: Any, **kwargs: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Lanes, "connect", hangs)
    before = asyncio.all_tasks()
    server = Server(vessel_url)
    starting = asyncio.create_task(server.application({"type": "lifespan", "state": {}}, asyncio.Queue().get, hangs))
    starting.cancel()
    await asyncio.wait({starting})
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    told.put_nowait({"type": "lifespan.startup"})
    starting = asyncio.create_task(server.application({"type": "lifespan", "state": {}}, told.get, hangs))
    await asyncio.wait_for(reached.wait(), 10)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    await nothing_left(vessel_url, before)


async def test_a_failure_while_closing_does_not_hide_why_the_start_failed(
    vessel_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lifespan.Publisher.close

    async def close(publisher: Any) -> None:
        await real(publisher)
        raise OSError("nor could it be closed")

    async def fails(*args: Any) -> None:
        raise psycopg.OperationalError("the first reason")

    monkeypatch.setattr(lifespan.Publisher, "close", close)
    monkeypatch.setattr(Lanes, "connect", fails)
    with structlog.testing.capture_logs() as logs:
        await refused(Server(vessel_url), vessel_url, "the first reason")
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["vessel.not_closed"]


# Life


async def test_readiness_names_every_condition(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(vessel_url, monkeypatch) as life:
        await eventually(lambda: all(status.passes for status in life.vessel.supervisor.status.values()))
        checks = {check.name: check for check in await life.vessel.readiness()}
        assert set(checks) == {
            "admitting",
            "database",
            "guard",
            "claim gate",
            "publish gate",
            "broker",
            "lane runs",
            "lane rites",
            "relay delivery",
            "relay limits",
            "relay wakeups",
            "relay waits consent",
            "relay custody",
            "relay cancel",
            "relay evidence",
            "recovery",
        }
        assert [name for name, check in checks.items() if not check.ok] == []
        await watcher.rows("alter table saq_jobs rename to away")

        async def fails(*_: Any) -> bool:
            raise LookupError("out of figures")

        monkeypatch.setattr(lifespan.DeliveryRelay, "tick", fails)

        async def told() -> Any:
            failed = {check.name: check.reason for check in await life.vessel.readiness() if not check.ok}
            return failed if {"broker", "relay delivery"} <= set(failed) else None

        failed = await eventually(told, within=10)
        assert "saq_jobs" in failed["broker"]
        assert "out of figures" in failed["relay delivery"]
        monkeypatch.undo()
        await watcher.rows("alter table away rename to saq_jobs")

        async def ready() -> bool:
            return all(check.ok for check in await life.vessel.readiness())

        await eventually(ready, within=15)


@pytest.mark.contract("MUT-2", "MUT-4")
async def test_a_gate_that_somebody_holds_is_shown_and_holds_work_before_its_claim(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(vessel_url, monkeypatch) as life:
        life.vessel.claim_gate.close("maintenance", "a model is being replaced")
        run = await life.submit("quick")
        await eventually(lambda: life.vessel.lanes.queues["runs"].pump.live)
        assert await watcher.run(run) == ("queued", 0, "published")
        failed = [(check.name, check.reason) for check in await life.vessel.readiness() if not check.ok]
        assert failed == [("claim gate", "maintenance: a model is being replaced")]
        # The broker has nothing queued and a worker is busy: neither says anything about the gate.
        stats = (await life.vessel.lanes.stats())["runs"]
        assert (stats.queued, stats.active) == (0, 1)
        life.vessel.claim_gate.open("maintenance")
        await is_in(life, watcher, run, "done")


async def test_figures_tell_what_happened(vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lived(vessel_url, monkeypatch) as life:
        for _ in range(3):
            await is_in(life, watcher, await life.submit("quick"), "done")
        await life.vessel.evidence.drain()
        await eventually(lambda: not life.vessel.lanes.queues["runs"].pump.live)
        text = generate_latest(await life.vessel.metrics()).decode()
        figures = {
            line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if not line.startswith("#")
        }
        assert figures['lychd_edge_requests_total{edge="admit"}'] == 3
        assert figures['lychd_edge_requests_total{edge="settle"}'] == 3
        assert figures["lychd_queued_runs"] == 0
        assert figures["lychd_evidence_waiting"] == 0
        assert figures["lychd_evidence_written_total"] >= 9
        assert figures['lychd_lane_free{lane="runs"}'] == 4
        assert figures['lychd_gate_open{gate="claim"}'] == 1
        assert figures["lychd_resident_bytes"] > 10_000_000
        assert {f'lychd_relay_passes_total{{relay="{name}"}}' for name in ("delivery", "limits", "wakeups")} <= set(
            figures
        )


# Stop


@pytest.mark.contract("SHUT-1", "SHUT-3", "SHUT-4")
async def test_a_stop_in_good_order_says_nothing_bad_and_leaves_nothing(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with structlog.testing.capture_logs() as logs, caplog.at_level(logging.WARNING):
        async with lived(vessel_url, monkeypatch) as life:
            run = await life.submit("three")
            await is_in(life, watcher, run, "done")
            await life.stop()
    assert [line for line in logs if line["log_level"] not in {"debug", "info"}] == []
    assert caplog.records == []
    assert await watcher.one("select end_reason from runs_boot where ended_at is not null") == "stopped"


@pytest.mark.contract("SHUT-8")
async def test_evidence_that_is_on_its_way_is_written_before_the_end(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(vessel_url, monkeypatch, drain_seconds=0.0) as life:
        life.vessel.claim_gate.close("maintenance", "so that the Run stays where it is")
        run = await life.submit("quick")
        for number in range(500):
            assert life.vessel.bus.emit(run, Kind.LOG, data={"message": str(number)})
        assert life.vessel.evidence.stats().waiting > 0
        await life.stop()
    told = await watcher.rows(
        "select data->>'message' from runs_step where run_id = %s and kind = 'log' order by seq", run
    )
    assert [message for (message,) in told] == [str(number) for number in range(500)]


@pytest.mark.contract("SHUT-1", "SHUT-2")
async def test_it_stops_in_order(vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(owner: Any, name: str, word: str) -> None:
        real = getattr(owner, name)

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            if word not in order:
                order.append(word)
            return await real(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    for owner, name, word in (
        (lifespan.RunEventBus, "aclose", "streams"),
        (Lanes, "drain", "drain"),
        (Supervisor, "stop", "relays"),
        (Lanes, "stop", "workers"),
        (lifespan.EvidenceWriter, "drain", "evidence"),
        (Lanes, "disconnect", "lanes"),
        (lifespan.Publisher, "close", "publication"),
        (Ledger, "close", "ledger"),
        (lifespan.Reads, "close", "reads"),
        (lifespan.Guard, "release", "guard"),
    ):
        noted(owner, name, word)
    async with lived(vessel_url, monkeypatch) as life:
        order.clear()
        await life.stop()
    assert order == [
        "streams",
        "drain",
        "relays",
        "workers",
        "evidence",
        "lanes",
        "publication",
        "ledger",
        "reads",
        "guard",
    ]


@pytest.mark.contract("BYD-5")
async def test_a_running_hop_may_come_to_its_end_while_nothing_new_is_taken(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(vessel_url, monkeypatch, runs_concurrency=1) as life:
        run = await life.submit("held", {"n": 7})
        await is_in(life, watcher, run, "running")
        waiting = await life.submit("quick")
        stopping = asyncio.create_task(life.stop())
        await eventually(lambda: life.vessel.stopping)
        with pytest.raises(NotAdmitting):
            await life.submit("quick")
        await eventually(lambda: demo.hold.entered)
        demo.hold.go.set()
        await stopping
        assert await watcher.run(run) == ("done", 0, "settled")
        assert await watcher.run(waiting) == ("queued", 0, "published")
        last = "select data ->> 'status' from runs_step where run_id = %s and kind = 'done'"
        assert await watcher.one(last, run) == "done"
    # What was left in the queue is the next Vessel's.
    async with lived(vessel_url, monkeypatch) as life:
        await is_in(life, watcher, waiting, "done")


@pytest.mark.contract("SET-10", "BYD-5", "SHUT-4")
async def test_s200_a_hop_that_outlasts_the_drain_is_cancelled_settled_failed_and_not_run_again(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with lived(vessel_url, monkeypatch, drain_seconds=0.2) as life:
            run = await life.submit("held")
            await is_in(life, watcher, run, "running")
            await life.stop()
        assert await watcher.run(run) == ("failed", 0, "settled")
        assert await watcher.one("select error_code from runs_run where id = %s", run) == "worker_cancelled"
        done = "select data #>> '{error,code}' from runs_step where run_id = %s and kind = 'done'"
        assert await watcher.one(done, run) == "worker_cancelled"
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["vessel.drain_over"]
    async with lived(vessel_url, monkeypatch) as life:
        await is_in(life, watcher, await life.submit("quick"), "done")
        assert await watcher.run(run) == ("failed", 0, "settled")
        assert demo.hold.entered == 0


@pytest.mark.contract("SHUT-2", "SHUT-3")
async def test_a_thread_that_still_runs_fails_the_stop_and_what_it_may_use_stays_open(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespan, "WORKER_STOP_SECONDS", 0.3)
    async with lived(vessel_url, monkeypatch, drain_seconds=0.0) as life:
        run = await life.submit("threaded", {"n": 3})
        hold = demo.hold
        assert await asyncio.to_thread(hold.thread_entered.wait, 10)
        with pytest.raises(TimeoutError, match="still running"):
            await life.stop()
        try:
            assert life.vessel.guard.held
            assert await life.vessel.reads.fetch_one("select 1") == (1,)
            assert await watcher.run(run) == ("running", 0, "claimed")
            assert (await life.vessel.lanes.stats())["runs"].active == 1
        finally:
            hold.thread_go.set()
        await is_in(life, watcher, run, "failed")
        await life.stop()


@pytest.mark.contract("SHUT-2")
async def test_s190_a_relay_that_ignores_its_end_fails_the_stop_and_services_stay_open(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespan, "RELAY_STOP_SECONDS", 0.2)
    release, entered = asyncio.Event(), asyncio.Event()

    async def stubborn(self: Any) -> bool:
        entered.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return False

    monkeypatch.setattr(lifespan.LimitsRelay, "tick", stubborn)
    async with lived(vessel_url, monkeypatch) as life:
        await entered.wait()
        with pytest.raises(TimeoutError, match="relay limits"):
            await life.stop()
        assert life.vessel.guard.held
        assert await life.vessel.reads.fetch_one("select 1") == (1,)
        assert (await life.vessel.lanes.stats())["runs"].running
        release.set()
        await life.stop()


async def test_evidence_that_cannot_be_written_does_not_keep_the_vessel(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespan, "EVIDENCE_SECONDS", 0.1)

    async def never(self: Any) -> None:
        await asyncio.Event().wait()

    with structlog.testing.capture_logs() as logs:
        async with lived(vessel_url, monkeypatch) as life:
            monkeypatch.setattr(lifespan.EvidenceWriter, "drain", never)
            await life.stop()
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["vessel.evidence_not_drained"]


# The protocol


@pytest.mark.contract("TOP-3", "TOP-7")
async def test_a_server_with_a_lifespan_gets_the_vessel_and_its_end(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "registry", lambda: PatternRegistry(PATTERNS))
    before = asyncio.all_tasks()
    server = Server(vessel_url)
    assert await server.tell("startup") == {"type": "lifespan.startup.complete"}
    assert isinstance(server.state["vessel"], Vessel)
    assert server.application.vessel is server.state["vessel"]
    assert await server.tell("shutdown") == {"type": "lifespan.shutdown.complete"}
    await server.ended()
    await nothing_left(vessel_url, before)


async def test_a_stop_that_fails_is_told_to_the_server(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "registry", lambda: PatternRegistry(PATTERNS))
    real = Lanes.stop
    server = Server(vessel_url)
    await server.tell("startup")
    vessel: Vessel = server.state["vessel"]

    async def fails(*args: Any) -> None:
        raise TimeoutError("still running 30 s after the lanes were told to stop: process")

    monkeypatch.setattr(Lanes, "stop", fails)
    said = await server.tell("shutdown")
    assert said["type"] == "lifespan.shutdown.failed"
    assert said["message"].startswith("still running")
    await server.ended()
    assert vessel.guard.held
    monkeypatch.setattr(Lanes, "stop", real)
    await server.application.stack.aclose()


@pytest.mark.contract("REC-26", "CLM-5")
async def test_s166_a_hop_whose_publication_was_cut_off_is_carried_once_by_the_next_boot(
    vessel_url: str, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_broker = asyncio.Event()

    async def cut(_: str) -> None:
        at_the_broker.set()
        await asyncio.Event().wait()

    async with lived(vessel_url, monkeypatch, drain_seconds=0.1) as life:
        life.vessel.claim_gate.close("test", "no claim in this boot")
        remove = install("publish.after", cut)
        submitting = asyncio.create_task(life.submit("quick"))
        await asyncio.wait_for(at_the_broker.wait(), 10)
        submitting.cancel()
        await asyncio.wait({submitting})
        remove()
        run = await watcher.one("select id from runs_run")
        assert await watcher.run(run) == ("queued", 0, "pending")
        await life.vessel.lanes.drain(0.0)
    async with lived(vessel_url, monkeypatch) as life:
        life.vessel.supervisor.relays[0].settle_seconds = 0.0  # type: ignore[attr-defined]
        await is_in(life, watcher, run, "done")
    status = "select count(*) from runs_step where run_id = %s and kind = 'node' and data ->> 'phase' = 'entered'"
    assert await watcher.one(status, run) == 1
    assert json.loads(await watcher.one("select output::text from runs_run where id = %s", run)) == {"n": 1}
    async with watching(vessel_url) as eyes:
        assert await eyes.one("select count(distinct boot_id) from runs_rundelivery where boot_id is not null") == 1
