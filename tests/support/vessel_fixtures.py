"""A database of its own for each test of a Vessel, a copy of a migrated one; loaded with `pytest_plugins`."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections

from tests.support.scratch import drop
from tests.support.vessels import Watcher, url_of, watching


def _maintain(statement: str) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(statement)  # pyright: ignore[reportArgumentType] - names are ours


@pytest.fixture(scope="session")
def migrated_template(django_db_blocker: Any) -> Iterator[str]:
    """The name of a migrated database that nobody is connected to."""
    name = f"lychd_template_{uuid.uuid4().hex[:12]}"
    _maintain(f"create database {name}")
    options = {key: value for key, value in connections.settings["default"]["OPTIONS"].items() if key != "pool"}
    connections.settings[name] = {**connections.settings["default"], "NAME": name, "OPTIONS": options}
    try:
        with django_db_blocker.unblock():
            call_command("migrate", database=name, interactive=False, verbosity=0)
            connections[name].close()
        yield name
    finally:
        del connections[name]
        del connections.settings[name]
        drop(os.environ["DATABASE_URL"], name)


@pytest.fixture
def vessel_url(migrated_template: str) -> Iterator[str]:
    """The URL of a migrated database without a row, dropped afterwards."""
    name = f"lychd_vessel_{uuid.uuid4().hex[:12]}"
    _maintain(f"create database {name} template {migrated_template}")
    try:
        yield url_of(name)
    finally:
        drop(os.environ["DATABASE_URL"], name)


@pytest.fixture
def empty_url() -> Iterator[str]:
    """The URL of a database without any table."""
    name = f"lychd_empty_{uuid.uuid4().hex[:12]}"
    _maintain(f"create database {name}")
    try:
        yield url_of(name)
    finally:
        drop(os.environ["DATABASE_URL"], name)


@pytest.fixture
async def watcher(vessel_url: str) -> AsyncIterator[Watcher]:
    async with watching(vessel_url) as eyes:
        yield eyes
