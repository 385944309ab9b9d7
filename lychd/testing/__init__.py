"""The test kit for authors of Patterns: a pytest plugin that runs Patterns on a real Vessel and a real PostgreSQL.

Load it with `-p lychd.testing` in the options of pytest, beside pytest-django and pytest-asyncio. Loaded so, it also
finds the PostgreSQL of the tests: the one in DATABASE_URL, else an embedded one that vanishes with the test run. The
option `lychd_apps` in pytest's settings file names the apps whose Patterns are tested.

Fixtures:
    vessel: a started `VesselKit`; its Runs take the whole way, over the ledger, the queue and the lanes.
    submit: admits a Run on that Vessel; returns its id.
    eventually: waits for a condition with a deadline.
    vessel_patterns, vessel_settings: to be overridden, where a test wants other Patterns or settings.
"""

from __future__ import annotations

from lychd.testing.plugin import (
    eventually,
    pytest_addoption,
    pytest_load_initial_conftests,
    pytest_report_header,
    pytest_unconfigure,
    submit,
    vessel,
    vessel_patterns,
    vessel_settings,
)

__all__ = [
    "eventually",
    "pytest_addoption",
    "pytest_load_initial_conftests",
    "pytest_report_header",
    "pytest_unconfigure",
    "submit",
    "vessel",
    "vessel_patterns",
    "vessel_settings",
]
