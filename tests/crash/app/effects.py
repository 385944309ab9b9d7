"""What the Patterns under fire do to the world: lines in a file that survive whatever kills the process."""

from __future__ import annotations

import json
import os
from typing import Any

from runs.patterns import RunInfo


def happened(what: str, run: RunInfo, **facts: Any) -> None:
    """Append one line and have it on the disk before going on."""
    line = {"what": what, "run": str(run.id), "node": run.node, "visit": run.visit, "hop": run.hop, "pid": os.getpid()}
    file = os.open(os.environ["CRASH_EFFECTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, (json.dumps({**line, **facts}) + "\n").encode())
        os.fsync(file)
    finally:
        os.close(file)
