"""One try of the sweep: a Vessel on its own copy of the database, killed at one statement, then started again."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit, urlunsplit

import httpx2
import psycopg

from tests.crash.app.fuse import BEFORE, SENT
from tests.crash.invariants import Wreck, broken_promises, judge
from tests.crash.scenario import Caller, Died
from tests.support.processes import Running
from tests.support.scratch import drop
from tests.support.waiting import eventually_sync

START_SECONDS = 90.0
# Two copies of one template at once are refused.
_COPYING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Kill:
    """Where one Vessel is to die: at its statement `at`, instead of sending it or once it is on its way."""

    at: int
    when: str

    @staticmethod
    def number(at: int) -> Kill:
        """Both ways come equally often, whatever the distance between the numbers that are tried."""
        return Kill(at, SENT if at.bit_count() % 2 else BEFORE)

    def __str__(self) -> str:
        return f"{self.when} {self.at}"


@dataclass(slots=True)
class Verdict:
    """What came of one try. `statement` is the last one of each Vessel that was killed, `statements` those it came to,
    `pools` how many of them by the name of the connection.

    `killed` is how many Vessels died; less than asked for means that the scenario ended first.
    """

    kills: tuple[Kill, ...]
    killed: int = 0
    statement: list[str] = field(default_factory=list[str])
    statements: int = 0
    pools: Counter[str] = field(default_factory=Counter[str])
    violations: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    def __str__(self) -> str:
        where = " then ".join(
            f"{kill} ({statement[:160]})" for kill, statement in zip(self.kills, self.statement, strict=False)
        )
        return "\n  ".join([f"killed {where or 'never'}", *self.violations])


class Template:
    """A migrated database that nobody uses, and a data folder with the token that belongs to it."""

    def __init__(self, folder: Path) -> None:
        self._server = os.environ["DATABASE_URL"]
        self._folder = folder
        self.name = f"lychd_crash_{uuid.uuid4().hex[:12]}"
        self.data = folder / "template"

    def make(self) -> None:
        """By a first `lychd up`, stopped when it listens."""
        self._maintain(f"create database {self.name}")
        vessel = Running(self._folder / "first", _words("up", self.data), cwd=None, **_settings(self._url(self.name)))
        try:
            vessel.wait_for_url()
            assert vessel.stop() == 0, vessel.err
        finally:
            vessel.kill()

    def drop(self) -> None:
        drop(self._server, self.name)

    @contextmanager
    def copy(self) -> Generator[tuple[str, Path]]:
        """The URL of a fresh copy, and a folder with a data folder in it; both are gone afterwards."""
        name = f"{self.name}_{uuid.uuid4().hex[:8]}"
        with _COPYING:
            self._maintain(f"create database {name} template {self.name}")
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            shutil.copytree(self.data, folder / "data")
            yield self._url(name), folder
        finally:
            drop(self._server, name)
            shutil.rmtree(folder)

    def _url(self, name: str) -> str:
        return urlunsplit(urlsplit(self._server)._replace(path=f"/{name}"))

    def _maintain(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(cast("LiteralString", statement))


def attempt(
    template: Template, *kills: Kill, before_judging: Callable[[psycopg.Connection[Any], Path], None] | None = None
) -> Verdict:
    """Let one Vessel after the other die as asked, then one live, and judge what is left.

    Args:
        before_judging: called with a connection and the folder of the try; to prove that the judge sees something.
    """
    began = time.monotonic()
    verdict = Verdict(kills)
    with template.copy() as (url, folder), psycopg.connect(url, autocommit=True, application_name="eyes") as eyes:
        caller, wrecks = Caller(eyes), list[Wreck]()
        for number, kill in enumerate(kills):
            log = folder / f"statements-{number}"
            how = {"CRASH_AT": str(kill.at), "CRASH_WHEN": kill.when, "CRASH_LOG": str(log)}
            code = _life(url, folder, caller, verdict, how)
            statements = log.read_text(errors="replace").splitlines()
            verdict.statements = len(statements)
            verdict.pools = Counter(line.split("\t")[1] for line in statements)
            if code != -SIGKILL:
                break
            verdict.killed += 1
            verdict.statement.append(statements[-1])
            _alone(eyes)
            wrecks.append(Wreck.of(eyes))
            verdict.violations += [f"after the death: {what}" for what in broken_promises(caller, wrecks[-1])]
        _life(url, folder, caller, verdict, {})
        _alone(eyes)
        if before_judging is not None:
            before_judging(eyes, folder)
        verdict.violations += judge(eyes, caller, wrecks, folder / "effects")
    verdict.seconds = time.monotonic() - began
    return verdict


def _life(url: str, folder: Path, caller: Caller, verdict: Verdict, how: dict[str, str]) -> int:
    """One Vessel from its start to its end. Returns its exit code; only one that is to be killed may die."""
    data = folder / "data"
    settings = {**_settings(url), "CRASH_EFFECTS": str(folder / "effects"), **how}
    vessel = Running(folder / "lives", _words("vessel", data), cwd=None, **settings)

    def alive() -> bool:
        return vessel.process.poll() is None

    try:
        try:
            _serve(vessel, caller)
        except Died:
            vessel.process.wait()
        code = vessel.stop() if alive() else vessel.process.returncode
        if code != 0 and not (how and code == -SIGKILL):
            verdict.violations.append(f"a Vessel ended with {code}: {vessel.err[-2000:]}")
        if not how:
            verdict.violations += [f"the log complains: {line}" for line in vessel.log if line["level"] in _BAD]
        return code
    finally:
        vessel.kill()


_BAD = frozenset({"error", "critical", "raw"})


def _serve(vessel: Running, caller: Caller) -> None:
    def ready() -> str | bool:
        return vessel.said("The Vessel listens on ") or vessel.process.poll() is not None

    url = eventually_sync(ready, START_SECONDS, 0.02)
    if not isinstance(url, str):
        raise Died
    headers = {"Authorization": f"Bearer {vessel.token}"}
    with httpx2.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as client:
        caller.work(client, lambda: vessel.process.poll() is None)


def _alone(eyes: psycopg.Connection[Any]) -> None:
    """Wait until the server has carried out, and given up, whatever a dead Vessel had sent."""
    others: LiteralString = """
        select count(*) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    """

    def nobody() -> bool:
        return eyes.execute(others).fetchone() == (0,)

    eventually_sync(nobody, 30)


def _words(command: str, data: Path) -> list[str]:
    return [command, "--bind", "127.0.0.1:0", "--data", str(data)]


def _settings(url: str) -> dict[str, str]:
    return {"DATABASE_URL": url, "LYCHD_APPS": "tests.crash.app", "LYCHD_RUNS_CONCURRENCY": "8"}
