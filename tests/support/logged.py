"""What was logged, as a test may judge it: our own lines keep their fields, and the error, in the message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Every line that would show a traceback, from our own loggers and from everybody else's."""
    return [record.msg for record in caplog.records if record.exc_info or _error_of(record.msg)]


def _error_of(message: object) -> Any:
    # structlog hands its fields on as the message; `exc_info` becomes text only in the formatter.
    return message.get("exc_info") if isinstance(message, Mapping) else None
