"""The object graph of one boot: built once by the lifespan, handed to the edges through the ASGI state.

Edges take it from `scope["state"]["vessel"]`. Nothing here starts or stops anything.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from lychd.config import Config
from lychd.figures import registry_for
from lychd.postgres.guard import Guard
from runs.broker.lanes import Lanes
from runs.broker.probe import Probe
from runs.broker.publish import Publisher
from runs.cancellation import Canceller
from runs.custody import Drain
from runs.driver.threads import Threads
from runs.engine import Engine
from runs.errors import first_line
from runs.events.bus import RunEventBus
from runs.events.evidence import EvidenceWriter
from runs.gate import Gate
from runs.ghoul import Ghoul
from runs.ledger.ledger import Ledger
from runs.limits import Limits
from runs.patterns import PatternRegistry
from runs.reads import Reads
from runs.relays.supervisor import Supervisor
from runs.waits import WaitKinds

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Check:
    """One named condition of readiness. `age` in seconds since it was last seen so."""

    name: str
    ok: bool
    reason: str | None = None
    age: float | None = None


@dataclass(slots=True)
class Vessel:
    """Everything that lives for one boot.

    `cut_off`: the guard is gone for good, so this process may not finish anything in the name of the database.
    """

    boot_id: uuid.UUID
    config: Config
    conninfo: str
    registry: PatternRegistry
    reads: Reads
    ledger: Ledger
    evidence: EvidenceWriter
    bus: RunEventBus
    publisher: Publisher
    probe: Probe
    engine: Engine
    ghoul: Ghoul
    lanes: Lanes
    threads: Threads
    waits: WaitKinds
    canceller: Canceller
    drain: Drain
    supervisor: Supervisor
    limits: Limits
    claim_gate: Gate
    publish_gate: Gate
    guard: Guard
    stop: Callable[[int, str], None]
    started: float = field(default_factory=time.monotonic)
    serving: bool = False
    stopping: bool = False
    cut_off: bool = False
    recovery: dict[str, Any] = field(default_factory=dict[str, Any])
    url: str = ""

    async def readiness(self) -> list[Check]:
        """Every condition for being sent work, met or not; asks the database once."""
        checks = [Check("admitting", self.engine.admitting, None if self.engine.admitting else self._why_not())]
        began = time.monotonic()
        try:
            await self.reads.fetch_one("select 1")
        except Exception as error:  # noqa: BLE001 - readiness reports whatever is wrong with the database
            checks.append(Check("database", ok=False, reason=f"{type(error).__name__}: {error}".splitlines()[0]))
        else:
            checks.append(Check("database", ok=True, age=round(time.monotonic() - began, 3)))
        checks.append(Check("guard", self.guard.held, None if self.guard.held else "the one-Vessel guard is not held"))
        for gate in (self.claim_gate, self.publish_gate):
            reason = "; ".join(f"{holder.name}: {holder.reason}" for holder in gate.holders) or None
            checks.append(Check(f"{gate.name} gate", gate.is_open, reason))
        checks.extend(await self._broker_checks())
        now = time.monotonic()
        for name, status in self.supervisor.status.items():
            age = None if status.last_pass is None else round(now - status.last_pass, 1)
            late = age is None or age > max(10.0, status.interval * 10)
            ok = status.last_error is None and not (late and now - self.started > 10.0)
            reason = None if ok else status.last_error or f"no pass for {age} s"
            checks.append(Check(f"relay {name}", ok, reason, age))
        recovered = bool(self.recovery.get("complete", True))
        checks.append(Check("recovery", recovered, None if recovered else str(self.recovery.get("reason"))))
        return checks

    async def _broker_checks(self) -> list[Check]:
        try:
            stats = await self.lanes.stats()
        except Exception as error:  # noqa: BLE001 - readiness reports whatever is wrong with the broker
            return [Check("broker", ok=False, reason=f"{type(error).__name__}: {error}".splitlines()[0])]
        checks = [Check("broker", ok=True)]
        for name, lane in stats.items():
            idle = lane.waiting_seconds > STARVED_SECONDS and lane.free > 0
            reason = None
            if not lane.running:
                reason = "the worker has ended"
            elif idle:
                reason = f"a job waits for {lane.waiting_seconds} s although {lane.free} slots are free"
            elif lane.overtaken is not None and lane.waiting_seconds > STARVED_SECONDS:
                # Load, and no reason to send work elsewhere: shown, and ready all the same (ruling 21).
                reason = (
                    f"a job of priority {lane.overtaken} waits for {lane.waiting_seconds} s "
                    "while more urgent work that came later runs"
                )
            checks.append(Check(f"lane {name}", lane.running and not idle, reason, float(lane.waiting_seconds)))
        return checks

    def _why_not(self) -> str:
        if self.stopping:
            return "stopping"
        return "the one-Vessel guard was lost" if self.serving else "starting"

    async def metrics(self) -> CollectorRegistry:
        """All figures, read when asked; those of the queues only while the broker answers."""
        try:
            async with asyncio.timeout(FIGURES_SECONDS):
                lanes = await self.lanes.stats()
        except Exception as error:  # noqa: BLE001 - readiness tells of the broker; the other figures are wanted most then
            log.debug("figures.no_broker", error=first_line(error))
            lanes = {}
        return registry_for(self, lanes)


# A queued job that waits this long while slots are free is a sign that something is wrong. Seconds.
STARVED_SECONDS = 30
FIGURES_SECONDS = 2.0
