"""Back-pressure of one connection: whether its transport can take more, and a way to wait until it can.

Daphne's `send` never waits, so a client that does not read would be given frames without bound. A `Writable`
stands as push producer on the transport, which pauses it when the send buffer is full. It never drops and
never writes anything itself. (Rulings 31.)
"""

from __future__ import annotations

import asyncio
import time

MOST_UNSENT = 1024 * 1024
"""Bytes that an application which never waits may put on a full transport before its `send` waits."""


class Writable:
    """What Twisted calls a push producer; the spelling of three methods is Twisted's."""

    def __init__(self, *, paused: bool = False) -> None:
        self._free = asyncio.Event()
        self._gone = False
        self._unsent = 0
        self._paused_at = 0.0
        self._free.set()
        if paused:
            self.pauseProducing()

    @property
    def gone(self) -> bool:
        """Whether the connection has ended."""
        return self._gone

    @property
    def stalled(self) -> float:
        """Seconds for which the transport has taken nothing; 0 while it can take more."""
        return 0.0 if self._free.is_set() else time.monotonic() - self._paused_at

    async def wait(self) -> bool:
        """Wait until the transport can take more.

        Returns:
            True when it can; False, at once, when the connection is gone.

        Cancellation: propagates at once, nothing is lost.
        """
        await self._free.wait()
        return not self._gone

    async def room(self) -> None:
        """Wait only where more than `MOST_UNSENT` bytes went onto a full transport already."""
        if self._unsent > MOST_UNSENT:
            await self._free.wait()

    def sent(self, size: int) -> None:
        """Count bytes that were given to the transport."""
        if not self._free.is_set():
            self._unsent += size

    def close(self) -> None:
        """The connection is gone: everyone who waits goes on."""
        self._gone = True
        self._unsent = 0
        self._free.set()

    def pauseProducing(self) -> None:  # noqa: N802
        """The transport's send buffer is full."""
        if self._free.is_set() and not self._gone:
            self._paused_at = time.monotonic()
            self._free.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        """The transport has sent what it held."""
        self._unsent = 0
        self._free.set()

    def stopProducing(self) -> None:  # noqa: N802
        """The transport is gone."""
        self.close()
