"""`lychd doctor`: what is wrong, and what to do about it. Asks the database and, if one runs, the Vessel."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from lychd.cli.examine import examine
from lychd.cli.output import Output
from lychd.cli.report import Report
from lychd.cli.texts import harmless


class Command(BaseCommand):
    help = "Check database, connections, broker, Vessel and unfinished work. Ends with 1 if anything is wrong."
    # It reports what the checks find, instead of dying of it.
    requires_system_checks: ClassVar[list[str]] = []  # pyright: ignore[reportAssignmentType] the stubs know only text

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--data", metavar="DIR", help="the data folder (default var/)")
        parser.add_argument("--json", action="store_true", help="machine-readable output")

    def handle(self, *args: Any, **options: Any) -> None:
        """Examine and tell."""
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        report = examine(settings.CONFIG, Path(options["data"] or settings.DATA), settings.DATABASE_URL)
        out = Output(as_json=options["json"], color=False if options["no_color"] else None)
        if out.as_json:
            out.document(report.to_json())
        else:
            _tell(out, report)
        if not report.ok:
            sys.exit(1)


def _tell(out: Output, report: Report) -> None:
    width = max(len(name) for name, _ in report.lines)
    for name, text in report.lines:
        first, *rest = text.split("\n")
        out.line((f"{name:<{width}}  ", "bold"), harmless(first, 500))
        for line in rest:
            out.line(f"{'':<{width}}  {harmless(line, 500)}")
    out.line()
    for finding in report.findings:
        out.line(("✗ ", "red"), (f"{finding.check}: ", "bold"), f"{harmless(finding.sentence, 1000)} {finding.remedy}")
        for one in finding.named:
            where = f"{one.run}: " if one.run else ""
            out.line(f"    {where}{harmless(one.reason, 1000)} {one.remedy}")
        if finding.runs and not finding.named:
            more = ", …" if (finding.count or 0) > len(finding.runs) else ""
            out.line(("    ", ""), (f"{', '.join(finding.runs)}{more}", "dim"))
    if report.ok:
        out.line(("✓ ", "green"), "nothing is wrong")
    else:
        number = len(report.findings)
        out.line((f"{number} finding{'' if number == 1 else 's'}", "red"))
