"""`lychd up`: from nothing to a Vessel that serves: database, migrations, first account, local Sigil, Vessel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connections

from lychd.hosting_command import HostingCommand, host
from lychd.sigils.operator import OperatorAccount, ensure_operator


class Command(HostingCommand):
    help = "Find or start the database, migrate it, and run the Vessel. Example: lychd up --bind 127.0.0.1:8123"

    def handle(self, *args: Any, **options: Any) -> None:
        """Become the Vessel's process; ends it with the Vessel's exit code.

        Raises:
            LychdError, django.db.Error: one sentence why the database or the account could not be prepared.
        """
        self.prove()
        call_command("migrate", interactive=False, verbosity=0, skip_checks=True)
        account = ensure_operator(Path(settings.DATA))
        for connection in connections.all():
            connection.close()
        shown = False

        def told(url: str) -> None:
            nonlocal shown
            shown = True
            self._say(f"The Vessel listens on {url}")
            self._say(f"Admin: {url}/admin/ (user {account.username})")
            self._tell_password(account)
            if account.token_path is None:
                self._say("The local Sigil is revoked: make another with `lychd sigil create NAME --scope S`.")
            else:
                self._say(f"Token of the local Sigil: {account.token_path}")

        try:
            code = host(options["bind"], told=told)
        finally:
            if not shown:
                # It is kept nowhere, so a start that failed after the account was made must not swallow it.
                self._tell_password(account)
        sys.exit(code)

    def _tell_password(self, account: OperatorAccount) -> None:
        if account.password is not None:
            self._say(f"One-time password of {account.username}: {account.password}")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
