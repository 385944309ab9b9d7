"""The plugin that chooses the database of the tests, seen from a test run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

WITHOUT = ["-c", "/dev/null", "-p", "no:django", "-p", "no:randomly", "-p", "no:cacheprovider"]

INNER = """
import os
import pathlib
import psycopg

def show(name):
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        fsync = connection.execute("SHOW fsync").fetchone()[0]
    pathlib.Path(__file__).with_name(name).write_text(
        "\\n".join([os.environ["DATABASE_URL"], os.environ["LYCHD_DATA"], fsync])
    )

def test_one(): show("one")
def test_two(): show("two")
"""


def test_workers_share_one_embedded_server_that_is_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(INNER)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"DATABASE_URL", "LYCHD_DATA"} and not name.startswith("PYTEST")
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *WITHOUT,
            "-p",
            "tests.support.plugin",
            "-n",
            "2",
            f"--rootdir={tmp_path}",
            str(tmp_path),
        ],
        cwd=REPOSITORY,
        env={**environment, "DOCKER_HOST": "unix:///no/engine/here", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "database: embedded server in " in done.stdout
    one, two = (tmp_path / "one").read_text(), (tmp_path / "two").read_text()
    assert one == two
    url, data, fsync = one.splitlines()
    assert fsync == "on"
    socket = Path(url.partition("host=")[2].replace("%2F", "/"))
    assert not socket.parent.parent.exists()
    assert not Path(data).exists()
