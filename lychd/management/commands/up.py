"""`lychd up`: from nothing to a Vessel that serves: database, migrations, first account, local Sigil, Vessel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connections

from lychd.hosting_command import host
from lychd.launch import DEFAULT_BIND
from lychd.sigils.operator import ensure_operator


class Command(BaseCommand):
    help = "Find or start the database, migrate it, and run the Vessel. Example: lychd up --bind 127.0.0.1:8123"
    requires_system_checks = "__all__"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--bind", default=DEFAULT_BIND, help="host:port to listen on (default %(default)s)")
        parser.add_argument("--data", help="folder of everything the product keeps on disk (default var/)")
        parser.add_argument("--profile", choices=["durable", "memory"], help="durable (default) or memory")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        account = ensure_operator(Path(settings.DATA))
        for connection in connections.all():
            connection.close()

        def told(url: str) -> None:
            self.stdout.write(f"The Vessel listens on {url}")
            self.stdout.write(f"Admin: {url}/admin/  (user {account.username})")
            if account.password:
                self.stdout.write(f"One-time password of {account.username}: {account.password}")
            self.stdout.write(f"Token of the local Sigil: {account.token_path}")
            self.stdout.flush()

        sys.exit(host(options["bind"], told=told))
