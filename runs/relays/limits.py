"""Sets the counts of back-pressure right from the database, since other surfaces admit and Runs end elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from runs import reads as rows
from runs.limits import Limits


@dataclass(slots=True)
class LimitsRelay:
    """Counts queued and unfinished Runs, bounded by what the limits care about."""

    reads: rows.Reads
    limits: Limits
    interval: float = 15.0
    name: str = "limits"

    async def tick(self) -> bool:
        """Count once."""
        queued, live = await rows.live_counts(self.reads, cap=self.limits.max_queued + 1)
        self.limits.set(queued, live)
        return False
