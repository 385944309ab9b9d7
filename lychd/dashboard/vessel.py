"""The Vessel behind a page, as far as there is one, and what pages ask of it. Nothing here changes anything.

Pages run in threads; what the Vessel answers on its loop is waited for here, each time under a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cache
from typing import TYPE_CHECKING, Any

import structlog
from asgiref.sync import async_to_sync
from django.http import HttpRequest

from lychd import wiring
from runs.errors import LychdError, first_line
from runs.patterns import PatternRegistry

if TYPE_CHECKING:
    from lychd.graph import Check, Vessel
    from runs.broker.lanes import LaneStats

log = structlog.get_logger(__name__)

SECONDS = 3.0


def vessel_of(request: HttpRequest) -> Vessel | None:
    """The Vessel that serves this request; None where the site is served without one."""
    asked: Any = request
    try:
        return asked.vessel
    except (AttributeError, LychdError):
        return None


def registry_of(request: HttpRequest) -> PatternRegistry | None:
    """The Patterns of the Vessel, else those that are installed; None when those cannot be loaded."""
    vessel = vessel_of(request)
    return _installed() if vessel is None else vessel.registry


def readiness(vessel: Vessel) -> list[Check] | str:
    """Every condition of readiness, or why there is no answer."""
    return _asked(vessel.readiness)


def lane_stats(vessel: Vessel) -> dict[str, LaneStats] | str:
    """How the lanes stand, or why the broker does not say."""
    return _asked(vessel.lanes.stats)


def _asked[T](question: Callable[[], Coroutine[Any, Any, T]]) -> T | str:
    async def within() -> T:
        async with asyncio.timeout(SECONDS):
            return await question()

    try:
        return async_to_sync(within)()
    except TimeoutError:
        return f"no answer within {SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - the page tells whatever is wrong, and shows everything else
        log.warning("dashboard.no_answer", error=first_line(error))
        return f"{type(error).__name__}: {first_line(error)}"


@cache
def _installed() -> PatternRegistry | None:
    try:
        return wiring.registry()
    except LychdError as error:
        log.warning("dashboard.no_patterns", error=error.detail)
        return None
