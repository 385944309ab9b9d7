"""The application under an ASGI server that is not ours, with its lifespan and without."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests.support.processes import ROOT, environment
from tests.support.waiting import eventually_sync

pytest_plugins = ["tests.support.vessel_fixtures"]


def settings(folder: Path, url: str) -> dict[str, str]:
    return environment(DATABASE_URL=url, LYCHD_DATA=str(folder), LYCHD_SECRET_KEY="k" * 64)


def a_token(folder: Path, url: str) -> str:
    """The token of the local operator, as `lychd up` makes it."""
    program = (
        "import sys, pathlib, django; django.setup(); from lychd.sigils.operator import ensure_operator as made;"
        "print(made(pathlib.Path(sys.argv[1])).token_path.read_text())"
    )
    known = settings(folder, url) | {"DJANGO_SETTINGS_MODULE": "lychd.settings"}
    made = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=ROOT, env=known, check=True, text=True, stdout=subprocess.PIPE
    )
    return made.stdout.strip()


@contextmanager
def uvicorn(folder: Path, database: str, *words: str) -> Generator[tuple[subprocess.Popen[bytes], Path, str]]:
    """The process, the file of what it says, and its address."""
    said = folder / "uvicorn.log"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "lychd.asgi:application", "--port", "0", *words],
            cwd=ROOT,
            env=settings(folder, database),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:

        def address() -> str:
            assert process.poll() is None, said.read_text()
            found = re.search(r"running on (http://127\.0\.0\.1:\d+)", said.read_text())
            return found[1] if found else ""

        yield process, said, eventually_sync(address, 60, 0.05)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.contract("TOP-3", "TOP-7", "SHUT-4")
def test_a_server_with_a_lifespan_carries_runs_and_stops_in_good_order(tmp_path: Path, vessel_url: str) -> None:
    token = a_token(tmp_path, vessel_url)
    with uvicorn(tmp_path, vessel_url) as (process, said, url):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=url, headers=headers, timeout=20, trust_env=False) as client:
            assert client.get("/readyz").status_code == 200
            run = client.post("/api/v1/runs", json={"pattern": "three", "input": {"n": 1}}).json()["id"]
            eventually_sync(lambda: client.get(f"/api/v1/runs/{run}").json()["status"] == "done", 20, 0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        text = said.read_text()
    assert '"vessel.stopped"' in text
    assert "Traceback" not in text
    with psycopg.connect(vessel_url) as connection:
        found = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        assert connection.execute(found).fetchone() == (0,)


def test_a_server_without_a_lifespan_gets_503_and_no_vessel(tmp_path: Path, vessel_url: str) -> None:
    headers = {"Authorization": f"Bearer {a_token(tmp_path, vessel_url)}"}
    with uvicorn(tmp_path, vessel_url, "--lifespan", "off") as (process, said, url):
        with httpx2.Client(base_url=url, headers=headers, timeout=20, trust_env=False) as client:
            for path in ("/readyz", "/api/v1/runs", "/api/v1/patterns", "/metrics"):
                assert client.get(path).status_code == 503, path
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        assert "Traceback" not in said.read_text()
