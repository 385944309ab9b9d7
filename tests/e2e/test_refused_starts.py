"""A Vessel that cannot start says why in one sentence, ends with 3, and has neither listened nor left anything."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.ordinary import nobody
from tests.support.processes import Process, command, server_pid

pytest_plugins = ["tests.support.vessel_fixtures"]

BIND = ("--bind", "127.0.0.1:0")


def refused(process: Process, *, code: int = 3) -> str:
    """The one sentence; fails if anything but that was said or the code is another."""
    assert process.ended(90) == code, process.err
    assert process.out == ""
    said = [line for line in process.log if line["level"] == "raw"]
    assert len(said) == 1, process.err
    assert not [line for line in process.complaints if line not in said], process.err
    return str(said[0]["event"])


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on and nobody else gets meanwhile."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def test_a_file_where_the_data_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    data = tmp_path / "file" / "var"
    with command(tmp_path, "up", *BIND, "--data", str(data)) as up:
        assert refused(up) == f"lychd: The data folder {data} cannot be written: Not a directory."


def test_a_data_folder_that_is_not_ours() -> None:
    with nobody() as user:
        closed = user.folder / "closed"
        closed.mkdir(mode=0o755)  # the tests' own: root's
        with command(user.folder, "up", *BIND, "--data", str(closed), python=user.python) as up:
            assert refused(up) == f"lychd: The data folder {closed} cannot be written: Permission denied."
        assert list(closed.iterdir()) == []


def other_version(data: Path) -> None:
    (data / "PG_VERSION").write_text("16\n")


def something_else(data: Path) -> None:
    (data / "diary.txt").write_text("dear diary")


@pytest.mark.parametrize(
    ("put", "sentence"),
    [
        (other_version, "was written by PostgreSQL 16 and the installed programs are version 18"),
        (something_else, "exists but holds no PostgreSQL data: move it away"),
    ],
)
def test_data_that_this_version_cannot_use_are_left_alone(
    tmp_path: Path, put: Callable[[Path], None], sentence: str
) -> None:
    data = tmp_path / "var" / "postgres" / "data"
    data.mkdir(parents=True)
    put(data)
    before = {path.name: path.read_text() for path in data.iterdir()}
    with command(tmp_path, "up", *BIND, "--data", str(tmp_path / "var")) as up:
        said = refused(up)
    assert said.startswith(f"lychd: {data} ")
    assert sentence in said
    assert {path.name: path.read_text() for path in data.iterdir()} == before
    assert server_pid(tmp_path / "var") is None
    assert not (tmp_path / "var" / "vessel.json").exists()


def test_a_database_that_does_not_answer(tmp_path: Path, closed_port: int) -> None:
    url = f"postgresql://postgres:secret@127.0.0.1:{closed_port}/lychd"
    with command(tmp_path, "up", *BIND, "--data", str(tmp_path / "var"), DATABASE_URL=url) as up:
        said = refused(up)
    assert said.startswith("lychd: The database of DATABASE_URL cannot be used: ")
    assert f"port {closed_port} failed: Connection refused." in said
    assert "secret" not in up.err


def test_a_database_that_nobody_migrated(tmp_path: Path, empty_url: str) -> None:
    with command(tmp_path, "vessel", *BIND, "--data", str(tmp_path / "var"), DATABASE_URL=empty_url) as vessel:
        assert vessel.ended(90) == 3
        said = [line for line in vessel.err.splitlines() if line.startswith("lychd: ")]
    assert len(said) == 1
    assert "migrat" in said[0]
    assert "Traceback" not in vessel.err
    assert not (tmp_path / "var" / "vessel.json").exists()


@pytest.mark.parametrize(
    ("words", "settings", "sentence"),
    [
        ((), ("DATABASE_URL=mysql://localhost/lychd",), "DATABASE_URL must begin with postgresql://"),
        ((), ("LYCHD_RUNS_CONCURRENCY=0",), "LYCHD_RUNS_CONCURRENCY"),
        (("--bind", "nowhere"), (), "cannot listen on 'nowhere'"),
        (("--bind", "0.0.0.0:0"), (), "LYCHD_SECRET_KEY: it must be set when the Vessel listens on 0.0.0.0:0"),
        ((), ("LYCHD_APPS=no.such.app",), "LYCHD_APPS: there is no module 'no'."),
    ],
    ids=["database url", "setting", "address", "secret key", "app"],
)
def test_settings_that_make_no_sense(
    tmp_path: Path, words: tuple[str, ...], settings: tuple[str, ...], sentence: str
) -> None:
    data = ("--data", str(tmp_path / "var"))
    with command(tmp_path, "up", *(words or BIND), *data, python=("env", *settings, sys.executable)) as up:
        assert sentence in refused(up)
    assert not (tmp_path / "var" / "vessel.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_database_folder_of_another_user() -> None:
    with nobody() as user:
        base = user.folder / "var" / "postgres"
        base.mkdir(parents=True)
        base.chmod(0o700)
        os.chown(user.folder / "var", user.uid, user.uid)
        with command(user.folder, "up", *BIND, "--data", str(user.folder / "var"), python=user.python) as up:
            said = refused(up)
        assert str(base) in said
        assert "LYCHD_DATA" in said
