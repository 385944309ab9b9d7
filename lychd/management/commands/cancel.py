"""`lychd cancel RUN`: stop a Run and everything that acts for it, and wait until that is done."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from lychd.cli.command import ClientCommand, Exit, add_run_argument
from lychd.cli.connection import Connection
from lychd.cli.following import PATIENCE_SECONDS, follow
from lychd.cli.output import Output
from lychd.cli.texts import harmless, sentence
from lychd.cli.views import show_run
from lychd.cli.wording import word
from lychd.client import Client, Event, OutcomeUnknown
from runs.states import RunStatus


class Command(ClientCommand):
    help = "Cancel a Run. Ends with 0 when it is cancelled, 1 when it had ended otherwise; with --no-wait 0 at once."
    _run_id: str | None = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add_run_argument(parser)
        parser.add_argument("--no-wait", action="store_true", help="do not wait until it is cancelled")
        parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS, metavar="S", help="see `lychd follow`")

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """Ask, and wait for the end."""
        try:
            cancelled = await client.cancel(options["run"])
        except OutcomeUnknown as error:
            out.trouble(f"lychd: {sentence(harmless(error.detail, 2000))} Cancelling again is safe.")
            return Exit.REFUSED
        run = cancelled.run
        if cancelled.over or options["no_wait"]:
            return _told(out, run, over=cancelled.over)
        self._run_id = str(run["id"])
        code = await follow(client, connection, out, run, patience=options["patience"], since=_begins)
        return {Exit.CANCELLED: Exit.OK, Exit.OK: Exit.FAILED}.get(Exit(code), code)

    def interrupted(self, out: Output) -> None:
        """Say what goes on."""
        if self._run_id is not None:
            out.trouble(f"The cancellation goes on; follow it with `lychd follow {self._run_id}`.")


def _begins(event: Event) -> bool:
    return event.kind == "status" and event.data.get("status") == RunStatus.CANCELLING


def _told(out: Output, run: dict[str, Any], *, over: bool) -> int:
    if out.as_json:
        out.document(run)
    else:
        show_run(out, run, payloads=False)
        if over:
            out.line((f"It was {word(run.get('status'))} before; nothing was changed.", "yellow"))
        else:
            out.line((f"Follow it with `lychd follow {harmless(str(run.get('id')), 40)}`.", "dim"))
    return Exit.FAILED if over and run.get("status") != RunStatus.CANCELLED else Exit.OK
