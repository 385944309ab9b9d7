"""Chooses the PostgreSQL of the tests before Django reads its settings; loaded with `-p`.

DATABASE_URL where it is set, else a container where a Docker engine answers, else the product's own embedded server
in a temporary folder. Only the controlling process chooses; xdist's workers inherit the environment.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

# Several workers, each with the pools of whole Vessels.
SERVER_OPTIONS = {"max_connections": "300"}
SECRET_KEY = "test-secret-key-not-for-production-but-long-enough-for-every-check"
TELLS_ONLY = {"-h", "--help", "--version", "-V", "--collect-only", "--co", "--markers", "--fixtures"}

_how = "inherited"
_endings: list[Callable[[], object]] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(args: list[str]) -> Generator[None]:
    """Before pytest-django's own hook, which reads the settings."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        atexit.register(_end)
        _choose(args)
    return (yield)


def pytest_report_header() -> str:
    return f"database: {_how}"


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    _end()


def _choose(args: list[str]) -> None:
    global _how
    os.environ["LYCHD_SECRET_KEY"] = SECRET_KEY
    os.environ["LYCHD_DATA"] = str(_temporary_data())
    os.environ.pop("LYCHD_PROFILE", None)
    if TELLS_ONLY & set(args):
        _how = "none needed"
    elif os.environ.get("DATABASE_URL"):
        _how = "DATABASE_URL"
    else:
        _how = _docker() or _embedded()


def _temporary_data() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lychd-tests-"))
    folder.chmod(0o711)  # a server that root starts runs as another user and must pass through
    _endings.append(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def _docker() -> str | None:
    """Start a container where an engine answers within two seconds."""
    try:
        import docker
        from docker.errors import DockerException
        from testcontainers.community.postgres import PostgresContainer
    except ImportError:
        return None
    try:
        client = docker.from_env(timeout=2)
        try:
            client.ping()
        finally:
            client.close()
        container = PostgresContainer("postgres:18", username="postgres", dbname="lychd", driver=None)
        container.with_command("postgres " + " ".join(f"-c {name}={value}" for name, value in SERVER_OPTIONS.items()))
        container.start()
    except (DockerException, OSError):
        return None
    _endings.append(container.stop)
    os.environ["DATABASE_URL"] = container.get_connection_url()
    return "container postgres:18"


def _embedded() -> str:
    """Start the product's own launcher; durable, because the tests prove durability. Vanishes with this process."""
    from lychd.postgres.launcher import ensure

    binaries = os.environ.get("LYCHD_TEST_POSTGRES_BIN")
    cluster = ensure(
        None, throwaway=True, durable=True, options=SERVER_OPTIONS, binaries=Path(binaries) if binaries else None
    )
    _endings.append(cluster.stop)
    os.environ["DATABASE_URL"] = cluster.url
    return f"embedded server in {cluster.home.base}"


def _end() -> None:
    while _endings:
        _endings.pop()()
