"""The server's log file: read for reasons, kept small. Never interprets beyond the last lines."""

from __future__ import annotations

import threading
from pathlib import Path

LARGEST = 8 * 1024 * 1024
EVERY_SECONDS = 30.0


def size(log: Path) -> int:
    """Bytes in the log now; 0 where there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def since(log: Path, mark: int, *, most: int = 65536) -> list[str]:
    """The lines written after the position `mark`, at most the last `most` bytes of them."""
    try:
        with log.open("rb") as file:
            file.seek(max(mark, size(log) - most))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def trim(log: Path, largest: int = LARGEST) -> bool:
    """Cut the log to its last half when it is larger than `largest` bytes; true if it was cut.

    In place: the server appends to the open file, so its next line follows what is kept. A line written in
    between may be lost.
    """
    try:
        if size(log) <= largest:
            return False
        with log.open("r+b") as file:
            file.seek(-(largest // 2), 2)
            file.readline()
            kept = file.read()
            file.seek(0)
            file.write(kept)
            file.truncate()
    except OSError:
        return False  # a log that cannot be cut is no reason to lose the database
    return True


class Keeper:
    """Trims the log from time to time in a thread of its own, until closed."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="postgres-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it."""
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            trim(self._log)
