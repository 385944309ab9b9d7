"""`lychd vessel`: the Vessel alone, for a database that is already migrated."""

from __future__ import annotations

import sys
from typing import Any

from lychd.hosting_command import HostingCommand, host


class Command(HostingCommand):
    help = "Run the Vessel on a database that is already migrated. Example: lychd vessel --bind 127.0.0.1:8000"

    def handle(self, *args: Any, **options: Any) -> None:
        """Become the Vessel's process; ends it with the Vessel's exit code."""
        self.prove()

        def told(url: str) -> None:
            self.stdout.write(f"The Vessel listens on {url}")
            self.stdout.flush()

        sys.exit(host(options["bind"], told=told))
