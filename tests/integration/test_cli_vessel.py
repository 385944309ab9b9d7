"""The client commands against a real Vessel: a process of its own, real PostgreSQL, real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import lychd_here
from tests.support.waiting import eventually_sync

pytest_plugins = ["tests.support.vessel_fixtures"]

ROOT = Path(__file__).parents[2]

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
        if words[0] not in {"doctor", "sigil"}:
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


@pytest.fixture
def home(vessel_url: str, tmp_path: Path) -> Home:
    return Home(tmp_path, vessel_url)


def lines_of(text: str) -> list[Json]:
    return [json.loads(line) for line in text.splitlines()]


def events_of(lines: list[Json]) -> list[Json]:
    return [line for line in lines if line["type"] == "event"]


def test_everything_that_a_user_does_first(home: Home) -> None:
    with home.vessel() as vessel:
        assert {(one["key"], one["revision"]) for one in home.json("patterns")["items"]} >= {("talk", "1")}
        code, out, _ = home.lychd("patterns", "talk")
        assert (code, "└─ → say" in out, '"lines"' in out) == (0, True, True)

        code, out, err = home.lychd("submit", "talk", "--input", '{"lines": 4}', "--follow")
        assert (code, err) == (0, "")
        said = [" ".join(line.split()[1:]) for line in out.splitlines()]
        for part in ("begin hello \\x1b[31mred\\x1b[0m", "say line 0 number=0", "say 4 of 4 (100%)", "run done"):
            assert part in said
        assert said.index("begin entered") < said.index("say line 3 number=3") < said.index("run done")

        code, out, err = home.lychd("submit", "talk", "--input", '{"fail": true}', "--follow", "--json")
        assert (code, err) == (1, "")
        failed = lines_of(out)[-1]["run"]
        assert (failed["status"], failed["error"]["node"], failed["source"]) == ("failed", "say", "cli")
        assert home.json("runs", "--status", "failed")["items"] == [failed]
        assert home.json("show", failed["id"]) == failed

        first = home.json("submit", "talk", "--key", "k")
        assert home.json("submit", "talk", "--key", "k")["id"] == first["id"]
        code, out, err = home.lychd("submit", "talk", "--key", "k", "--priority", "7")
        assert (code, out, err.count("\n")) == (4, "", 1)
        assert "key" in err

        code, _, err = home.lychd("submit", "talk", "--input", '{"lines": -1}')
        assert (code, "/lines" in err) == (4, True)
        code, _, err = home.lychd("submit", "tolk")
        assert (code, "did you mean 'talk'?" in err) == (4, True)
        code, _, err = home.lychd("show", "01919191-0000-7000-8000-000000000001")
        assert (code, err) == (4, "lychd: There is no such Run.\n")

        report = home.json("doctor")
        assert report["ok"]
        assert report["facts"]["vessel"]["pid"] == vessel.pid
        vessel.send_signal(signal.SIGTERM)
        assert vessel.wait(60) == 0
    code, _, err = home.lychd("runs")
    assert (code, "No Vessel is running" in err) == (4, True)


@pytest.mark.contract("BYD-12")
def test_live_or_late_every_stored_event_comes_once_and_in_order(home: Home) -> None:
    with home.vessel():
        code, out, _ = home.lychd("submit", "talk", "--input", '{"lines": 900, "tokens": 2}', "--follow", "--json")
        assert code == 0
        live = lines_of(out)
        run = live[0]["run"]["id"]
        stored = home.json("show", run, "--steps")
        assert stored["gaps"] == []
        steps = [{"type": "event", **step} for step in stored["steps"]]
        assert sum(step["kind"] == "log" for step in steps) == 901
        assert [line for line in events_of(live) if line["kind"] != "token"] == steps

        code, out, _ = home.lychd("follow", run, "--json")
        assert (code, events_of(lines_of(out))) == (0, steps)
        assert lines_of(out)[-1] == {
            "type": "run",
            "run": {k: v for k, v in stored.items() if k not in {"steps", "gaps"}},
        }


@pytest.mark.contract("BYD-12")
def test_a_follower_outlives_a_restart_of_the_vessel_and_misses_nothing(home: Home) -> None:
    go = home.data / "go"
    asked = json.dumps({"lines": 40, "wait_for": str(go)})
    with home.vessel() as first:
        run = home.json("submit", "talk", "--input", asked)["id"]
        follower = home.start("follow", run, "--json")
        assert follower.stdout is not None
        told: list[Json] = []
        while not (told and told[-1].get("data", {}).get("message") == "line 20"):
            told.append(json.loads(follower.stdout.readline()))
        first.send_signal(signal.SIGTERM)
        # The stream ends first, then the Vessel waits for the hop; nobody hears the rest of it live.
        while told[-1]["type"] != "lost":
            told.append(json.loads(follower.stdout.readline()))
        go.touch()
        assert first.wait(60) == 0
    with home.vessel():
        out, err = follower.communicate(timeout=60)
        told += lines_of(out)
        assert (follower.returncode, err) == (0, "")
        steps = [{"type": "event", **step} for step in home.json("show", run, "--steps")["steps"]]
    assert events_of(told) == steps
    assert [line["type"] for line in told[-2:]] == ["end", "run"]
    assert told[-1]["run"]["output"] == {"lines": 40}


def test_a_vessel_that_was_killed_is_told_by_clients_and_by_the_doctor(home: Home) -> None:
    with home.vessel() as vessel:
        wait_for = str(home.data / "never")
        run = home.json("submit", "talk", "--input", json.dumps({"wait_for": wait_for}))["id"]
        eventually_sync(lambda: home.json("show", run)["status"] == "running", within=30)
        vessel.kill()
        vessel.wait()
    code, _, err = home.lychd("runs")
    assert (code, f"(pid {vessel.pid}) is gone" in err) == (4, True)

    def released() -> Json | None:
        # The server needs a moment to notice that the Vessel's connections are dead.
        code, out, _ = home.lychd("doctor", "--json")
        report = json.loads(out)
        return report if code == 1 and not report["facts"]["vessel"]["running"] else None

    report = eventually_sync(released, within=30)
    (finding,) = report["findings"]
    assert (finding["check"], finding["runs"]) == ("orphaned", [run])


def test_a_narrow_sigil_is_told_what_it_lacks(home: Home) -> None:
    with home.vessel():
        code, out, _ = home.lychd("sigil", "create", "reader", "--scope", "runs:read")
        assert code == 0
        home.token = out.strip()
        assert home.json("runs") == {"items": [], "next": None}
        code, _, err = home.lychd("submit", "talk")
        assert (code, "runs:submit" in err) == (4, True)
        assert home.lychd("sigil", "revoke", "reader")[0] == 0
        code, _, err = home.lychd("runs")
        assert (code, "does not accept the token in LYCHD_TOKEN" in err) == (4, True)
