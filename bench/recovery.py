"""(h) Starting after a crash: 100,000 queued or parked Runs, a million ended ones; and what an idle Vessel costs.

In a database of its own, with the Vessel as a process of its own: its memory, its log and its CPU are what is measured,
each at the end of its recovery and over those of a start on an empty database.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench import ballast, patterns

IDLE_SECONDS = 20.0
# What a Vessel does in its first moments is no idling.
SETTLE_SECONDS = 3.0
PATIENCE = 900.0


def measure(live: int, ended: int) -> dict[str, Any]:
    """Figures of three starts: of an empty database, of what a crash left, and of the same with nothing to repair."""
    with _database() as conninfo:
        # The one that makes the tables takes more memory than any later one.
        with _vessel(conninfo) as vessel:
            vessel.await_event("vessel.ready")
        with _vessel(conninfo) as vessel:
            vessel.await_event("recovery.ended")
            base, start_cpu = vessel.peak(), vessel.cpu()
            vessel.await_event("vessel.ready")
            idle = vessel.idle(conninfo)
        ballast.fill(conninfo, live=live, ended=ended, work=patterns.three, gate=patterns.gate)
        with _vessel(conninfo) as vessel:
            report = vessel.await_event("recovery.ended")
            peak, cpu = vessel.peak(), vessel.cpu() - start_cpu
            progress = [line for line in vessel.events() if line["event"] == "recovery.progress"]
        ballast.unqueue(conninfo)
        with _vessel(conninfo) as vessel:
            again = vessel.await_event("recovery.ended")
            vessel.await_event("vessel.ready")
            beside = vessel.idle(conninfo)
    wanted = ballast.expected(live, ended)
    return {
        "live": live,
        "ended": ended,
        "seconds": report["seconds"],
        "cpu_seconds": cpu,
        "mb": peak - base,
        "base_mb": base,
        "progress_lines": len(progress),
        "phases": _phases(progress, report),
        "counts": {name: report.get(name, 0) for name in wanted},
        "wrong": {name: [report.get(name, 0), count] for name, count in wanted.items() if report.get(name, 0) != count},
        "degraded": report["degraded"],
        "again_seconds": again["seconds"],
        "idle": idle,
        "idle_full": beside,
    }


def _phases(progress: list[dict[str, Any]], report: dict[str, Any]) -> dict[str, float]:
    """When each phase was last heard of, in seconds from the start."""
    heard = {str(line["phase"]): float(line["seconds"]) for line in progress}
    return {**heard, "end": report["seconds"]}


@contextmanager
def _database() -> Generator[str]:
    """An empty database on the server of the environment, dropped afterwards."""
    server, name = os.environ["DATABASE_URL"], f"lychd_bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        try:
            yield make_conninfo(server, dbname=name)
        finally:
            connection.execute(f"drop database {name} with (force)".encode())


@dataclass(frozen=True)
class Process:
    """A Vessel process and its log."""

    pid: int
    log: Path
    process: subprocess.Popen[bytes]

    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def await_event(self, name: str) -> dict[str, Any]:
        """Wait until it logs this."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for line in self.events():
                if line["event"] == name:
                    return line
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.stderr.write(self.log.read_text()[-4000:])
                raise SystemExit(f"the Vessel never said {name}")
            time.sleep(0.02)

    def peak(self) -> float:
        """The most memory it ever had, in MB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        return _cpu(self.pid)

    def idle(self, conninfo: str) -> dict[str, float]:
        """Share of a core that it uses while nothing happens, and that the database uses for it where that is seen."""
        time.sleep(SETTLE_SECONDS)
        database = _backends(conninfo)
        began, before, theirs = time.monotonic(), self.cpu(), sum(map(_cpu, database))
        time.sleep(IDLE_SECONDS)
        seconds = time.monotonic() - began
        return {
            "vessel": (self.cpu() - before) / seconds,
            "database": (sum(map(_cpu, database)) - theirs) / seconds,
        }


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _backends(conninfo: str) -> list[int]:
    """The server's processes for this database, where they run on this machine."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        rows = connection.execute(
            "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
            "and backend_type = 'client backend'"
        ).fetchall()
    found = [Path(f"/proc/{pid}") for (pid,) in rows]
    return [int(path.name) for path in found if path.exists() and b"postgres" in (path / "cmdline").read_bytes()]


@contextmanager
def _vessel(conninfo: str) -> Generator[Process]:
    """`lychd up` on this database; killed at the end, since what it still does is not measured."""
    found = conninfo_to_dict(conninfo)
    url = f"postgresql:///{found.pop('dbname')}?" + "&".join(f"{name}={value}" for name, value in found.items())
    with tempfile.TemporaryDirectory() as data:
        log = Path(data) / "log"
        environment = {
            **os.environ,
            "LYCHD_DATA": data,
            "DATABASE_URL": url,
            "LYCHD_LOG_LEVEL": "info",
            "LYCHD_LOG_FORMAT": "json",
        }
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "lychd", "up", "--bind", "127.0.0.1:0", "--data", data],
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
        try:
            yield Process(process.pid, log, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
