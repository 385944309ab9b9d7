"""`lychd quarantine RUN`: set one bad Run aside, or let it in again (ruling 15).

Talks to the database and needs no Vessel, since it is for the time when none starts. What it does and its entry in
the admin's log are one transaction.
"""

from __future__ import annotations

import getpass
import json
import uuid
from argparse import ArgumentParser
from typing import Any, ClassVar

import structlog
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError
from django.db import transaction

from lychd.cli.texts import harmless
from lychd.sigils.models import User
from lychd.sigils.operator import person
from runs.errors import LychdError, NotFound
from runs.ledger.outcomes import Lost, Reason
from runs.ledger.quarantine import Quarantine, quarantine
from runs.ledger.runner import run_script
from runs.models import Run
from runs.states import ON_WORKER, WORDS, RunStatus

log = structlog.get_logger(__name__)

LONGEST_REASON = 500


class Command(BaseCommand):
    help = "Set a Run aside, so that nothing claims it and no start waits for it; or let it in again."
    # What else may be wrong must not stand in the way of this.
    requires_system_checks: ClassVar[list[str]] = []  # pyright: ignore[reportAssignmentType] the stubs know only text

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("run", metavar="RUN", help="the id of the Run")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--reason", metavar="TEXT", help="set it aside; why, for whoever looks at it later")
        what.add_argument("--release", action="store_true", help="let it in again")
        parser.add_argument("--by", metavar="USERNAME", help="in whose name; default: the operator")
        parser.add_argument("--data", metavar="DIR", help="the data folder (default var/)")
        parser.add_argument("--json", action="store_true", help="machine-readable output")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it.

        Raises:
            CommandError: it was refused, or the database does not answer; one sentence.
        """
        run_id, reason = _id(options["run"]), None if options["release"] else _reason(options["reason"])
        try:
            who = _person(options["by"])
            status, again = _write(run_id, reason, who)
        except LychdError as error:
            raise CommandError(error.detail) from error
        except DatabaseError as error:
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            raise CommandError(f"The database cannot be used: {first}") from error
        if who is None:
            event = "run.released" if reason is None else "run.quarantined"
            log.warning(event, run=str(run_id), reason=reason, login=_login())
        if options["json"]:
            facts = {"run": str(run_id), "status": status, "quarantined": reason is not None, "changed": not again}
            self.stdout.write(json.dumps({**facts, "reason": reason}, indent=2))
            return
        self.stdout.write(_told(run_id, status, reason, again=again))
        if who is None:
            self.stderr.write("No account exists in whose name it could be written down: only the log has it.")


def _write(run_id: uuid.UUID, reason: str | None, who: User | None) -> tuple[RunStatus, bool]:
    """The edge and its entry in the admin's log; the status, and whether it stood so before.

    Raises:
        NotFound: there is no such Run.
        LychdError: it cannot be set aside.
    """
    with transaction.atomic():
        outcome = run_script(quarantine(Quarantine(run_id, reason)))
        if isinstance(outcome, Lost):
            if outcome.reason is Reason.TERMINAL:
                raise LychdError("It has ended, and its evidence says the same: it is in nobody's way.")
            raise NotFound("There is no such Run.")
        if who is not None and not (reason is None and outcome.again):
            done = "Released from quarantine" if reason is None else f"Quarantined: {reason}"
            message = f"{done.rstrip('.')}. On the command line, by the login {_login()}."
            run = Run.objects.only("id", "pattern_key").get(pk=run_id)
            LogEntry.objects.log_actions(who.pk, [run], CHANGE, change_message=message, single_object=True)
    return outcome.value, outcome.again


def _told(run_id: uuid.UUID, status: RunStatus, reason: str | None, *, again: bool) -> str:
    if reason is None:
        return f"Run {run_id} {'was not in quarantine' if again else 'is let in again'}; it is {WORDS[status]}."
    said = f"Run {run_id} is in quarantine: nothing claims it, and no start waits for it."
    if again:
        said = f"Run {run_id} was in quarantine before; the reason is now this one."
    if status in ON_WORKER:
        said += " If a Vessel works on it now, that goes on to the end of the hop."
    return f"{said} `lychd cancel {run_id}` ends it, `lychd quarantine {run_id} --release` lets it in again."


def _person(username: str | None) -> User | None:
    """In whose name; None where nobody exists and nobody was named.

    Raises:
        NotFound: the named person does not exist.
    """
    try:
        return person(username)
    except NotFound:
        if username is not None:
            raise
        return None


def _id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise CommandError(f"{harmless(text, 100)!r} is not the id of a Run.") from error


def _reason(text: str) -> str:
    reason = text.strip()
    if not reason or len(reason) > LONGEST_REASON or not reason.isprintable():
        raise CommandError(f"The reason must be one line of 1 to {LONGEST_REASON} printable characters.")
    return reason


def _login() -> str:
    """Who is logged in at this machine, as far as it can be told."""
    try:
        return getpass.getuser()
    except OSError:
        return "unknown"
