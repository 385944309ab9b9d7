"""What tests of the client commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

type Lychd = Callable[..., Ended]


@dataclass
class Ended:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def environment(**more: str) -> dict[str, str]:
    """That of a client: no database could be reached, and nothing but the Vessel is known."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LYCHD_")}
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing", "LANG": "C.UTF-8"}
    return {**kept, **nowhere, **more}
