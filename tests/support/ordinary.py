"""Runs the product as an ordinary user where the tests themselves run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NOBODY = 65534
# The interpreter may lie in a folder that is closed to others; in a mount namespace it lies elsewhere as well.
_ELSEWHERE = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who runs the product.

    Attributes:
        uid: who that is.
        folder: a folder of theirs.
        python: the beginning of a command that runs Python as them.
    """

    uid: int
    folder: Path
    python: tuple[str, ...]


@contextmanager
def whoever_runs_the_tests(folder: Path) -> Generator[User]:
    """The user of the tests, root included."""
    yield User(os.geteuid(), folder, (sys.executable,))


@contextmanager
def nobody() -> Generator[User]:
    """The user `nobody`. Skips the test where the tests are no root's, or the system does not allow it."""
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user already")
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv")
    root = Path(tempfile.mkdtemp(prefix="lychd-nobody-")).resolve()
    try:
        root.chmod(0o755)
        base, elsewhere, own = Path(sys.base_prefix), root / "python", root / "own"
        elsewhere.mkdir()
        own.mkdir()
        os.chown(own, NOBODY, NOBODY)
        as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        real = Path(sys.executable).resolve()
        moved = str(elsewhere / real.relative_to(base)) if real.is_relative_to(base) else str(real)
        found = os.pathsep.join([str(Path(__file__).parents[2]), sysconfig.get_path("purelib")])
        there = (*as_nobody, "env", f"PYTHONPATH={found}", f"LD_LIBRARY_PATH={elsewhere / 'lib'}", moved)
        mounted = ("unshare", "--mount", "sh", "-c", _ELSEWHERE, "sh", str(base), str(elsewhere), *there)
        for python in ((*as_nobody, sys.executable), mounted):
            user = User(NOBODY, own, python)
            if _works(user):
                yield user
                return
        pytest.skip("interpreter and packages lie in folders that are closed to other users")
    finally:
        shutil.rmtree(root)


def _works(user: User) -> bool:
    tried = subprocess.run(
        [*user.python, "-c", "import ssl, django, psycopg, lychd; from lychd.postgres import binaries as b; b.find()"],
        cwd=user.folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0
