"""A gate before an act that must be able to pause: before a claim, before a publication.

Closed means only that: the broker may still hand out work, which then waits here (MUT-2). Queue depth and worker counts
prove nothing about quiescence (MUT-4), and there is no soft stop to broadcast (MUT-3). Whoever closes the gate is its
holder, by name and reason; it opens when the last holder let go.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps the gate shut, why, and since when."""

    name: str
    reason: str
    since: datetime


class Gate:
    """Open unless somebody holds it shut. For one event loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._holders: dict[str, Holder] = {}
        self._open = asyncio.Event()
        self._open.set()

    def close(self, holder: str, reason: str) -> None:
        """Shut the gate in the name of `holder`; a second call only changes the reason."""
        since = self._holders[holder].since if holder in self._holders else datetime.now(UTC)
        self._holders[holder] = Holder(holder, reason, since)
        self._open.clear()

    def open(self, holder: str) -> None:
        """Let go; the gate opens when nobody else holds it. Letting go twice is harmless."""
        self._holders.pop(holder, None)
        if not self._holders:
            self._open.set()

    @property
    def is_open(self) -> bool:
        return not self._holders

    @property
    def holders(self) -> list[Holder]:
        """Who holds it shut now, in the order they came."""
        return list(self._holders.values())

    async def wait(self) -> None:
        """Return when the gate is open.

        Cancellation: leaves the gate as it is.
        """
        while self._holders:
            await self._open.wait()
