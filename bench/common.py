"""What the parts share: percentiles, a Vessel in this process, a Vessel in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lychd.graph import Vessel
from runs.authority import Caller, Scope, Surface

CALLER = Caller("default", "bench", frozenset(Scope), Surface.CODE)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50 and p99 of a list of seconds."""
    ordered = sorted(seconds)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]}


@asynccontextmanager
async def vessel_here() -> AsyncGenerator[Vessel]:
    """A Vessel on this process's loop, without its HTTP side."""
    from django.conf import settings

    from lychd import lifespan

    stack = AsyncExitStack()
    vessel = await lifespan.start(settings.CONFIG, settings.DATABASE_URL, _fail, stack)
    try:
        yield vessel
    finally:
        await lifespan.shut_down(vessel, stack)


def _fail(code: int, reason: str) -> None:
    raise SystemExit(f"{code}: {reason}")


@dataclass(frozen=True)
class Address:
    """A running Vessel process."""

    url: str
    token: str
    pid: int


@contextmanager
def vessel_process() -> Generator[Address]:
    """`lychd up` as a process, on a free port, on the database and data folder of the environment."""
    data = Path(os.environ["LYCHD_DATA"])
    process = subprocess.Popen(
        [sys.executable, "-m", "lychd", "up", "--bind", "127.0.0.1:0", "--data", str(data)],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        note = data / "vessel.json"
        deadline = time.monotonic() + 60
        while not note.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the Vessel did not start")
            time.sleep(0.05)
        found = json.loads(note.read_text())
        yield Address(found["url"], (data / "operator.token").read_text().strip(), process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def resident(pid: int | str = "self") -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
