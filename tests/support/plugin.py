"""Chooses the PostgreSQL of the tests before Django reads its settings; loaded with `-p`.

DATABASE_URL where it is set, else a container where a Docker engine answers, else the product's own embedded server
in a temporary folder. Only the controlling process chooses; xdist's workers inherit the environment.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from lychd.testing import database

SECRET_KEY = "test-secret-key-not-for-production-but-long-enough-for-every-check"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(args: list[str]) -> Generator[None]:
    """Before pytest-django's own hook, which reads the settings."""
    database.choose(args, secret_key=SECRET_KEY, other=_docker)
    return (yield)


def pytest_report_header() -> str:
    return f"database: {database.how()}"


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    database.end()


def _docker() -> database.Choice | None:
    """A container, where an engine answers within two seconds."""
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
        options = " ".join(f"-c {name}={value}" for name, value in database.SERVER_OPTIONS.items())
        container.with_command(f"postgres {options}")
        container.start()
    except (DockerException, OSError):
        return None
    return container.get_connection_url(), "container postgres:18", container.stop
