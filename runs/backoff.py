"""Deterministic exponential backoff: the one place that knows the curve."""

from __future__ import annotations

from collections.abc import Iterator


def delays(first: float = 0.1, factor: float = 2.0, cap: float = 5.0) -> Iterator[float]:
    """Yield delays in seconds: `first`, then each `factor` times the last, never above `cap` (RLY-5)."""
    delay = first
    while True:
        yield min(delay, cap)
        delay = min(delay * factor, cap)
