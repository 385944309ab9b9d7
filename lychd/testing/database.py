"""Finds the PostgreSQL of a test run and puts it into the environment, before Django reads its settings.

Only the controlling process chooses; the workers of pytest-xdist inherit the environment. Imports nothing of Django.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# Several workers, each with the pools of whole Vessels.
SERVER_OPTIONS = {"max_connections": "300"}
TELLS_ONLY = {"-h", "--help", "--version", "-V", "--collect-only", "--co", "--markers", "--fixtures"}

type Choice = tuple[str, str, Callable[[], object]]
"""URL, words for the report's header, and what ends the server."""

_how = "inherited"
_endings: list[Callable[[], object]] = []


def how() -> str:
    """Where the database of this test run comes from, for people."""
    return _how


def choose(
    args: Sequence[str], *, secret_key: str | None = None, other: Callable[[], Choice | None] | None = None
) -> None:
    """Set DATABASE_URL, LYCHD_DATA (a temporary folder) and LYCHD_SECRET_KEY; everything vanishes with `end`.

    Args:
        args: the arguments of pytest; nothing is started where they only ask to be told something.
        secret_key: default: the one in the environment, else one for tests.
        other: asked for a server before an embedded one is started.

    Raises:
        DatabaseUnavailable: no DATABASE_URL, and the embedded server does not start.
    """
    global _how
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    atexit.register(end)
    if secret_key or not os.environ.get("LYCHD_SECRET_KEY"):
        os.environ["LYCHD_SECRET_KEY"] = secret_key or "a key for tests only, which never signs anything that matters"
    os.environ["LYCHD_DATA"] = str(_temporary_data())
    os.environ.pop("LYCHD_PROFILE", None)
    if TELLS_ONLY & set(args):
        _how = "none needed"
    elif os.environ.get("DATABASE_URL"):
        _how = "DATABASE_URL"
    else:
        os.environ["DATABASE_URL"], _how, ending = (other and other()) or _embedded(SERVER_OPTIONS)
        _endings.append(ending)


def end() -> None:
    """Stop what was started and remove the temporary folder; may be called again."""
    while _endings:
        _endings.pop()()


def _temporary_data() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lychd-tests-"))
    folder.chmod(0o711)  # a server that root starts runs as another user and must pass through
    _endings.append(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def _embedded(options: Mapping[str, str]) -> Choice:
    """The product's own launcher; durable, because tests prove durability. Vanishes with this process."""
    from lychd.postgres.launcher import ensure

    binaries = os.environ.get("LYCHD_TEST_POSTGRES_BIN")
    cluster = ensure(None, throwaway=True, durable=True, options=options, binaries=Path(binaries) if binaries else None)
    return cluster.url, f"embedded server in {cluster.home.base}", cluster.stop
