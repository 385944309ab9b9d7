"""`lychd runs`: the newest Runs."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from lychd.cli.command import ClientCommand, Exit
from lychd.cli.connection import Connection
from lychd.cli.output import Output, Piece, status_style
from lychd.cli.texts import moment, one_line
from lychd.cli.wording import failure, unsettled, word
from lychd.client import Client
from runs.states import RunStatus

HEADER = ("ID", "PATTERN", "STATUS", "CREATED", "NOTE")
MOST_QUARANTINED = 20


class Command(ClientCommand):
    help = "List Runs, newest first. Example: lychd runs --status failed"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--status", choices=[status.value for status in RunStatus], metavar="S", help="only these")
        parser.add_argument("--pattern", metavar="P", help="only Runs of this Pattern")
        parser.add_argument("--session", metavar="ID", help="only Runs of this session")
        parser.add_argument("--source", metavar="S", help="only Runs from this source")
        parser.add_argument("--quarantined", action="store_true", help="only Runs in quarantine")
        parser.add_argument("--limit", type=int, default=20, metavar="N", help="1 to 200 (default %(default)s)")
        parser.add_argument("--cursor", metavar="C", help="where the page before ended")

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """Ask for a page and show it."""
        asked = {name: options[name] for name in ("status", "pattern", "session", "source", "limit", "cursor")}
        page = await client.runs(**asked, quarantined=options["quarantined"] or None)
        if out.as_json:
            out.document(page)
            return Exit.OK
        if page["items"]:
            out.table(HEADER, [_row(run) for run in page["items"]])
        else:
            out.line("There are no such Runs.")
        if page.get("next"):
            out.line((f"There are more: --cursor {one_line(page['next'])}", "dim"))
        if not options["quarantined"]:
            await _show_quarantined(client, out, {run.get("id") for run in page["items"]})
        return Exit.OK


async def _show_quarantined(client: Client, out: Output, shown: set[Any]) -> None:
    """Whatever was asked for: Runs that wait for a person are always shown (ruling 15)."""
    found = await client.runs(quarantined=True, limit=MOST_QUARANTINED)
    rows = [run for run in found["items"] if run.get("quarantine") and run.get("id") not in shown]
    if rows:
        out.line()
        out.line(("In quarantine, waiting for a person:", "red"))
        out.table(HEADER, [_row(run) for run in rows])
        if found.get("next"):
            out.line(("There are more: lychd runs --quarantined", "dim"))


def _row(run: dict[str, Any]) -> list[Piece]:
    status = str(run.get("status"))
    note = ""
    if run.get("quarantine"):
        note = f"quarantined: {one_line(run['quarantine'].get('reason'), 80)}"
    elif reason := unsettled(run):
        note = reason
    elif run.get("error"):
        note = failure(run["error"])
    elif run.get("wait"):
        note = f"since {moment(run['wait'].get('since'))}"
    pattern = run.get("pattern") or {}
    return [
        one_line(run.get("id")),
        one_line(f"{pattern.get('key')} {pattern.get('revision')}"),
        (word(status), status_style(status)),
        moment(run.get("created_at")),
        note[:120],
    ]
