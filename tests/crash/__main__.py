"""`make crash`: kills a Vessel at each of its SQL statements, starts it again, and holds what is left against the
promises. `docs/crash-sweep.md` says what that means.

Needs DATABASE_URL, a PostgreSQL on which databases may be made; or uses an embedded one of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from lychd.testing import database
from tests.crash.harness import Verdict
from tests.crash.sweep import Record, Result, numbers, sweep, template


def say(words: str) -> None:
    """Print, and at once: a long sweep is watched."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> int:
    """Sweep and print; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="make crash ARGS=…", description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th statement (1: all)")
    parser.add_argument("--first", type=int, default=1, metavar="K", help="begin at this statement")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="at most so many statements")
    parser.add_argument(
        "--again", type=int, default=5, metavar="N", help="each N-th try dies again while it recovers (0: none)"
    )
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1), help="Vessels at a time")
    parser.add_argument("--record", type=Path, default=None, metavar="FILE", help="also append a JSON line a try")
    options = parser.parse_args()
    if options.every < 1 or options.first < 1 or options.again < 0 or options.jobs < 1:
        parser.error("--every, --first and --jobs begin at 1, --again at 0")
    record = None if options.record is None else Record(options.record)

    def told(verdict: Verdict, result: Result) -> None:
        if record is not None:
            record.write(verdict)
        if verdict.violations:
            say(str(verdict))
        elif result.tries % 25 == 0:
            say(f"{result.tries} tries, {result.kills} kills, {result.violations} violations")

    began = time.monotonic()
    with template() as made:
        which = numbers(options.first, options.every, options.limit)
        result = sweep(made, which, again=options.again, jobs=options.jobs, told=told)
    result.seconds = time.monotonic() - began
    which_ones = f"every {options.every}. statement" if options.every > 1 else "every statement"
    say(f"\n{which_ones} from {options.first} on, at most {options.limit}" if options.limit else f"\n{which_ones}")
    say(str(result))
    return 1 if result.violations else 0


if __name__ == "__main__":
    database.choose([], secret_key="crash-" + "x" * 60)
    try:
        sys.exit(main())
    finally:
        database.end()
