"""`lychd up` and `lychd vessel` as processes of their own, as a user starts them. Ends all that it started, by id."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any
from urllib.parse import urlsplit

import httpx2

from lychd.postgres import postmaster
from lychd.postgres.home import Home
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]
# Of the tests themselves; a user's shell has none of these.
LEFT_OUT = ("DATABASE_URL", "LYCHD_", "DJANGO_", "PYTEST_", "COV_")
START_SECONDS = 60.0
# A line for each poll would bury what a failed test has to say.
logging.getLogger("httpx2").setLevel(logging.WARNING)


def environment(**settings: str) -> dict[str, str]:
    """A user's environment with these settings, and the Patterns of `vessel_app`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    return {
        **clean,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LYCHD_LOG_FORMAT": "json",
        "LYCHD_APPS": "tests.support.vessel_app",
        **settings,
    }


class Process:
    """One command of the product: what it says, what it logs, how it ends."""

    def __init__(
        self,
        folder: Path,
        words: list[str],
        *,
        cwd: Path | None = None,
        python: Sequence[str] = (sys.executable,),
        **settings: str,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.out")))
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        self.data = Path(words[words.index("--data") + 1]) if "--data" in words else None
        self.began = time.monotonic()
        with self._out.open("w") as out, self._err.open("w") as err:
            command = [*python, "-W", "error::ResourceWarning", "-m", "lychd", *words]
            self.process = subprocess.Popen(
                command, cwd=cwd or folder, env=environment(**settings), stdout=out, stderr=err
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Lines of the log; what is none of it has the level `raw`."""
        lines = self.err.splitlines()
        return [json.loads(line) if line.startswith("{") else {"event": line, "level": "raw"} for line in lines]

    @property
    def complaints(self) -> list[dict[str, Any]]:
        return [line for line in self.log if line["level"] not in {"debug", "info"}]

    def said(self, start: str) -> str:
        """The rest of the first line on standard output that begins so; empty if there is none."""
        return next((line.removeprefix(start) for line in self.out.splitlines() if line.startswith(start)), "")

    def logged(self, event: str) -> dict[str, Any] | None:
        return next((line for line in self.log if line["event"] == event), None)

    def wait_for_url(self) -> str:
        def there() -> str:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.out}\n{self.err}"
            return self.said("The Vessel listens on ")

        return eventually_sync(there, START_SECONDS, 0.05)

    def signal(self, number: Signals) -> None:
        self.process.send_signal(number)

    def ended(self, within: float = 30.0) -> int:
        return self.process.wait(within)

    def stop(self, number: Signals = SIGTERM) -> int:
        self.signal(number)
        return self.ended()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Running(Process):
    """A Vessel that listens."""

    @property
    def url(self) -> str:
        return self.wait_for_url()

    @property
    def token(self) -> str:
        assert self.data is not None
        return (self.data / "operator.token").read_text().strip()

    def client(self) -> httpx2.Client:
        return httpx2.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=20, trust_env=False
        )

    def submit(self, pattern: str, value: Any = None) -> dict[str, Any]:
        with self.client() as client:
            answer = client.post("/api/v1/runs", json={"pattern": pattern, "input": value or {}})
            assert answer.status_code == 201, answer.text
            return answer.json()

    def run(self, run_id: str) -> dict[str, Any]:
        with self.client() as client:
            answer = client.get(f"/api/v1/runs/{run_id}")
            assert answer.status_code == 200, answer.text
            return answer.json()

    def wait_for(self, run_id: str, status: str) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            run = self.run(run_id)
            assert run["status"] == status or run["status"] not in {"done", "failed", "cancelled"}, run
            return run if run["status"] == status else None

        return eventually_sync(there, 20, 0.05)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @property
    def note(self) -> dict[str, Any] | None:
        """What stands in vessel.json; None when there is no such file."""
        assert self.data is not None
        try:
            return json.loads((self.data / "vessel.json").read_text())
        except FileNotFoundError:
            return None


@contextmanager
def command(
    folder: Path, *words: str, cwd: Path | None = None, python: Sequence[str] = (sys.executable,), **settings: str
) -> Generator[Process]:
    """Any command; killed at the end if it still lives."""
    process = Process(folder, list(words), cwd=cwd, python=python, **settings)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def vessel(
    folder: Path, *words: str, cwd: Path | None = None, python: Sequence[str] = (sys.executable,), **settings: str
) -> Generator[Running]:
    """`lychd up` or `lychd vessel`; killed at the end if it still lives, its embedded server too."""
    process = Running(folder, list(words), cwd=cwd, python=python, **settings)
    try:
        yield process
    finally:
        process.kill()
        if process.data is not None:
            kill_server(process.data)


def server_pid(data: Path) -> int | None:
    """The process of the embedded server of a data folder, if it lives."""
    home = Home(data.resolve())
    pid = postmaster.recorded_pid(home.data)
    return pid if pid is not None and postmaster.lives(pid, home.data) else None


def kill_server(data: Path) -> None:
    """End the embedded server of a data folder as a loss of power would."""
    pid = server_pid(data)
    if pid is not None:
        os.kill(pid, SIGKILL)
        eventually_sync(lambda: server_pid(data) is None, 20)
