"""`lychd sigil create|list|revoke`: the tokens with which programs come in. Talks to the database, needs no Vessel."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError
from django.utils import timezone

from lychd.sigils import rights, tokens
from lychd.sigils.models import Sigil, User
from lychd.sigils.operator import person
from runs.authority import Scope
from runs.errors import LychdError, NotFound


class Command(BaseCommand):
    help = "Make, list and revoke Sigils."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the three actions."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
        create = actions.add_parser("create", help="make a Sigil and show its token once")
        create.add_argument("name")
        create.add_argument(
            "--scope",
            action="append",
            required=True,
            metavar="S",
            help=f"may be given again; one of {', '.join(scope.value for scope in Scope)}",
        )
        create.add_argument("--tenant", default="default", metavar="T")
        create.add_argument("--owner", metavar="USERNAME", help="whose rights bound it; default: the operator")
        create.add_argument("--expires", type=float, metavar="DAYS", help="days until it ends; default: never")
        create.add_argument(
            "--source", action="append", default=[], metavar="S", help="a source that its submissions may name"
        )
        show = actions.add_parser("list", help="show all Sigils, never their tokens")
        show.add_argument("--tenant", metavar="T")
        revoke = actions.add_parser("revoke", help="end a Sigil for ever")
        revoke.add_argument("name")
        revoke.add_argument("--tenant", default="default", metavar="T")
        for each in (create, show, revoke):
            each.add_argument("--json", action="store_true", help="machine-readable output")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do the action.

        Raises:
            CommandError: it was refused, or the database does not answer; one sentence.
        """
        action = {"create": self._create, "list": self._list, "revoke": self._revoke}[options["action"]]
        try:
            action(options)
        except LychdError as error:
            raise CommandError(error.detail) from error
        except DatabaseError as error:
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            raise CommandError(f"The database cannot be used: {first}") from error

    def _create(self, options: dict[str, Any]) -> None:
        days = options["expires"]
        try:
            ends = None if days is None else timezone.now() + timedelta(days=days)
        except (OverflowError, ValueError) as error:
            raise CommandError(f"--expires {days:g} is not a usable number of days.") from error
        owner = _owner(options["owner"])
        sigil, token = tokens.create(
            options["name"],
            owner,
            options["scope"],
            tenant=options["tenant"],
            sources=options["source"],
            expires_at=ends,
        )
        if options["json"]:
            self._print_json({**_facts(sigil), "token": token})
            return
        self.stdout.write(token)
        self.stderr.write(f"Sigil {sigil} made. The token above is shown only this once.")
        cut = set(sigil.scopes) - rights.held(
            superuser=owner.is_superuser, permissions=frozenset(owner.get_all_permissions())
        )
        if cut:
            self.stderr.write(f"Without effect until {owner.username} has the rights: {', '.join(sorted(cut))}.")

    def _list(self, options: dict[str, Any]) -> None:
        found = Sigil.objects.select_related("owner").order_by("tenant", "name")
        if options["tenant"]:
            found = found.filter(tenant=options["tenant"])
        facts = [_facts(sigil) for sigil in found]
        if options["json"]:
            self._print_json(facts)
            return
        rows = [("NAME", "TENANT", "OWNER", "STATE", "LAST USED", "SCOPES")] + [
            (
                one["name"],
                one["tenant"],
                one["owner"],
                one["state"],
                one["last_used_at"] or "never",
                " ".join(one["scopes"]),
            )
            for one in facts
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def _revoke(self, options: dict[str, Any]) -> None:
        sigil = Sigil.objects.select_related("owner").filter(name=options["name"], tenant=options["tenant"]).first()
        if sigil is None:
            raise NotFound(f"There is no Sigil {options['name']} in the tenant {options['tenant']}.")
        now = tokens.revoke(sigil)
        if options["json"]:
            self._print_json(_facts(sigil))
        else:
            self.stdout.write(f"Sigil {sigil} {'is revoked' if now else 'was revoked before'}.")

    def _print_json(self, value: Any) -> None:
        self.stdout.write(json.dumps(value, indent=2, ensure_ascii=False))


def _owner(username: str | None) -> User:
    """The named person, else who acts for this machine.

    Raises:
        NotFound: there is no such person, or nobody stands out.
    """
    try:
        return person(username)
    except NotFound as error:
        raise error if username is not None else NotFound("Name the Sigil's owner with --owner USERNAME.") from error


def _facts(sigil: Sigil) -> dict[str, Any]:
    ended = sigil.expires_at is not None and sigil.expires_at <= timezone.now()
    return {
        "id": str(sigil.pk),
        "name": sigil.name,
        "tenant": sigil.tenant,
        "owner": sigil.owner.username,
        "scopes": sigil.scopes,
        "sources": sigil.sources,
        "state": "revoked" if sigil.revoked_at else "expired" if ended else "usable",
        "expires_at": _time(sigil.expires_at),
        "revoked_at": _time(sigil.revoked_at),
        "last_used_at": _time(sigil.last_used_at),
    }


def _time(value: Any) -> str | None:
    return None if value is None else value.isoformat(timespec="seconds").replace("+00:00", "Z")
