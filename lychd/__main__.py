"""Entry of the console script: Django's command line, prepared, with one-sentence errors instead of tracebacks."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

REFUSED, STARTUP_FAILED, INTERRUPTED = 2, 3, 130


def main(argv: list[str] | None = None) -> None:
    """Run the command named in `argv`; what is refused ends with one sentence on stderr and a non-zero exit code.

    Exit codes: 2 refused, 3 where that keeps a Vessel from starting, 130 ended by a signal; else the command's own.
    """
    words = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "lychd.settings")
    from django.core.exceptions import ImproperlyConfigured

    from lychd.launch import HOSTS, prepared
    from runs.errors import LychdError

    if words in (["--version"], ["version"]):
        _print_version()
        return
    hosting = bool(words) and words[0] in HOSTS
    if hosting:
        # Until the host listens to signals itself: what was started so far is closed again on the way out.
        signal.signal(signal.SIGTERM, _interrupt)
    code = STARTUP_FAILED if hosting else REFUSED
    try:
        with prepared(words) as config:
            from django.core.management import execute_from_command_line
            from django.db import DatabaseError

            try:
                execute_from_command_line(["lychd", *words])
            except DatabaseError as error:
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                sys.exit(_said(f"The database says: {first}", STARTUP_FAILED))
            except ModuleNotFoundError as error:
                if not _names_an_app(error, config.apps):
                    raise
                sys.exit(_said(f"LYCHD_APPS: there is no module {error.name!r}.", code))
    except (ImproperlyConfigured, LychdError) as error:
        sys.exit(_said(str(error), code))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _names_an_app(error: ModuleNotFoundError, apps: tuple[str, ...]) -> bool:
    return error.name is not None and any(f"{app}.".startswith(f"{error.name}.") for app in apps)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _print_version() -> None:
    from importlib.metadata import version

    sys.stdout.write(f"lychd {version('lychd')}\n")


def _said(sentence: str, code: int) -> int:
    sys.stderr.write(f"lychd: {' '.join(sentence.split())}\n")
    return code


if __name__ == "__main__":
    main()
