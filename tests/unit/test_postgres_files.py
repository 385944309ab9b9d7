"""The small files of the embedded server: its log and its pid."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lychd.postgres import binaries, postmaster, serverlog
from lychd.postgres.errors import BinariesMissing


def test_a_large_log_is_cut_to_its_last_half_and_still_appended_to(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("ab") as server:
        server.write(b"".join(b"line %04d\n" % number for number in range(1000)))
        server.flush()
        assert serverlog.trim(log, 4000)
        server.write(b"next\n")
        server.flush()
    lines = log.read_text().splitlines()
    assert lines[-2:] == ["line 0999", "next"]
    assert lines[0].startswith("line 0")
    assert log.stat().st_size <= 2010


def test_a_small_or_missing_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("line\n")
    assert not serverlog.trim(tmp_path / "server.log", 4000)
    assert not serverlog.trim(tmp_path / "none.log", 4000)
    assert (tmp_path / "server.log").read_text() == "line\n"


def test_only_the_lines_after_the_mark_are_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("old\n")
    mark = serverlog.size(log)
    with log.open("a") as file:
        file.write("new\n")
    assert serverlog.since(log, mark) == ["new"]


@pytest.mark.parametrize("text", ["", "\n", "nonsense\n", "-7\n", "0\n", "1\n"])
def test_a_pid_file_without_a_pid_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "postmaster.pid").write_text(text)
    assert postmaster.recorded_pid(tmp_path) is None


def test_neither_a_stranger_nor_a_zombie_nor_nobody_is_a_server(tmp_path: Path) -> None:
    assert not postmaster.lives(os.getpid(), tmp_path)
    zombie = subprocess.Popen(["/bin/sh", "-c", "kill -9 $$"], cwd=tmp_path)
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert not postmaster.lives(zombie.pid, tmp_path)
    zombie.wait()
    assert not postmaster.lives(zombie.pid, tmp_path)


def test_a_stale_pid_becomes_the_starters_own_and_the_rest_of_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "postmaster.pid"
    path.write_text("4194303999\n/data\n1700000000\n5432\n/socket\n\n  123 456\n")
    postmaster.disown(tmp_path)
    assert path.read_text() == f"{os.getpid()}\n/data\n1700000000\n5432\n/socket\n\n  123 456\n"


def test_a_pid_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious\n")
    (tmp_path / "postmaster.pid").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"):
        postmaster.disown(tmp_path)
    assert (tmp_path / "victim").read_text() == "precious\n"


def test_missing_programs_are_a_sentence_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BinariesMissing, match="DATABASE_URL"):
        binaries.find(tmp_path)
    monkeypatch.setattr(binaries, "PACKAGE", "lychd_no_such_package")
    with pytest.raises(BinariesMissing, match="DATABASE_URL"):
        binaries.find()
