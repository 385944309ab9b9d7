"""Waiting for a condition with a deadline: the only way tests wait. The product's test kit has it for everybody."""

from __future__ import annotations

from lychd.testing.waiting import eventually, eventually_sync

__all__ = ["eventually", "eventually_sync"]
