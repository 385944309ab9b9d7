"""The tests' own eye for tracebacks: it must see those that our loggers write."""

from __future__ import annotations

import logging

import pytest
import structlog

from tests.support.logged import tracebacks


def test_a_traceback_is_seen_whoever_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    structlog.get_logger("ours").warning("quiet", error="only a word")
    assert tracebacks(caplog) == []
    structlog.get_logger("ours").error("loud", exc_info=ValueError("why"))
    try:
        raise ValueError("why")
    except ValueError:
        structlog.get_logger("ours").exception("louder")
        logging.getLogger("theirs").exception("loudest")
    assert len(tracebacks(caplog)) == 3
