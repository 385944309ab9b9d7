"""Edges that need more than one statement, written once as a generator and driven by either connection.

A script yields statements and is sent their rows; what it returns is the edge's outcome. Whoever drives it opens one
transaction around the whole. Lock order is always session, Run, owner (rulings 5 and 8).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a script."""

    sql: str
    params: dict[str, Any]


type Script[T] = Generator[Statement, list[tuple[Any, ...]], T]
