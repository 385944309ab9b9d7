"""An engine with publisher, ledger and probe on a database, without workers: hops stay where a test puts them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lychd import wiring
from lychd.postgres import urls
from runs import ids
from runs.aftermath import Aftermath
from runs.broker.probe import Probe
from runs.broker.publish import Publisher
from runs.cancellation import Canceller
from runs.containment import Containment
from runs.engine import Engine
from runs.events.bus import RunEventBus
from runs.gate import Gate
from runs.ledger import boots
from runs.ledger.admit import ADMIT, Admission
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Won
from runs.limits import Limits
from runs.patterns import PatternRegistry
from runs.reads import Reads
from runs.relays.delivery import DeliveryRelay
from runs.waits import WaitKinds
from tests.support.demo import PATTERNS, quick
from tests.support.vessels import Watcher, a_config


def an_admission(**fields: Any) -> Admission:
    """A Run to be of the Pattern `quick`."""
    return Admission(
        **{
            "run_id": uuid.uuid4(),
            "tenant": "default",
            "pattern_key": quick.key,
            "pattern_revision": quick.revision,
            "pattern_digest": quick.digest,
            "manifest_json": "{}",
            "source": "api",
            "surface": "code",
            "sigil_id": None,
            "user_id": None,
            "sigil_name": "tester",
            "scopes": ("runs:submit",),
            "intent_json": "{}",
            "idempotency_key": None,
            "request_digest": "d" * 64,
            "input_json": "{}",
            "session_id": None,
            "priority": 50,
            "queue_name": "runs",
            "retains": False,
            "boot_id": None,
            **fields,
        }
    )


@dataclass(slots=True)
class Desk:
    """Everything that a delivery relay needs, and the relay."""

    conninfo: str
    boot_id: uuid.UUID
    ledger: Ledger
    reads: Reads
    publisher: Publisher
    probe: Probe
    engine: Engine
    relay: DeliveryRelay
    watcher: Watcher
    canceller: Canceller
    admitted: list[uuid.UUID] = field(default_factory=list[uuid.UUID])

    async def admit(self, **fields: Any) -> uuid.UUID:
        """A queued Run of which the broker knows nothing."""
        admission = an_admission(**fields)
        assert isinstance(await self.ledger.run(ADMIT, admission), Won)
        self.admitted.append(admission.run_id)
        return admission.run_id

    async def enqueue(self, run_id: uuid.UUID, seq: int = 0, queue: str = "runs", priority: int = 50) -> str:
        """Give the broker the job; the ledger does not hear of it."""
        await self.publisher.enqueue(run_id, seq, queue, priority)
        return ids.job_key(run_id, seq)

    async def job(self, run_id: uuid.UUID, seq: int = 0) -> Any:
        """Status, lane and wire priority of the broker's row."""
        return await self.watcher.one(
            "select status, queue, priority from saq_jobs where key = %s", ids.job_key(run_id, seq)
        )

    async def jobs(self) -> int:
        return await self.watcher.one("select count(*) from saq_jobs")

    async def delivery(self, run_id: uuid.UUID, seq: int = 0) -> Any:
        """State, lane, priority, resume flag, attempts, last error."""
        return await self.watcher.one(
            "select state, queue_name, priority, resume, publish_attempts, last_error "
            "from runs_rundelivery where run_id = %s and enqueue_seq = %s",
            run_id,
            seq,
        )


@asynccontextmanager
async def a_desk(url: str, watcher: Watcher, **relay: Any) -> AsyncIterator[Desk]:
    conninfo = urls.conninfo(url)
    ledger, reads, publisher = Ledger(conninfo), Reads(conninfo), Publisher(conninfo, within=2.0)
    await reads.open()
    await publisher.connect()
    probe = Probe(publisher.pool)
    boot = boots.BootRecord(ids.mint(), "here", 1, "durable", "0")
    config = a_config()
    engine = Engine(
        ledger=ledger,
        reads=reads,
        bus=RunEventBus(evidence=None),
        publisher=publisher,
        probe=probe,
        registry=PatternRegistry(PATTERNS),
        router=wiring.router(config),
        limits=Limits(10_000, 10_000),
        publish_gate=Gate("publish"),
        boot_id=boot.id,
        limit=config.max_payload,
        admitting=True,
    )
    try:
        await ledger.script(ScriptFactory(boots.take, boot))
        relay_ = DeliveryRelay(engine, ledger, reads, probe, **{"settle_seconds": 0.0, **relay})
        aftermath = Aftermath(ledger, reads, engine.bus, lambda _: None)
        containment = Containment(ledger, WaitKinds())
        canceller = Canceller(ledger, reads, probe, containment, aftermath, boot.id, lambda _: False)
        yield Desk(conninfo, boot.id, ledger, reads, publisher, probe, engine, relay_, watcher, canceller)
        await canceller.join()
    finally:
        await publisher.close()
        await reads.close()
        await ledger.close()
