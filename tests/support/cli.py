"""What tests of the client commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.commands import Ended

ROOT = Path(__file__).parents[2]

type Lychd = Callable[..., Ended]


def environment(**more: str) -> dict[str, str]:
    """That of a client: no database could be reached, and nothing but the Vessel is known."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LYCHD_")}
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing", "LANG": "C.UTF-8"}
    return {**kept, **nowhere, **more}
