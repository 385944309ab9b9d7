"""Runs the console script's function in the test's process, and leaves the process as it was."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from lychd.__main__ import main


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def lychd_here(*words: str, env: dict[str, str], given: str = "") -> Ended:
    """`lychd WORDS` with these of the client's variables, and `given` on standard input."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    out, err = io.StringIO(), io.StringIO()
    known: dict[str, Any] = {"LYCHD_URL": "", "LYCHD_TOKEN": "", "LYCHD_LOG_LEVEL": "warning", **env}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in known.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        patch.setattr(sys, "argv", ["lychd", *words])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(str(ended.code or 0))
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
    return Ended(code, out.getvalue(), err.getvalue())
