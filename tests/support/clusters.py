"""Servers of PostgreSQL of a test's own."""

from __future__ import annotations

import uuid

from django.core.management import call_command
from django.db import connections

from lychd.postgres import urls


def migrate(url: str) -> None:
    """Bring the database of that address to the newest tables."""
    alias = f"restart_{uuid.uuid4().hex[:8]}"
    entry = urls.django_database(url, pool=2)
    entry["OPTIONS"].pop("pool")
    connections.settings[alias] = {**connections.settings["default"], **entry}
    try:
        call_command("migrate", database=alias, interactive=False, verbosity=0)
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]
