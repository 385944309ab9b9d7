"""`lychd patterns [NAME]`: what can be submitted, and how one Pattern goes."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from lychd.cli.command import ClientCommand, Exit
from lychd.cli.connection import Connection
from lychd.cli.output import Output
from lychd.cli.texts import BLOCK, block, harmless, one_line
from lychd.client import Client, NotLychd
from runs.errors import PatternError
from runs.patterns import Manifest


class Command(ClientCommand):
    help = "List what can be submitted, or show one Pattern with its input and its graph."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("name", nargs="?", metavar="NAME", help="one Pattern")

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """Ask and show."""
        if options["name"] is not None:
            pattern = await client.pattern(options["name"])
            if out.as_json:
                out.document(pattern)
            else:
                _show(out, pattern)
            return Exit.OK
        found = await client.patterns()
        if out.as_json:
            out.document({"items": found, "next": None})
        elif found:
            out.table(
                ("PATTERN", "REVISION", "WHAT IT DOES"),
                [
                    (
                        one_line(one.get("key")),
                        one_line(one.get("revision")),
                        one_line(one.get("description") or one.get("title") or "", 80),
                    )
                    for one in found
                ],
            )
        else:
            out.line("There are no Patterns; LYCHD_APPS names the apps that bring some.")
        return Exit.OK


def _show(out: Output, pattern: dict[str, Any]) -> None:
    try:
        manifest = Manifest.from_json({"flags": {"durable": True}, "continues": [], "schemas": {}, **pattern})
    except PatternError as error:
        raise NotLychd(f"The server sent a Pattern that cannot be drawn: {error.detail}") from error
    out.text(harmless(manifest.draw(), BLOCK, keep="\n"))
    out.line()
    if pattern.get("description"):
        out.line(one_line(pattern["description"]))
    out.line(("digest  ", "dim"), one_line(pattern.get("digest")))
    out.line(("input", "dim"))
    out.text(block(pattern.get("input")))
