"""`lychd decide CONSENT grant|deny`: answer what a Run asks."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from lychd.cli.command import ClientCommand, Exit
from lychd.cli.connection import Connection
from lychd.cli.output import Output
from lychd.cli.texts import one_line
from lychd.cli.wording import consent as told
from lychd.client import Client


class Command(ClientCommand):
    help = "Answer what a Run asks. `lychd consents` lists what waits. Example: lychd decide CONSENT grant"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("consent", metavar="CONSENT", help="the id of the Consent")
        parser.add_argument("verdict", choices=("grant", "deny"), metavar="grant|deny", help="yes or no")
        parser.add_argument("--comment", metavar="T", default="", help="why; kept with the decision")
        parser.add_argument("--digest", metavar="D", help="refuse if the question is not the one with this digest")

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """Decide and show how the Consent stands."""
        grant = options["verdict"] == "grant"
        found = await client.decide(
            options["consent"], grant=grant, comment=options["comment"], digest=options["digest"]
        )
        if out.as_json:
            out.document(found)
            return Exit.OK
        out.line(told(found))
        if found.get("status") == "pending":
            needs = (found.get("requires") or {}).get("quorum")
            out.line((f"{one_line(found.get('grants'), 10)} of {one_line(needs, 10)} people have said yes.", "yellow"))
            return Exit.OK
        out.line((f"Follow the Run with `lychd follow {one_line(found.get('run'), 40)}`.", "dim"))
        return Exit.OK
