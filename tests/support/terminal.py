"""A command of the product at a terminal of its own: what is on the screen, and what a person types."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]


class Terminal:
    """The screen without colours and cursor moves, and the keyboard."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.master, self.process = master, process
        self.screen = ""

    def sees(self, text: str) -> None:
        """Wait until this is on the screen."""

        def there() -> bool:
            self._read()
            return text in self.screen

        eventually_sync(there, 30)

    def types(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\n")

    def ended(self) -> int:
        def over() -> bool:
            self._read()
            return self.process.poll() is not None

        eventually_sync(over, 30)
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        os.set_blocking(self.master, False)
        try:
            while part := os.read(self.master, 65536):
                self.screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part.decode("utf-8", "replace"))
        except OSError:
            return


@contextmanager
def terminal(env: dict[str, str], *words: str) -> Iterator[Terminal]:
    """`lychd WORDS` with a person in front of it; killed at the end if it still runs."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lychd", *words],
        cwd=ROOT,
        env=env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)
