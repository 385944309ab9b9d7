"""Logging: events with fields through structlog, the standard library's loggers through the same renderer."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(fmt: str, level: str) -> None:
    """Send every log line of the process to stderr, as readable text or as one JSON object a line."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        if fmt == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28)]
    )
    # The same list when configured again: loggers that were used before keep the one they have seen first.
    processors = structlog.get_config()["processors"] if structlog.is_configured() else []
    processors[:] = [
        structlog.stdlib.filter_by_level,
        *shared,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ]
    structlog.configure(
        processors=processors,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # One line a job at info would drown everything else.
    for name in ("saq", "daphne", "twisted", "asyncio", "psycopg", "psycopg.pool"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
