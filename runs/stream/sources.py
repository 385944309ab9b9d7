"""What a stream needs of the Vessel and of its own connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from runs.events.bus import RunEventBus
from runs.reads import Reads
from runs.waits import WaitKinds

# Returns when the connection can take more, False when it is gone (ruling 31).
type Writable = Callable[[], Awaitable[bool]]


class Sources(Protocol):
    """The parts of a Vessel that streams read from."""

    @property
    def reads(self) -> Reads:
        """Durable truth."""
        ...

    @property
    def bus(self) -> RunEventBus:
        """What happens now."""
        ...

    @property
    def waits(self) -> WaitKinds:
        """What Runs can wait for."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the Vessel goes down: streams that end then say nothing about their Runs."""
        ...


async def always() -> bool:
    """The `Writable` of a host that does not tell."""
    return True
