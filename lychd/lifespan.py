"""Starts and stops a Vessel: the one place that knows the order of its parts (TOP-3).

Start: one-Vessel guard and boot record, budget, reads and ledger, evidence and bus, publication and lanes connected,
recovery of what earlier boots left (`runs.recovery`), workers, relays, then admissions. Whatever was opened
is closed again when a later part fails, in reverse. Stop: the reverse, with proofs: no task may be left.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import Any

import psycopg
import structlog

from consents.policies import load as load_policies
from consents.policies import sync as sync_policies
from lychd import glue, wiring
from lychd.config import Config
from lychd.graph import Vessel
from lychd.postgres import fit, urls
from lychd.postgres.guard import Guard
from runs import ids
from runs import reads as rows
from runs.aftermath import Aftermath
from runs.broker.lanes import Lanes
from runs.broker.probe import Probe
from runs.broker.publish import Publisher
from runs.cancellation import Canceller
from runs.containment import Containment
from runs.custody import Custody, Drain
from runs.driver.drive import Driver
from runs.driver.threads import Threads
from runs.engine import Engine
from runs.errors import LychdError, Unknown
from runs.events.bus import RunEventBus
from runs.events.evidence import EvidenceWriter
from runs.gate import Gate
from runs.ghoul import Ghoul
from runs.ledger import boots
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.steps import Steps
from runs.limits import Limits
from runs.parking import Parking
from runs.patterns import PatternRegistry
from runs.reads import Reads
from runs.recovery.custody import CancelRelay, CustodyRelay
from runs.recovery.dead import DeadHops
from runs.recovery.evidence import EvidenceRelay
from runs.recovery.report import RecoveryDegraded
from runs.recovery.startup import Startup
from runs.relays.delivery import DeliveryRelay
from runs.relays.limits import LimitsRelay
from runs.relays.supervisor import Supervisor
from runs.relays.waits import WaitRelay
from runs.relays.wakeups import Wakeups
from runs.returning import Ways
from runs.routing import QUEUES

log = structlog.get_logger(__name__)

WORKER_STOP_SECONDS = 30.0
RELAY_STOP_SECONDS = 5.0
CANCEL_STOP_SECONDS = 5.0
EVIDENCE_SECONDS = 10.0


async def start(
    config: Config,
    database_url: str,
    stop: Callable[[int, str], None],
    stack: AsyncExitStack,
    *,
    registry: PatternRegistry | None = None,
) -> Vessel:
    """Bring up a Vessel up to the point where it may serve.

    Args:
        stop: asks the host to end the process with a code and a reason.
        stack: gets a closer for everything that is opened; the caller closes it.
        registry: the Patterns; default: those of all installed apps.

    Raises:
        LychdError: one sentence why the Vessel cannot start (VesselRunning, PoolerInBetween, TooFewConnections, …).
        psycopg.OperationalError: PostgreSQL cannot be reached.

    Cancellation: the stack holds what was opened so far.
    """
    conninfo = urls.conninfo(database_url)
    registry, router, waits = registry or wiring.registry(), wiring.router(config), wiring.wait_kinds()
    policies = load_policies(config.policies)
    boot = boots.BootRecord(ids.mint(), socket.gethostname(), os.getpid(), config.profile, version("lychd"))
    await fit.prove(conninfo, wiring.budget(config))
    guard = Guard(conninfo, boot)
    await guard.acquire()
    stack.push_async_callback(guard.release)
    log.info("vessel.boot", boot=str(boot.id), pid=boot.pid, profile=boot.profile, version=boot.version)

    reads = Reads(conninfo)
    await reads.open()
    stack.push_async_callback(reads.close)
    ledger = Ledger(conninfo)
    stack.push_async_callback(ledger.close)
    evidence = EvidenceWriter(Steps(ledger.evidence))
    evidence.start()
    stack.push_async_callback(evidence.stop)
    bus = RunEventBus(evidence=evidence)
    stack.push_async_callback(bus.aclose)
    threads = Threads(2 * (config.runs_concurrency + config.rites_concurrency))
    stack.callback(threads.close)

    claim_gate, publish_gate = Gate("claim"), Gate("publish")
    limits = Limits(config.max_queued, config.max_live_per_tenant)
    publisher = Publisher(conninfo, queues=QUEUES)
    await publisher.connect()
    stack.push_async_callback(publisher.close)
    probe = Probe(publisher.pool, queues=QUEUES)
    engine = Engine(
        ledger=ledger,
        reads=reads,
        bus=bus,
        publisher=publisher,
        probe=probe,
        registry=registry,
        router=router,
        limits=limits,
        publish_gate=publish_gate,
        boot_id=boot.id,
        limit=config.max_payload,
    )
    aftermath = Aftermath(ledger, reads, bus, partial(glue.moved, bus, limits))
    containment, ways = Containment(ledger, waits), Ways(reads, waits)
    custody, drain = Custody(), Drain()
    canceller = Canceller(ledger, reads, probe, containment, aftermath, boot.id, custody.live)
    stack.push_async_callback(canceller.stop, 0.0)
    dead = DeadHops(ledger, ways, containment, aftermath, boot.id)
    ghoul = Ghoul(
        ledger=ledger,
        bus=bus,
        driver=Driver(ledger, bus, threads, reads, waits, config.max_payload, drain),
        registry=registry,
        revalidate=wiring.Authority(reads),
        gate=claim_gate,
        boot_id=boot.id,
        parking=Parking(ledger, reads, bus, engine.resume, aftermath.moved),
        containment=containment,
        aftermath=aftermath,
        custody=custody,
        ways=ways,
        drain=drain,
    )
    lanes = Lanes(
        conninfo,
        concurrency={"runs": config.runs_concurrency, "rites": config.rites_concurrency},
        perform=ghoul.perform_run,
        boot_id=boot.id,
    )
    lanes.require(router.queues)
    await lanes.connect()
    stack.push_async_callback(lanes.disconnect)
    supervisor = Supervisor(
        [
            DeliveryRelay(engine, ledger, reads, probe),
            LimitsRelay(reads, limits),
            Wakeups(conninfo, partial(glue.attend, reads, engine, canceller)),
            *(WaitRelay(kind, engine, ledger, reads) for kind in waits),
            CustodyRelay(reads, engine, dead, custody, boot.id),
            CancelRelay(reads, engine, canceller),
            EvidenceRelay(aftermath, evidence),
        ]
    )
    vessel = Vessel(
        boot_id=boot.id,
        config=config,
        conninfo=conninfo,
        registry=registry,
        reads=reads,
        ledger=ledger,
        evidence=evidence,
        bus=bus,
        publisher=publisher,
        probe=probe,
        engine=engine,
        ghoul=ghoul,
        lanes=lanes,
        threads=threads,
        waits=waits,
        canceller=canceller,
        drain=drain,
        supervisor=supervisor,
        limits=limits,
        claim_gate=claim_gate,
        publish_gate=publish_gate,
        guard=guard,
        stop=stop,
    )

    await ledger.script(ScriptFactory(sync_policies, policies))
    recovery = Startup(engine, ledger, reads, probe, waits, canceller, dead, aftermath, registry, boot.id)
    report = await recovery.run()
    vessel.recovery = report.to_json()
    if not report.complete and config.profile == "durable":
        await ledger.script(ScriptFactory(boots.refused, boot.id, json.dumps(vessel.recovery), report.sentence()))
        raise RecoveryDegraded(report.sentence())

    limits.set(*await rows.live_counts(reads, cap=config.max_queued + 1))
    guard.watch(glue.guard_events(vessel))
    lanes.start()
    stack.push_async_callback(_stop_workers, vessel)
    supervisor.start()
    stack.push_async_callback(supervisor.stop, RELAY_STOP_SECONDS)
    await ledger.script(ScriptFactory(boots.ready, boot.id, "", json.dumps(vessel.recovery)))
    engine.admitting = True
    vessel.serving = True
    log.info("vessel.ready", boot=str(boot.id), patterns=len(registry.active()))
    return vessel


async def shut_down(vessel: Vessel, stack: AsyncExitStack) -> None:
    """Stop in order and prove it: admissions, streams, lanes drained, relays, workers, evidence, then what they used.

    Raises:
        TimeoutError: a relay or a worker did not stop; the stack is left open, with what they may still use (SHUT-2).
        ExceptionGroup: parts that failed to close (SHUT-5).
    """
    began = time.monotonic()
    vessel.stopping, vessel.engine.admitting, vessel.drain.asked = True, False, True
    await vessel.bus.aclose()
    drain = 0.0 if vessel.cut_off else vessel.config.drain_seconds
    if not await vessel.lanes.drain(drain):
        log.warning("vessel.drain_over", seconds=drain)
    await vessel.supervisor.stop(RELAY_STOP_SECONDS)
    await vessel.canceller.stop(0.0 if vessel.cut_off else CANCEL_STOP_SECONDS)
    await _stop_workers(vessel)
    await _last_words(vessel)
    await stack.aclose()
    log.info("vessel.stopped", boot=str(vessel.boot_id), seconds=round(time.monotonic() - began, 2))


async def _last_words(vessel: Vessel) -> None:
    """Write what is still on its way: Steps, and the end of the boot. Neither decides a Run, so neither keeps us."""
    try:
        async with asyncio.timeout(EVIDENCE_SECONDS):
            await vessel.evidence.drain()
            await vessel.bus.join()
    except TimeoutError:
        log.warning("vessel.evidence_not_drained", waiting=vessel.evidence.stats().waiting)
    if vessel.cut_off:
        return
    try:
        await vessel.ledger.script(ScriptFactory(boots.ended, vessel.boot_id, "stopped"))
    except (Unknown, psycopg.Error) as error:
        log.warning("vessel.end_not_recorded", error=str(error).splitlines()[0])


class Lifespan:
    """The ASGI `lifespan` application: runs `start` and `shut_down` and puts the Vessel into the state."""

    def __init__(self, config: Config, database_url: str) -> None:
        self._config = config
        self._database_url = database_url
        self.vessel: Vessel | None = None
        self.failure: str | None = None
        """Why it did not start, in a sentence."""
        self.stack = AsyncExitStack()
        """What is open; after a stop that failed it still is."""

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Speak the lifespan protocol.

        Cancellation: closes what was opened, as far as that can be done, then goes on.
        """
        state: MutableMapping[str, Any] = scope["state"] if "state" in scope else scope.setdefault("state", {})
        stop = state.get("lychd.stop", _nobody_to_ask)
        await receive()
        stack = self.stack
        try:
            vessel = await start(self._config, self._database_url, stop, stack)
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            await _close_failed(stack)
            self.failure = _sentence(error)
            await send({"type": "lifespan.startup.failed", "message": self.failure})
            return
        except BaseException:
            await _close_failed(stack)
            raise
        state["vessel"] = self.vessel = vessel
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await shut_down(vessel, stack)
        except Exception as error:  # noqa: BLE001 - told to the host, which ends the process non-zero
            log.error("vessel.shutdown_failed", error=repr(error))
            await send({"type": "lifespan.shutdown.failed", "message": _sentence(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


async def _close_failed(stack: AsyncExitStack) -> None:
    """Close what a failed start had opened; the failure itself is the news, so what cannot be closed is only logged."""
    try:
        await stack.aclose()
    except Exception as error:  # noqa: BLE001 - logged; raising it would hide why the start failed
        log.warning("vessel.not_closed", error=repr(error))


def _sentence(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


async def _stop_workers(vessel: Vessel) -> None:
    await vessel.lanes.stop(0.0, WORKER_STOP_SECONDS)
    if vessel.threads.live:
        raise TimeoutError(f"{vessel.threads.live} node threads did not end.")


def _nobody_to_ask(code: int, reason: str) -> None:
    """Under a server that is not ours the process cannot be asked to end with a code."""
    log.error("vessel.must_end", code=code, reason=reason)
    os.kill(os.getpid(), 15)
