"""Keeps the relays alive for the life of the process: who ends early is started again, ever more patiently (RLY-5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import structlog

from runs.backoff import delays

log = structlog.get_logger(__name__)

# A relay that lived this long had a clean start: its next restart is quick again. Seconds.
STEADY = 60.0


class Relay(Protocol):
    """A loop that repairs what a crash or a lost answer left open."""

    @property
    def name(self) -> str: ...

    @property
    def interval(self) -> float:
        """Seconds between two passes."""
        ...

    async def tick(self) -> bool:
        """Do one bounded page. Returns whether there is more to do at once."""
        ...


@dataclass(slots=True)
class RelayStatus:
    """What a relay did, for readiness and metrics. Times are of the process's monotonic clock."""

    name: str
    interval: float
    passes: int = 0
    failures: int = 0
    restarts: int = 0
    last_pass: float | None = None
    last_error: str | None = None


@dataclass(slots=True)
class Supervisor:
    """Runs relays until stopped.

    Args:
        sleep: waits between passes and restarts, in seconds; tests give their own.
    """

    relays: list[Relay]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    status: dict[str, RelayStatus] = field(default_factory=dict[str, RelayStatus])
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def start(self) -> None:
        """Start every relay in a task that this supervisor owns."""
        for relay in self.relays:
            self.status[relay.name] = RelayStatus(relay.name, relay.interval)
            self._tasks.append(asyncio.get_running_loop().create_task(self._keep(relay), name=f"relay {relay.name}"))

    async def stop(self, timeout: float = 5.0) -> None:
        """Cancel all relays and prove that they ended.

        Raises:
            TimeoutError: names the relays that did not end in time; what they use must then stay open (SHUT-2).
        """
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            return
        _, alive = await asyncio.wait(self._tasks, timeout=timeout)
        if alive:
            names = ", ".join(sorted(task.get_name() for task in alive))
            raise TimeoutError(f"These relays did not stop within {timeout:g} s: {names}.")
        self._tasks.clear()

    @property
    def alive(self) -> list[asyncio.Task[None]]:
        """Tasks that have not ended."""
        return [task for task in self._tasks if not task.done()]

    async def _keep(self, relay: Relay) -> NoReturn:
        pauses = delays()
        status = self.status[relay.name]
        while True:
            began = time.monotonic()
            try:
                await self._loop(relay, status)
            except asyncio.CancelledError as error:
                # Only what the relay waited for was cancelled: it ended early, no more.
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
            except Exception as error:  # noqa: BLE001 - recorded, logged, and the relay is started again
                reason = f"{type(error).__name__}: {error}"
            _end_if_told()
            status.failures += 1
            status.last_error = reason
            if time.monotonic() - began > STEADY:
                pauses = delays()
            pause = next(pauses)
            status.restarts += 1
            log.warning("relay.restarting", relay=relay.name, reason=reason, delay=pause)
            await self.sleep(pause)

    async def _loop(self, relay: Relay, status: RelayStatus) -> NoReturn:
        while True:
            more = await relay.tick()
            _end_if_told()
            status.passes += 1
            status.last_pass = time.monotonic()
            status.last_error = None
            if not more:
                await self.sleep(relay.interval)


def _end_if_told() -> None:
    """A pass that turned the supervisor's cancellation into something else has still been told to end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
