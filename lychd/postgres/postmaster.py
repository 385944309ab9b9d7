"""The server's process as the system shows it. A pid in a file proves nothing: the process may be dead, a zombie, or
somebody else's by now. Ends processes only through `signal_and_wait`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path


def recorded_pid(data: Path) -> int | None:
    """The pid in `postmaster.pid`, or None where there is no readable one."""
    try:
        first = (data / "postmaster.pid").read_text(errors="replace").split("\n", 1)[0]
    except OSError:
        return None
    return int(first) if first.strip().isdigit() and int(first) > 1 else None


def lives(pid: int, data: Path) -> bool:
    """Whether `pid` is a running server of the data folder `data`; a zombie and a stranger are not."""
    process = Path("/proc") / str(pid)
    if not Path("/proc/self/stat").exists():
        return _lives_by_ps(pid, data)
    try:
        state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        words = (process / "cmdline").read_bytes().split(b"\0")
    except (OSError, IndexError):
        return False
    if state in {"Z", "X"}:
        return False
    return os.fsencode(data) in words or _stands_in(process, data)


def disown(data: Path) -> None:
    """Make a stale `postmaster.pid` harmless without losing what it guards.

    PostgreSQL refuses to start while the pid in the file belongs to any process, be it a zombie or a stranger.
    Removing the file would also switch off its check for orphaned backends that still hold the shared memory. The
    pid of the server's own parent is the one that it ignores.
    """
    path = data / "postmaster.pid"
    try:
        # In place, because the file must keep its owner; no link followed, because the folder is not root's.
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with os.fdopen(handle, "r+", errors="replace") as file:
        rest = file.read().partition("\n")[2]
        file.seek(0)
        file.write(f"{os.getpid()}\n{rest}")
        file.truncate()


def signal_and_wait(pid: int, data: Path, number: signal.Signals, *, seconds: float) -> bool:
    """Send a signal to the server and wait until it is gone; False if it is still there, or not ours to signal."""
    deadline = time.monotonic() + seconds
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    while lives(pid, data):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _stands_in(process: Path, data: Path) -> bool:
    try:
        return (process / "cwd").resolve() == data
    except OSError:
        return False


def _lives_by_ps(pid: int, data: Path) -> bool:
    found = subprocess.run(  # noqa: S603 - fixed words and a number
        ["/bin/ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    ).stdout.strip()
    return bool(found) and not found.startswith("Z") and str(data) in found
