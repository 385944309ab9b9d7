"""Entry of the console script: Django's command line, prepared, with one-sentence errors instead of tracebacks."""

from __future__ import annotations

import os
import sys


def main(argv: list[str] | None = None) -> None:
    """Run the command named in `argv`; what is refused ends with one sentence on stderr and a non-zero exit code."""
    words = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "lychd.settings")
    from django.core.exceptions import ImproperlyConfigured

    from lychd.launch import prepared
    from runs.errors import LychdError

    try:
        with prepared(words):
            from django.core.management import execute_from_command_line
            from django.db import DatabaseError

            try:
                execute_from_command_line(["lychd", *words])
            except DatabaseError as error:
                sys.exit(_said(f"the database says: {str(error).splitlines()[0]}", 3))
    except (ImproperlyConfigured, LychdError) as error:
        sys.exit(_said(str(error), 3 if words[:1] in (["up"], ["vessel"]) else 2))
    except KeyboardInterrupt:
        sys.exit(130)


def _said(sentence: str, code: int) -> int:
    sys.stderr.write(f"lychd: {sentence}\n")
    return code


if __name__ == "__main__":
    main()
