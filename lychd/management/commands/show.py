"""`lychd show RUN`: one Run as it stands, with its stored events if wanted."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from lychd.cli.command import ClientCommand, Exit, add_run_argument
from lychd.cli.connection import Connection
from lychd.cli.output import Output
from lychd.cli.views import TextView, show_run
from lychd.client import Client, Event


class Command(ClientCommand):
    help = "Show one Run: status, input, output, error. Example: lychd show RUN --steps"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add_run_argument(parser)
        parser.add_argument("--steps", action="store_true", help="and its stored events")

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """Ask and show."""
        run = await client.run(options["run"])
        found = [one async for one in client.history(run["id"])] if options["steps"] else []
        if out.as_json:
            steps = [{k: v for k, v in one.raw.items() if k != "type"} for one in found if isinstance(one, Event)]
            gaps = [[one.first, one.last] for one in found if not isinstance(one, Event)]
            out.document({**run, "steps": steps, "gaps": gaps} if options["steps"] else run)
            return Exit.OK
        show_run(out, run)
        if options["steps"]:
            out.line(("  events", "dim"))
            view = TextView(out)
            for one in found:
                view.show(one)
            view.close()
        return Exit.OK
