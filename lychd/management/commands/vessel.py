"""`lychd vessel`: the Vessel alone, for a database that is already migrated."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from lychd.hosting_command import host
from lychd.launch import DEFAULT_BIND


class Command(BaseCommand):
    help = "Run the Vessel on a database that is already migrated. Example: lychd vessel --bind 127.0.0.1:8000"
    requires_system_checks = "__all__"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--bind", default=DEFAULT_BIND, help="host:port to listen on (default %(default)s)")
        parser.add_argument("--data", help="folder of everything the product keeps on disk (default var/)")
        parser.add_argument("--profile", choices=["durable", "memory"], help="durable (default) or memory")

    def handle(self, *args: Any, **options: Any) -> None:
        sys.exit(host(options["bind"], told=lambda url: self.stdout.write(f"The Vessel listens on {url}")))
