"""Hooks and fixtures of the test kit. Loaded before Django is set up, so whatever needs it is imported late."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from lychd.testing import database, waiting

if TYPE_CHECKING:
    from lychd.testing.kit import VesselKit
    from runs.patterns import AnyPattern


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of pytest's own settings file that names the apps to test."""
    parser.addini("lychd_apps", "Django apps with Patterns, added to LYCHD_APPS", type="args", default=[])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> Generator[None]:
    """Before pytest-django's own hook, which reads the settings."""
    named = [os.environ.get("LYCHD_APPS", ""), *early_config.getini("lychd_apps")]
    os.environ["LYCHD_APPS"] = ",".join(filter(None, named))
    database.choose(args)
    return (yield)


def pytest_report_header() -> str:
    """Says which PostgreSQL the tests use."""
    return f"lychd database: {database.how()}"


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Stop what was started."""
    database.end()


@pytest.fixture
def vessel_patterns() -> Iterable[AnyPattern] | None:
    """The Patterns of the fixture `vessel`; override it to name them. None: those of all installed apps."""
    return None


@pytest.fixture
def vessel_settings() -> dict[str, Any]:
    """Settings of the fixture `vessel` by field name of `lychd.config.Config`; override it to change some."""
    return {}


@pytest_asyncio.fixture
async def vessel(
    transactional_db: None,  # noqa: ARG001 - makes the database, and empties it after the Vessel has stopped
    vessel_patterns: Iterable[AnyPattern] | None,
    vessel_settings: dict[str, Any],
) -> AsyncGenerator[VesselKit]:
    """A Vessel on the database of this test, in the test's own loop; stopped at the end, its tables emptied."""
    from lychd.testing.kit import running

    async with running(vessel_patterns, **vessel_settings) as kit:
        yield kit


@pytest.fixture
def submit(vessel: VesselKit) -> Callable[..., Awaitable[uuid.UUID]]:
    """`VesselKit.submit` of this test's Vessel."""
    return vessel.submit


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """`lychd.testing.waiting.eventually`."""
    return waiting.eventually
