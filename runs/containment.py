"""Containment: nothing may act for a Run any more before the Run is said to have ended (SET-8, CAN-3, CAN-6).

Every authority is attempted, each within its own time, whatever became of the others. What could not be proved is an
uncertainty, never a success: the Run then stays unfinished.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass

import psycopg
import structlog

from runs.backoff import delays
from runs.errors import Degraded, LychdError, first_line
from runs.ledger.contain import Guard, contain, note_containment
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost
from runs.seams import seam
from runs.waits import WaitKind, WaitKinds

log = structlog.get_logger(__name__)

# Seconds for one authority (CAN-16), and how often a failing hop asks (SET-8).
AUTHORITY_SECONDS = 10.0
TRIES = 3


class ContainmentUncertain(Degraded):
    """It is not proved that nothing acts for the Run any more."""

    code, title = "containment_uncertain", "Containment uncertain"


@dataclass(frozen=True, slots=True)
class Containment:
    """Sweeps the authorities of one boot: every kind of wait that is installed."""

    ledger: Ledger
    waits: WaitKinds

    async def sweep(self, guard: Guard, principal: str) -> Lost | None:
        """Withdraw and halt everything that may act for the Run, once.

        Returns:
            None when all is contained; `Lost` when the guard does not hold and nothing was touched.

        Raises:
            ContainmentUncertain: names each authority that did not acknowledge.

        Cancellation: propagates; the authorities may be asked again.
        """
        failures: list[str] = []
        for kind in self.waits:
            try:
                async with asyncio.timeout(AUTHORITY_SECONDS):
                    outcome = await self.ledger.script(
                        ScriptFactory(contain, guard, kind.contain, principal),
                    )
                    if isinstance(outcome, Lost):
                        return outcome
                    await self._halt(kind, guard.run_id, principal)
            except Exception as error:  # noqa: BLE001 - an authority may fail in any way; all of them are uncertainty
                failures.append(f"{kind.name}: {_told(error)}")
        if failures:
            raise ContainmentUncertain(f"Not contained: {'; '.join(failures)}.", run=str(guard.run_id))
        return None

    async def before_failure(self, guard: Guard, principal: str) -> Lost | None:
        """`sweep` for a hop that failed, repeated over transient trouble (SET-8).

        Raises:
            ContainmentUncertain: after the last try; the reason is kept on the Run (SET-9, BYD-6).
        """
        pauses = delays()
        for left in range(TRIES - 1, -1, -1):
            try:
                return await self.sweep(guard, principal)
            except ContainmentUncertain as error:
                log.warning("run.not_contained", run=str(guard.run_id), hop=guard.seq, error=error.detail, left=left)
                if not left:
                    await self.note(guard, error.detail)
                    raise
                await asyncio.sleep(next(pauses))
        raise ContainmentUncertain

    async def note(self, guard: Guard, error: str | None) -> bool:
        """Keep on the Run, for people, what is not contained; losing the note loses nothing else.

        Returns:
            Whether that is news.
        """
        try:
            return await self.ledger.script(ScriptFactory(note_containment, guard.run_id, guard.seq, error))
        except (LychdError, psycopg.Error) as failed:
            log.warning("run.containment_not_noted", run=str(guard.run_id), error=first_line(failed))
            return False

    async def _halt(self, kind: WaitKind, run_id: uuid.UUID, principal: str) -> None:
        await seam(f"contain.{kind.name}")
        task = asyncio.current_task()
        asked = task.cancelling() if task is not None else 0
        try:
            await kind.halt(run_id, principal)
        except asyncio.CancelledError:
            if task is not None and task.cancelling() > asked:
                raise
            # It was not we who were cancelled: the authority gave up, and nobody knows what it left behind.
            raise ContainmentUncertain(f"The {kind.name} authority was cancelled.") from None


def _told(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return str(error) or f"no acknowledgement within {AUTHORITY_SECONDS:g} s"
    return error.detail if isinstance(error, LychdError) else f"{type(error).__name__}: {first_line(error)}"
