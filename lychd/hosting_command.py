"""What `lychd up` and `lychd vessel` share: host the application and keep `vessel.json` while it listens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from lychd.config import Config


def host(bind: str, *, told: Callable[[str], None]) -> int:
    """Run the Vessel in this process until it is told to stop.

    Args:
        bind: host:port.
        told: called with the URL when the Vessel listens.

    Returns:
        The exit code of the process.
    """
    from lychd import vessel
    from lychd.asgi import lifespan

    config: Config = settings.CONFIG
    note = Path(settings.DATA) / "vessel.json"

    def listening(url: str) -> None:
        running = lifespan.vessel
        if running is not None:
            running.url = url
        _write(note, {"url": url, "pid": os.getpid(), "boot": str(running.boot_id) if running else None})
        told(url)

    try:
        from lychd.asgi import application

        return vessel.run(
            application,
            bind=bind,
            drain_seconds=5.0,
            shutdown_timeout=config.drain_seconds + 60.0,
            body_limit=config.max_body,
            on_listening=listening,
        )
    finally:
        _remove_own(note)


def _write(path: Path, content: dict[str, object]) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def _remove_own(path: Path) -> None:
    try:
        if json.loads(path.read_text()).get("pid") == os.getpid():
            path.unlink()
    except (OSError, ValueError):
        return
