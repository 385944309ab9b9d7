"""The frame of every command that speaks to a running Vessel: options, connection, and one sentence for each failure.

Touches no database. The exit codes 0 to 3 belong to Runs; whatever keeps the command itself from its work is 4, a
command line that makes no sense is 64, Ctrl-C is 130.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from argparse import ArgumentParser, HelpFormatter
from enum import IntEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from lychd.cli.connection import TOKEN, Connection, find
from lychd.cli.output import Output
from lychd.cli.texts import harmless, sentence
from lychd.client import Client, OutcomeUnknown, Problem, Unreachable
from runs.errors import LychdError


class Exit(IntEnum):
    """What the exit code of a client command says."""

    OK = 0
    FAILED = 1
    CANCELLED = 2
    WAITING = 3
    REFUSED = 4
    USAGE = 64
    INTERRUPTED = 130


class Parser(CommandParser):
    """Says in one sentence what is wrong with a command line."""

    def error(self, message: str) -> NoReturn:
        """End with the exit code for wrong usage."""
        if not self.called_from_command_line:
            raise CommandError(message)
        self.exit(Exit.USAGE, f"{self.prog}: {message.rstrip('.')}; see `{self.prog} --help`.\n")


class ClientCommand(BaseCommand):
    """A command that asks a Vessel. Subclasses implement `act`."""

    requires_system_checks: ClassVar[list[str]] = []  # pyright: ignore[reportAssignmentType] the stubs know only text

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:  # noqa: ARG002 Django's
        """A parser with our options alone: those of Django mean nothing to a client."""
        parser = Parser(
            prog=f"{Path(prog_name).name} {subcommand}",
            description=self.help,
            formatter_class=HelpFormatter,
            called_from_command_line=getattr(self, "_called_from_command_line", False),
        )
        self.add_arguments(parser)
        parser.add_argument("--data", metavar="DIR", help="the data folder of the Vessel (default var/)")
        parser.add_argument("--json", action="store_true", help="machine-readable output")
        parser.add_argument("--no-color", action="store_true", help="no colours")
        parser.set_defaults(settings=None, pythonpath=None, traceback=False, force_color=False, verbosity=1)
        return parser

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 Django's
        """Do it, and end the process with the exit code if that is not 0."""
        # Every request would be a line of the log otherwise.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        out = Output(as_json=options["json"], color=False if options["no_color"] else None)
        try:
            code = self._run(out, options)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read our output has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = Exit.OK
        if code:
            sys.exit(int(code))

    async def act(self, client: Client, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        """The command's own work; returns its exit code."""
        raise NotImplementedError

    def interrupted(self, out: Output) -> None:
        """What to say when the person at the keyboard had enough."""

    def _run(self, out: Output, options: dict[str, Any]) -> int:
        connection: Connection | None = None
        try:
            connection = find(Path(options["data"] or settings.DATA))
            return asyncio.run(self._with_client(connection, out, options))
        except KeyboardInterrupt:
            self.interrupted(out)
            return Exit.INTERRUPTED
        except LychdError as error:
            for line in sentences(error, connection):
                out.trouble(line)
            return Exit.REFUSED

    async def _with_client(self, connection: Connection, out: Output, options: dict[str, Any]) -> int:
        async with Client(connection.url, connection.token) as client:
            return await self.act(client, connection, out, options)


def sentences(error: LychdError, connection: Connection | None = None) -> list[str]:
    """What is said on stderr: one sentence, and one more line for each part of the input that is not valid."""
    said = harmless(error.detail, 2000)
    if isinstance(error, Problem):
        return _refusal(error, said, connection)
    if connection is not None and type(error) is Unreachable:
        said = connection.silence()
    elif isinstance(error, OutcomeUnknown):
        said = f"{sentence(said)} Look with `lychd runs` before you repeat it."
    return [f"lychd: {sentence(said)}"]


def _refusal(error: Problem, said: str, connection: Connection | None) -> list[str]:
    if error.status == 401 and connection is not None:
        remedy = "set another one" if connection.token_from == TOKEN else f"start the Vessel again, or set {TOKEN}"
        return [
            f"lychd: The Vessel at {connection.url} does not accept the token in {connection.token_from}: {remedy}."
        ]
    run = error.facts.get("run")
    if isinstance(run, str) and run not in said:
        said = f"{said.rstrip('.')} (Run {harmless(run, 40)})"
    details = [
        (str(one.get("pointer", "")) or "the whole", str(one.get("detail", "is not valid"))) for one in error.errors
    ]
    listed = [f"  {harmless(where)}: {harmless(what)}" for where, what in details]
    # A single error that the sentence already tells is not told twice.
    if len(details) == 1 and details[0][1].rstrip(".") in error.detail:
        listed = []
    return [f"lychd: {sentence(said)}", *listed]


def add_run_argument(parser: ArgumentParser) -> None:
    """The argument that names a Run."""
    parser.add_argument("run", metavar="RUN", help="the id of the Run")
