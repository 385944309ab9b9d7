"""`lychd submit PATTERN`: hand work to the Vessel, and follow it if wanted."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from lychd.cli.command import ClientCommand, Exit
from lychd.cli.connection import Connection
from lychd.cli.following import PATIENCE_SECONDS, follow
from lychd.cli.output import Output
from lychd.cli.views import show_run
from lychd.client import Client
from runs import payloads
from runs.errors import Refused


class Command(ClientCommand):
    help = """Submit work. Example: lychd submit inventory --input '{"root": "."}' --follow"""
    _run_id: str | None = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("pattern", metavar="PATTERN", help="what to run; `lychd patterns` lists them")
        parser.add_argument("--input", metavar="JSON|@FILE", default="{}", help="its input; @- reads standard input")
        parser.add_argument("--priority", type=int, metavar="N", help="0 to 100, higher first")
        parser.add_argument("--session", metavar="ID", help="the session that the Run belongs to")
        parser.add_argument("--fence", action="store_true", help="refuse if the session has an unfinished Run")
        parser.add_argument("--key", metavar="KEY", help="idempotency key: the same key and work admit once")
        parser.add_argument("--source", metavar="S", help="where the work comes from, if the Sigil allows it")
        parser.add_argument("--follow", action="store_true", help="show what happens, until the Run ends")
        parser.add_argument("--no-wait", action="store_true", help="see `lychd follow`")
        parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS, metavar="S", help="see `lychd follow`")

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """Submit and show."""
        submitted = await client.submit(
            options["pattern"],
            _input(options["input"]),
            priority=options["priority"],
            session=options["session"],
            fence_session=options["fence"],
            source=options["source"] or connection.source,
            key=options["key"],
        )
        run = submitted.run
        if options["follow"]:
            self._run_id = str(run["id"])
            wait, patience = not options["no_wait"], options["patience"]
            return await follow(client, connection, out, run, wait=wait, patience=patience)
        if out.as_json:
            out.document(run)
            return Exit.OK
        show_run(out, run, payloads=False)
        if submitted.replayed:
            out.line(("It was submitted before under this key.", "yellow"))
        out.line((f"Follow it with `lychd follow {run['id']}`.", "dim"))
        return Exit.OK

    def interrupted(self, out: Output) -> None:
        """Say how to come back."""
        if self._run_id is not None:
            out.trouble(f"The Run goes on; follow it again with `lychd follow {self._run_id}`.")


def _input(text: str) -> Any:
    """The value of `--input`.

    Raises:
        Refused: the file cannot be read, or it is not JSON.
    """
    if not text.startswith("@"):
        return payloads.parse(text, what="input")
    try:
        read = sys.stdin.buffer.read() if text == "@-" else Path(text[1:]).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Refused(f"The input file {text[1:]} cannot be read: {reason}.") from error
    return payloads.parse(read, what="input")
