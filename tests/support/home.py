"""A whole installation for tests of commands: a data folder, its database, a Vessel as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.commands import lychd_here
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]
# Commands that use the database themselves: in this process they would meet the tests' own.
OF_THE_DATABASE = frozenset({"doctor", "sigil", "quarantine"})

type Json = dict[str, Any]


@dataclass
class Home:
    """A data folder with the database that belongs to it."""

    data: Path
    database_url: str
    token: str = ""

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LYCHD_")}
        return {
            **kept,
            "DATABASE_URL": self.database_url,
            "LYCHD_DATA": str(self.data),
            "LYCHD_APPS": "tests.support.talk",
            "LYCHD_LOG_FORMAT": "json",
        }

    def start(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        """The console script as a process."""
        command = [sys.executable, "-m", "lychd", *words]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how
        )

    def lychd(self, *words: str) -> tuple[int, str, str]:
        """Run a command to its end: code, output, trouble. Clients run in this process, which is quicker."""
        if words[0] not in OF_THE_DATABASE:
            words = (*words, "--data", str(self.data))
            ended = lychd_here(*words, env={"LYCHD_DATA": str(self.data), "LYCHD_TOKEN": self.token})
            return ended.returncode, ended.stdout, ended.stderr
        with self.start(*words) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def json(self, *words: str) -> Any:
        """The one document of a command that must succeed."""
        code, out, err = self.lychd(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    @contextmanager
    def vessel(self) -> Generator[subprocess.Popen[bytes]]:
        """A Vessel that serves, killed at the end if it still lives."""
        note = self.data / "vessel.json"
        with (self.data / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "lychd", "up", "--bind", "127.0.0.1:0"],
                cwd=ROOT,
                env=self.env,
                stdout=log,
                stderr=log,
            )
        try:
            eventually_sync(lambda: _pid(note) == process.pid or process.poll() is not None, within=60)
            assert process.poll() is None, (self.data / "log").read_text()
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def _pid(note: Path) -> int | None:
    try:
        return int(json.loads(note.read_text())["pid"])
    except (OSError, ValueError):
        return None
