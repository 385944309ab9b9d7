"""The client commands against a scripted server: in this process, or as processes; loaded with `pytest_plugins`."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lychd.__main__ import main
from tests.support.cli import ROOT, Ended, Lychd, environment
from tests.support.scripted import Script, scripted


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with scripted(script) as address:
        yield address


@pytest.fixture
def lychd(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lychd:
    """The console script's function, in this process."""

    def run(*words: str, env: dict[str, str] | None = None, given: str = "") -> Ended:
        known = {"LYCHD_URL": url, "LYCHD_TOKEN": "secret", "LYCHD_DATA": str(tmp_path)} if env is None else env
        with monkeypatch.context() as patch:
            for name in ("LYCHD_URL", "LYCHD_TOKEN", "LYCHD_DATA"):
                patch.setenv(name, known.get(name, ""))
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
            patch.setattr(sys, "argv", ["lychd", *words])
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = int(str(ended.code))
        out, err = capsys.readouterr()
        return Ended(code, out, err)

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
