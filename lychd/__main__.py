"""Entry of the console script: Django's command line with one-sentence errors instead of tracebacks."""

from __future__ import annotations

import os
import sys


def main(argv: list[str] | None = None) -> None:
    """Run the command named in `argv`; bad settings end with one sentence on stderr and exit code 2."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "lychd.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    from runs.errors import LychdError

    try:
        execute_from_command_line(["lychd", *(sys.argv[1:] if argv is None else argv)])
    except (ImproperlyConfigured, LychdError) as error:
        sys.stderr.write(f"lychd: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
