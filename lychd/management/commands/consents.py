"""`lychd consents`: what Runs ask, and how it was answered."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from lychd.cli.command import ClientCommand, Exit
from lychd.cli.connection import Connection
from lychd.cli.output import Output, Piece
from lychd.cli.texts import moment, one_line
from lychd.cli.wording import CONSENT_STYLES
from lychd.client import Client

STATUSES = ("pending", "granted", "denied", "expired", "cancelled", "all")


class Command(ClientCommand):
    help = "List Consents, newest first: those that wait, or with --status others. Answer with `lychd decide`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--status",
            choices=STATUSES,
            default="pending",
            metavar="S",
            help=f"{', '.join(STATUSES)} (default pending)",
        )
        parser.add_argument("--run", metavar="RUN", help="only those of this Run")
        parser.add_argument("--limit", type=int, default=20, metavar="N", help="1 to 200 (default %(default)s)")
        parser.add_argument("--cursor", metavar="C", help="where the page before ended")

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """Ask for a page and show it."""
        status = None if options["status"] == "all" else options["status"]
        page = await client.consents(
            status=status, run=options["run"], limit=options["limit"], cursor=options["cursor"]
        )
        if out.as_json:
            out.document(page)
            return Exit.OK
        if not page["items"]:
            out.line("Nothing waits for an answer." if status == "pending" else "There are no such Consents.")
            return Exit.OK
        header = ("ID", "RUN", "TITLE", "RISK", "STATUS", "ASKED", "NOTE")
        out.table(header, [_row(one) for one in page["items"]])
        if page.get("next"):
            out.line((f"There are more: --cursor {one_line(page['next'])}", "dim"))
        return Exit.OK


def _row(one: dict[str, Any]) -> list[Piece]:
    status = str(one.get("status"))
    note = f"by {one_line(one.get('decided_by'), 60)}" if one.get("decided_by") else ""
    if status == "pending" and one.get("expires_at"):
        note = f"expires {moment(one['expires_at'])}"
    return [
        one_line(one.get("id")),
        one_line(one.get("run")),
        one_line(one.get("title"), 60),
        one_line(one.get("risk"), 20),
        (one_line(status, 20), CONSENT_STYLES.get(status, "magenta")),
        moment(one.get("requested_at")),
        note,
    ]
