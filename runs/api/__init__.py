"""The REST edge of Runs, Patterns and sessions: read the request, ask whether it may, call engine or reads, answer.

All handlers are async and none knows a table. `router` is what the API root collects.
"""

from __future__ import annotations

from ninja import Router

from runs.api import catalogue, evidence, runs

router = Router()
router.add_router("", runs.router)
router.add_router("", evidence.router)
router.add_router("", catalogue.router)

__all__ = ["router"]
