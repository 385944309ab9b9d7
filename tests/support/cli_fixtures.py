"""The client commands against a scripted server: in this process, or as processes; loaded with `pytest_plugins`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import ROOT, Lychd, environment
from tests.support.commands import Ended, lychd_here
from tests.support.scripted import Script, scripted


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with scripted(script) as address:
        yield address


@pytest.fixture
def lychd(url: str, tmp_path: Path) -> Lychd:
    """The console script's function, in this process."""

    def run(*words: str, env: dict[str, str] | None = None, given: str = "") -> Ended:
        known = {"LYCHD_URL": url, "LYCHD_TOKEN": "secret"} if env is None else env
        return lychd_here(*words, env={"LYCHD_DATA": str(tmp_path), **known}, given=given)

    return run


@pytest.fixture
def process(url: str, tmp_path: Path) -> Lychd:
    """The console script as a process of its own, with warnings as errors."""

    def run(*words: str) -> Ended:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-m", "lychd", *words],
            cwd=ROOT,
            env=environment(LYCHD_URL=url, LYCHD_TOKEN="secret", LYCHD_DATA=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return run
