"""`lychd follow RUN`: everything that happened and happens in a Run, until it ends."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from lychd.cli.command import ClientCommand, add_run_argument
from lychd.cli.connection import Connection
from lychd.cli.following import PATIENCE_SECONDS, follow
from lychd.cli.output import Output
from lychd.client import Client


class Command(ClientCommand):
    help = "Show a Run from its first event to its end. Ends with 0 done, 1 failed, 2 cancelled, 3 see --no-wait."
    _run_id: str | None = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add_run_argument(parser)
        parser.add_argument("--cursor", metavar="C", help="show only what came after this event (see --json)")
        parser.add_argument("--no-wait", action="store_true", help="end with 3 where a consent is needed")
        parser.add_argument(
            "--patience",
            type=float,
            default=PATIENCE_SECONDS,
            metavar="S",
            help="seconds that a Vessel may be away before following ends (default %(default)g)",
        )

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """Follow."""
        run = await client.run(options["run"])
        self._run_id = str(run["id"])
        return await follow(
            client,
            connection,
            out,
            run,
            wait=not options["no_wait"],
            cursor=options["cursor"],
            patience=options["patience"],
        )

    def interrupted(self, out: Output) -> None:
        """Say how to come back."""
        if self._run_id is not None:
            out.trouble(f"The Run goes on; follow it again with `lychd follow {self._run_id}`.")
