"""Management commands against the database of the tests, for `make lint`: finds or starts one, runs, stops it."""

from __future__ import annotations

import os
import sys
import tempfile


def main(words: list[str]) -> int:
    """Run the command; a database is started only if none is named."""
    os.environ.setdefault("LYCHD_SECRET_KEY", "a key for checks only, which never signs anything that matters")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "lychd.settings")
    with tempfile.TemporaryDirectory() as data:
        os.environ.setdefault("LYCHD_DATA", data)
        from lychd.postgres import launcher

        cluster = None
        if not os.environ.get("DATABASE_URL"):
            cluster = launcher.ensure(None, throwaway=True)
            os.environ["DATABASE_URL"] = cluster.url
        try:
            import django
            from django.core.management import call_command

            django.setup()
            call_command(words[0], *words[1:])
            from django.db import connections

            for connection in connections.all(initialized_only=True):
                connection.close_pool()  # pyright: ignore[reportAttributeAccessIssue] - of the PostgreSQL backend
        finally:
            if cluster is not None:
                cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
