"""A question outlives the process that asked it: park, SIGKILL the Vessel, start another one, answer, done."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from consents.decisions import Vote, decide
from lychd.postgres import urls
from runs.ledger.ledger import Ledger, ScriptFactory
from tests.support.asking import a_voter
from tests.support.terminal import terminal
from tests.support.waiting import eventually_sync

pytest_plugins = ["tests.support.vessel_fixtures"]

ROOT = Path(__file__).parents[2]


def environment(url: str, data: Path) -> dict[str, str]:
    """A user's environment with this database, and the Pattern that asks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LYCHD_", "DJANGO_", "PYTEST_"))}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "DATABASE_URL": url,
        "LYCHD_DATA": str(data),
        "LYCHD_APPS": "tests.support.asking_app",
    }


@dataclass
class Up:
    """A Vessel as a process of its own."""

    process: subprocess.Popen[bytes]
    data: Path
    database: str

    def client(self) -> httpx2.Client:
        token = (self.data / "operator.token").read_text().strip()
        return httpx2.Client(
            base_url=f"{json.loads((self.data / 'vessel.json').read_text())['url']}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=20,
        )

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lychd", *words],
            env=environment(self.database, self.data),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def up(database: str, data: Path) -> Iterator[Up]:
    """`lychd up` until it serves; killed at the end if it still runs."""
    note = data / "vessel.json"
    note.unlink(missing_ok=True)
    data.mkdir(exist_ok=True)
    with (data / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lychd", "up", "--bind", "127.0.0.1:0", "--data", str(data)],
            env=environment(database, data),
            stdout=log,
            stderr=log,
        )
    vessel = Up(process, data, database)
    try:

        def serves() -> bool:
            assert process.poll() is None, (data / "log").read_text()
            return note.exists()

        eventually_sync(serves, 90, 0.05)
        yield vessel
    finally:
        vessel.kill()


def reaches(client: httpx2.Client, run_id: str, status: str) -> dict[str, Any]:
    def there() -> Any:
        run = client.get(f"/runs/{run_id}").json()
        return run if run["status"] == status else None

    return eventually_sync(there, 30, 0.05)


def parked(client: httpx2.Client, **wish: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A Run that waits, and its Consent."""
    answer = client.post("/runs", json={"pattern": "gate", "input": wish})
    assert answer.status_code == 201, answer.text
    run = reaches(client, answer.json()["id"], "awaiting_consent")
    (consent,) = client.get("/consents", params={"run": run["id"]}).json()["items"]
    return run, consent


@pytest.mark.contract("WAIT-1", "WAIT-2", "WAIT-9")
def test_a_question_outlives_the_vessel_that_asked_it(vessel_url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(vessel_url, data) as first:
        with first.client() as client:
            run, consent = parked(client, title="Move 12 files", facts={"files": 12}, gates=2)
        first.kill()
    with up(vessel_url, data) as second, second.client() as client:
        assert reaches(client, run["id"], "awaiting_consent")["wait"] == run["wait"]
        (still,) = client.get("/consents", params={"status": "pending"}).json()["items"]
        assert still == consent
        answered = second.command("decide", consent["id"], "grant", "--comment", "after the crash", "--json")
        assert answered.returncode == 0, answered.stderr
        assert json.loads(answered.stdout)["status"] == "granted"

        def asks_again() -> Any:
            return client.get("/consents", params={"status": "pending", "run": run["id"]}).json()["items"]

        (another,) = eventually_sync(asks_again, 30, 0.05)
        assert another["title"] == "Move 12 files (2 of 2)"
        assert second.command("decide", another["id"], "grant").returncode == 0
        followed = second.command("follow", run["id"])
        assert followed.returncode == 0, followed.stderr
        assert "granted by operator: after the crash" in followed.stdout
        done = reaches(client, run["id"], "done")
        assert (done["output"]["verdicts"], done["output"]["did"]) == (["granted", "granted"], ["a"])
        assert (done["hop"], done["started_at"]) == (2, run["started_at"])
        entered = [
            step["node"]
            for step in client.get(f"/runs/{run['id']}/steps", params={"limit": 500}).json()["items"]
            if step["kind"] == "node" and step["data"]["phase"] == "entered"
        ]
        assert entered == ["ask", "answered", "answered", "act"]


@pytest.mark.contract("RLY-8", "WAIT-14")
def test_s161_what_was_answered_while_no_vessel_ran_is_found_by_the_next_one(vessel_url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(vessel_url, data) as first:
        with first.client() as client:
            run, consent = parked(client)
        first.kill()
    with psycopg.connect(vessel_url, autocommit=True) as connection:
        ((user, name),) = connection.execute("select id, username from sigils_user").fetchall()

    async def answer() -> None:
        ledger = Ledger(urls.conninfo(vessel_url))
        try:
            voter = a_voter(name, user_id=user)
            vote = Vote(uuid.UUID(consent["id"]), False, "admin", "not now")
            await ledger.script(ScriptFactory[Any](decide, voter, vote))
        finally:
            await ledger.close()

    asyncio.run(answer())
    with up(vessel_url, data) as second, second.client() as client:
        done = reaches(client, run["id"], "done")
        assert (done["output"]["verdicts"], done["output"]["did"]) == (["denied"], [])
        assert done["output"]["receipts"][0]["comment"] == "not now"


def test_a_person_submits_follows_and_answers_at_one_terminal(vessel_url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(vessel_url, data):
        env = environment(vessel_url, data) | {"TERM": "xterm", "LANG": "C.UTF-8"}
        wish = json.dumps({"title": "Move 12 files", "facts": {"files": 12}})
        with terminal(env, "submit", "gate", "--input", wish, "--follow") as person:
            person.sees("Answer y (grant) or n (deny)")
            assert "asks: Move 12 files" in person.screen
            person.types("n not today")
            assert person.ended() == 0
        assert "Move 12 files: denied by operator: not today" in person.screen
        assert '"denied"' in person.screen
