"""How work in a thread stays stoppable and audible: it looks whether to stop, and says now and then how far it is."""

from __future__ import annotations

import time
from typing import Protocol

from runs.errors import NodeFailed

# Each progress is stored as evidence, so a work of hours must not speak at every step of it. Seconds.
INTERVAL = 0.25


class Stopped(NodeFailed):
    """The Run was asked to stop."""

    code, title = "stopped", "Stopped"


class Listener(Protocol):
    """What of a context such work needs."""

    @property
    def cancelled(self) -> bool: ...

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...


class Pace:
    """Of one piece of work; for one thread."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._next = time.monotonic() + INTERVAL

    def check(self) -> None:
        """Go on, unless the Run is asked to stop.

        Raises:
            Stopped: it is.
        """
        if self._listener.cancelled:
            raise Stopped

    def tell(self, done: float, total: float | None, message: str) -> None:
        """Say how far the work is, unless it was said just now; the end is always said."""
        now = time.monotonic()
        if now >= self._next or done == total:
            self._next = now + INTERVAL
            self._listener.progress(done, total, message)
