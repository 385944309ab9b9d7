"""Back-pressure: how much unfinished work may be there before submissions are answered 429 (ruling 21).

Counts live in the one process that admits, so that asking and taking a place are one step on its loop; they are set
right from the database now and then, since other surfaces admit and Runs end elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runs.errors import TooMany


@dataclass(slots=True)
class Limits:
    """Counts of queued Runs and of unfinished Runs by tenant, with their bounds."""

    max_queued: int
    max_live_per_tenant: int
    queued: int = 0
    live: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, tenant: str) -> None:
        """Count one more Run of the tenant.

        Raises:
            TooMany: the bound is reached; nothing was counted.
        """
        if self.queued >= self.max_queued:
            raise TooMany(f"{self.queued:,} Runs are queued already; the bound is {self.max_queued:,}.", retry_after=5)
        live = self.live.get(tenant, 0)
        if live >= self.max_live_per_tenant:
            raise TooMany(
                f"{live:,} Runs of this tenant are unfinished; the bound is {self.max_live_per_tenant:,}.",
                retry_after=10,
            )
        self.queued += 1
        self.live[tenant] = live + 1

    def give_back(self, tenant: str) -> None:
        """Take back a count whose admission did not happen."""
        self.queued = max(0, self.queued - 1)
        self.live[tenant] = max(0, self.live.get(tenant, 0) - 1)

    def returned(self) -> None:
        """A parked Run is queued again; it was unfinished all the time."""
        self.queued += 1

    def started(self) -> None:
        """A queued Run was claimed."""
        self.queued = max(0, self.queued - 1)

    def ended(self, tenant: str) -> None:
        """A Run became terminal."""
        self.live[tenant] = max(0, self.live.get(tenant, 0) - 1)

    def set(self, queued: int, live: dict[str, int]) -> None:
        """Set the counts right from the database."""
        self.queued = queued
        self.live = dict(live)
