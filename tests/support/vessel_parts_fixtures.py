"""Parts of a Vessel for tests, over the database of pytest-django; loaded with `pytest_plugins`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from django.db import connection as django_connection
from psycopg.conninfo import make_conninfo

from runs.patterns.pattern import AnyPattern
from tests.support.vessel_parts import Build, Parts, composed


@pytest.fixture
def dsn(transactional_db: None) -> str:
    """The database of this test."""
    return make_conninfo(os.environ["DATABASE_URL"], dbname=django_connection.settings_dict["NAME"])


@pytest.fixture
async def build(dsn: str) -> AsyncIterator[Build]:
    """Composes parts; they are taken down at the end of the test."""
    async with AsyncExitStack() as stack:

        async def make(*patterns: AnyPattern, **options: Any) -> Parts:
            return await stack.enter_async_context(composed(dsn, *patterns, **options))

        yield make


@pytest.fixture
async def parts(build: Build) -> Parts:
    """Parts with the Pattern `solo`, which finishes with its input's text."""
    return await build()
