"""Repair of a missing terminal Step: durable truth is asked, the missing Step is written once, a wrong one is reported.

Never overwrites a Step that exists (EVT-17) and never decides a status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog

from runs.errors import EvidenceFailed, EvidenceMismatch

if TYPE_CHECKING:
    from runs.events.bus import RunEventBus

log = structlog.get_logger()

_LOOKS = 3


@dataclass(frozen=True, slots=True)
class TerminalTruth:
    """A terminal Run as the database has it.

    Attributes:
        status: the Run's terminal status.
        next_seq: one more than the greatest stored seq; 0 without Steps (EVT-7).
        tenant: whose Run it is.
        stored: the status that the stored terminal Step names; None when there is no terminal Step.
        data: what else the terminal event tells (error, output, …).
    """

    status: str
    next_seq: int
    tenant: str = "default"
    stored: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


type Confirm = Callable[[], Awaitable[TerminalTruth | None]]


class Repaired(StrEnum):
    """How a repair ended."""

    NOT_TERMINAL = "not_terminal"
    NOTHING = "nothing"
    WRITTEN = "written"


class TerminalRepairs:
    """One repair at a time for each Run, shared by all who ask for it meanwhile."""

    def __init__(self, bus: RunEventBus) -> None:
        self._bus = bus
        self._running: dict[UUID, asyncio.Task[Repaired]] = {}

    async def run(self, run_id: UUID, confirm: Confirm) -> Repaired:
        """See `RunEventBus.repair_terminal`."""
        task = self._running.get(run_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._repair(run_id, confirm), name=f"repair {run_id}")
            self._running[run_id] = task
        return await asyncio.shield(task)

    async def join(self) -> None:
        """Wait until no repair runs."""
        while self._running:
            await asyncio.wait(set(self._running.values()))

    async def _repair(self, run_id: UUID, confirm: Confirm) -> Repaired:
        try:
            return await self._mend(run_id, confirm)
        except Exception as error:
            # Said here as well, since every caller may have been cancelled.
            log.warning("evidence.repair_failed", run=str(run_id), error=type(error).__name__)
            raise
        finally:
            del self._running[run_id]

    async def _mend(self, run_id: UUID, confirm: Confirm) -> Repaired:
        truth = await self._look(run_id, confirm)
        if truth is None:
            return Repaired.NOT_TERMINAL
        if truth.stored is not None:
            if truth.stored != truth.status:
                raise EvidenceMismatch(
                    f"The stored terminal Step says {truth.stored}, the Run says {truth.status}.", run=run_id
                )
            return Repaired.NOTHING
        bus = self._bus
        if bus.evidence is not None:
            bus.evidence.retry(run_id)
        bus.renew(run_id, tenant=truth.tenant, next_seq=truth.next_seq)
        bus.finish(run_id, truth.status, data=truth.data)
        try:
            await bus.settle(run_id)
        except EvidenceFailed:
            bus.discard(run_id)
            raise
        bus.close(run_id)
        log.info("evidence.repaired", run=str(run_id), status=truth.status)
        return Repaired.WRITTEN

    async def _look(self, run_id: UUID, confirm: Confirm) -> TerminalTruth | None:
        """Ask for the truth at a moment at which nothing of this Run was on its way to it."""
        looks = 0
        while True:
            try:
                # What is on its way may be the very Step that is missed.
                await self._bus.settle(run_id)
            except EvidenceFailed:
                log.info("evidence.repair_after_failure", run=str(run_id))
            before = self._bus.head(run_id)
            truth = await confirm()
            looks += 1
            if looks == _LOOKS or self._bus.head(run_id) == before:
                return truth
