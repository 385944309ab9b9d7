"""The report of a recovery: what was done, which Runs could not be judged, and why. Kept on the boot for doctor."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import structlog

from runs.errors import Degraded, LychdError, first_line

log = structlog.get_logger(__name__)

# Runs that a report names; the others are counted.
MOST_NAMED = 200
PROGRESS_SECONDS = 2.0


class RecoveryDegraded(Degraded):
    """Recovery could not judge every Run that an earlier Vessel left open."""

    code, title = "recovery_degraded", "Recovery degraded"


@dataclass(slots=True)
class Report:
    """One recovery as it goes on. `counts` by what was done, `degraded` by Run with the reason."""

    began: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter[str])
    degraded: list[tuple[uuid.UUID | None, str]] = field(default_factory=list[tuple[uuid.UUID | None, str]])
    more: int = 0
    notes: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    _told: float = 0.0
    _named: set[uuid.UUID] = field(default_factory=set[uuid.UUID])

    def degrade(self, run_id: uuid.UUID | None, error: object) -> None:
        """Note that a Run, or with None the pass itself, could not be judged."""
        detail = error.detail if isinstance(error, LychdError) else first_line(error)
        if isinstance(error, Exception) and not isinstance(error, LychdError):
            detail = f"{type(error).__name__}: {detail}"
        if run_id is not None and run_id in self._named:
            # The same trouble, met again by a later part of the pass.
            return
        if run_id is not None:
            self._named.add(run_id)
        log.error("recovery.degraded", run=str(run_id) if run_id else None, reason=detail)
        if len(self.degraded) < MOST_NAMED:
            self.degraded.append((run_id, detail))
        else:
            self.more += 1

    def names(self, run_id: uuid.UUID) -> bool:
        """Whether this Run could not be judged."""
        return run_id in self._named

    async def progress(self, phase: str, done: int) -> None:
        """Say now and then how far a phase is."""
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            log.info("recovery.progress", phase=phase, done=done, seconds=round(now - self.began, 1))

    def close(self) -> None:
        """The pass is over."""
        self.seconds = round(time.monotonic() - self.began, 3)
        log.info(
            "recovery.ended",
            seconds=self.seconds,
            degraded=len(self.degraded) + self.more,
            **{key: count for key, count in sorted(self.counts.items()) if count},
        )

    @property
    def complete(self) -> bool:
        """Whether every Run was judged."""
        return not self.degraded

    def sentence(self) -> str:
        """Why it is degraded, naming the first Runs."""
        total = len(self.degraded) + self.more
        named = "; ".join(f"{run_id or 'the pass'}: {reason}" for run_id, reason in self.degraded[:3])
        return (
            f"Recovery could not judge {total} {'Run' if total == 1 else 'Runs'} ({named}). "
            "`lychd doctor` says what to do."
        )

    def to_json(self) -> dict[str, Any]:
        """The form that is kept on the boot."""
        return {
            "complete": self.complete,
            "reason": None if self.complete else self.sentence(),
            "seconds": self.seconds,
            "counts": dict(sorted(self.counts.items())),
            "degraded": [
                {"run": str(run_id) if run_id else None, "reason": reason} for run_id, reason in self.degraded
            ],
            "degraded_more": self.more,
            "notes": self.notes,
        }
