"""Startup reconciliation: what earlier boots left open, in the order of REC-2, before any worker claims (REC-1).

Called by the lifespan under the one-Vessel guard and by nothing else. It works in pages; what it cannot judge is named
in the report and left as it is, and in the durable profile keeps the Vessel from starting (REC-19).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import batched

import psycopg

from runs import ids
from runs.aftermath import Aftermath
from runs.broker.jobs import JobView, require_queue
from runs.broker.probe import Probe
from runs.cancellation import Canceller
from runs.engine import Engine
from runs.errors import Degraded, EvidenceMismatch, LychdError
from runs.ledger.ledger import Ledger
from runs.patterns import PatternRegistry
from runs.reads import Reads
from runs.recovery import rows
from runs.recovery.dead import DeadHops, require_hop
from runs.recovery.queued import QueuedHops
from runs.recovery.report import Report
from runs.routing import QUEUES
from runs.waits import Pending, WaitKind, WaitKinds

PAGE = 200
# Ended Runs that one statement looks at; most are found to be whole. One over all of them would, where there are many
# millions, take longer than a statement may.
LOOK = 10_000
# Answered waits brought back at a time.
WAITS = 200


@dataclass(frozen=True, slots=True)
class Startup:
    """The parts of a recovery; one use for each boot."""

    engine: Engine
    ledger: Ledger
    reads: Reads
    probe: Probe
    waits: WaitKinds
    canceller: Canceller
    dead: DeadHops
    aftermath: Aftermath
    registry: PatternRegistry
    boot_id: uuid.UUID

    async def run(self) -> Report:
        """Reconcile everything.

        Returns:
            The report; it never raises for what it finds.

        Cancellation: between two Runs; the next start begins anew.
        """
        report = Report()
        phases: tuple[tuple[str, Callable[[Report], Awaitable[None]]], ...] = (
            ("cancelling", self._cancelling),
            ("evidence", self._evidence),
            ("checkpoints", self._checkpoints),
            ("dead hops", self._dead),
            ("queued", self._queued),
            ("waits", self._waits),
            ("resumed", partial(self._queued, phase="resumed")),
            ("jobs", self._jobs),
            ("patterns", self._patterns),
        )
        for name, phase in phases:
            try:
                await phase(report)
            except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
                report.degrade(None, f"{name}: {error}")
        report.close()
        return report

    async def _cancelling(self, report: Report) -> None:
        after = rows.FIRST
        while page := await rows.cancelling(self.reads, after=after, limit=PAGE):
            for run in page:
                try:
                    await self.canceller.cancel(run.run_id, run.by, orphan=True)
                    report.counts["cancelled"] += 1
                except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
                    report.degrade(run.run_id, error)
            after = page[-1].run_id
            await report.progress("cancelling", report.counts["cancelled"])

    async def _evidence(self, report: Report) -> None:
        after: uuid.UUID | None = rows.FIRST
        looked_at = 0
        while after is not None:
            ends, after = await rows.unproved_ends(self.reads, after=after, limit=LOOK)
            for end in ends:
                if end.stored is not None:
                    mismatch = f"The stored terminal Step says {end.stored}, the Run says {end.status}."
                    report.degrade(end.run_id, EvidenceMismatch(mismatch))
            for missing in batched([end.run_id for end in ends if end.stored is None], PAGE):
                await self._repair(missing, report)
            looked_at += LOOK if after is not None else 0
            await report.progress("evidence", looked_at)

    async def _repair(self, missing: tuple[uuid.UUID, ...], report: Report) -> None:
        outcomes = await asyncio.gather(*(self.aftermath.repair(run_id) for run_id in missing), return_exceptions=True)
        for run_id, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, Exception):
                report.degrade(run_id, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                report.counts["evidence_repaired"] += 1

    async def _checkpoints(self, report: Report) -> None:
        after: uuid.UUID | None = rows.FIRST
        while after is not None:
            kept, after = await rows.kept_checkpoints(self.reads, after=after, limit=LOOK)
            for page in batched(kept, PAGE):
                await asyncio.gather(*(self.aftermath.discard(run_id, seq) for run_id, seq in page))
            report.counts["checkpoints_deleted"] += len(kept)
            await report.progress("checkpoints", report.counts["checkpoints_deleted"])

    async def _dead(self, report: Report) -> None:
        after = rows.FIRST
        while page := await rows.on_worker(self.reads, after=after, limit=PAGE):
            old = [run for run in page if run.boot_id != self.boot_id]
            jobs = await self.probe.statuses([ids.job_key(run.run_id, run.seq) for run in old])
            for run in old:
                try:
                    require_queue(run.queue, QUEUES)
                    require_hop(run.fault)
                    await self._fence(run, jobs.get(ids.job_key(run.run_id, run.seq)))
                    assert run.hop is not None
                    report.counts[f"dead_{await self.dead.become(run.hop)}"] += 1
                except Exception as error:  # noqa: BLE001 - whatever it is, it is this Run's, and the report names it
                    report.degrade(run.run_id, error)
            after = page[-1].run_id
            await report.progress("dead hops", sum(report.counts.values()))

    async def _fence(self, run: rows.OnWorker, job: JobView | None) -> None:
        """Nothing of the earlier boot's broker generation may be able to act before the Run is judged (REC-4)."""
        if job is None or job.status.terminal:
            return
        await self.probe.fence_orphan(job.key, "its worker belonged to an earlier boot")
        view = await self.probe.status(run.run_id, run.seq, run.queue)
        if view is not None and not view.status.terminal:
            raise Degraded(f"The broker's row {job.key} was fenced and is {view.status.value} nevertheless.")

    async def _queued(self, report: Report, phase: str = "queued") -> None:
        sweep = QueuedHops(
            self.engine, self.ledger, self.reads, self.probe, self.aftermath, self.boot_id, report, report.counts, phase
        )
        await sweep.sweep()

    async def _waits(self, report: Report) -> None:
        kinds = [kind.name for kind in self.waits]
        for run_id, name in await rows.foreign_waits(self.reads, kinds, WAITS):
            report.degrade(run_id, f"It waits for a {name}, and that kind of wait is not installed.")
        for kind in self.waits:
            for run_id in await kind.strays(self.reads, WAITS):
                report.degrade(run_id, f"The {kind.name} that it waits for does not exist.")
            while True:
                answered = list(await kind.tick(self.ledger, self.reads, WAITS))
                # Together, or each would wait for the disk alone.
                moved = sum(await asyncio.gather(*(self._bring_back(kind, owner, report) for owner in answered)))
                report.counts["resumed"] += moved
                await report.progress("waits", report.counts["resumed"])
                # A page that moves nothing would come again for ever; the relay looks at it later.
                if len(answered) < WAITS or not moved:
                    break

    async def _bring_back(self, kind: WaitKind, owner: Pending, report: Report) -> bool:
        try:
            return await self.engine.resume(kind, owner.run_id, owner.owner_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this Run's, and the report names it
            report.degrade(owner.run_id, error)
            return False

    async def _jobs(self, report: Report) -> None:
        """End what the broker still calls active: its hop is over, and its worker died before it said so (ruling 14).

        Nobody has claimed anything yet, so each of these rows is an earlier boot's. Those of Runs that could not be
        judged stay as they are.
        """
        after = ""
        while page := await self.probe.taken(after=after, limit=PAGE):
            for key in page:
                run_id = ids.run_of(key)
                if run_id is not None and report.names(run_id):
                    continue
                await self.probe.fence_orphan(key, "its worker belonged to an earlier boot")
                report.counts["jobs_ended"] += 1
            after = page[-1]
            await report.progress("jobs", report.counts["jobs_ended"])

    async def _patterns(self, report: Report) -> None:
        """Say which unfinished Runs need what is not installed; they fail when they are claimed (ruling 19)."""
        for key, revision, digest, runs in await rows.pinned_revisions(self.reads):
            try:
                self.registry.exact(key, revision, digest)
            except LychdError as error:
                report.notes.append(f"{runs} unfinished Runs need {key} revision {revision}: {error.detail}")
