"""Logging of the process."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from lychd import logs
from tests.support.commands import lychd_here


def test_a_logger_that_was_used_is_heard_after_logging_is_configured_again() -> None:
    log = structlog.get_logger("tests.unit.test_logs")
    log.info("before")
    lychd_here("--help", env={})
    logs.configure("json", "info")
    with capture_logs() as seen:
        log.warning("after")
    assert [entry["event"] for entry in seen] == ["after"]
