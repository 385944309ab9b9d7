"""What `lychd up` and `lychd vessel` share: host the application, and keep `vessel.json` while it can be reached."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser, SystemCheckError

from lychd.config import Config
from lychd.launch import DEFAULT_BIND

log = structlog.get_logger(__name__)

NOTE = "vessel.json"
# Seconds that open requests may go on after a stop was asked for.
REQUEST_SECONDS = 5.0
# Seconds for a stop beyond the drain: workers, relays, evidence and connections each have their own bound within.
STOP_SECONDS = 60.0
STARTUP_FAILED, CANNOT_LISTEN = 3, 4


class HostingCommand(BaseCommand):
    """A command that becomes the Vessel's process."""

    # Asked in `prove`, so that what they find has the exit code of a failed start.
    requires_system_checks: Any = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """A parser without abbreviations: `lychd.launch` reads the same words and knows only the whole ones."""
        return super().create_parser(prog_name, subcommand, allow_abbrev=False, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        """The options that `lychd.launch` has looked at already, and the address."""
        parser.add_argument("--bind", default=DEFAULT_BIND, help="HOST:PORT or unix:/path (default %(default)s)")
        parser.add_argument("--data", metavar="DIR", help="folder of all that the product keeps on disk (default var/)")
        parser.add_argument("--profile", choices=["durable", "memory"], help="durable (default) or memory")

    def prove(self) -> None:
        """Run the system checks.

        Raises:
            SystemCheckError: with the exit code of a failed start.
        """
        try:
            self.check()
        except SystemCheckError as error:
            error.returncode = STARTUP_FAILED
            raise


def host(bind: str, *, told: Callable[[str], None]) -> int:
    """Run the Vessel in this process until it is told to stop.

    Args:
        bind: where to listen.
        told: called with the URL when the Vessel listens.

    Returns:
        The exit code of the process (ruling 38; 7 when the one-Vessel guard was lost for good).
    """
    from lychd import vessel
    from lychd.asgi import application, lifespan

    config: Config = settings.CONFIG
    note = Path(settings.DATA) / NOTE

    def listening(url: str) -> None:
        running = lifespan.vessel
        if running is not None:
            running.url = url
        _write(note, {"url": url, "pid": os.getpid(), "boot": str(running.boot_id) if running else None})
        told(url)

    def stopping() -> None:
        # From now on nobody should be sent here; this also holds where the process has to end at once.
        _remove_own(note)

    try:
        code = vessel.run(
            application,
            bind=bind,
            drain_seconds=REQUEST_SECONDS,
            shutdown_timeout=config.drain_seconds + STOP_SECONDS,
            body_limit=config.max_body,
            on_listening=listening,
            on_stopping=stopping,
        )
    finally:
        _remove_own(note)
    if lifespan.failure is not None:
        sys.stderr.write(f"lychd: {lifespan.failure}\n")
    elif code == CANNOT_LISTEN:
        sys.stderr.write(f"lychd: the Vessel cannot listen on {bind}; is the address taken?\n")
    return code


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(content) + "\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _remove_own(path: Path) -> None:
    """Remove the file unless another Vessel has written it meanwhile."""
    try:
        if json.loads(path.read_text()).get("pid") == os.getpid():
            path.unlink()
    except FileNotFoundError:
        return
    except (OSError, ValueError, AttributeError) as error:
        log.warning("vessel.note_not_removed", path=str(path), error=str(error))
