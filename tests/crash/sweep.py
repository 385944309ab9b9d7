"""Which statements a sweep kills at, and what came of it."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from tests.crash.harness import Kill, Template, Verdict, attempt

# No scenario comes this far.
NEVER = Kill(1_000_000_000, "before")
# The length of the scenario differs a little from life to life: this many tries in a row must find it ended.
PAST_THE_END = 5
# The second death lies among the first statements of a start, which are those of the recovery.
RECOVERY = 150
# Spreads the second deaths over the recovery; has no divisor in common with it.
STRIDE = 37


@dataclass(slots=True)
class Result:
    """What a sweep tried and what it found.

    Args:
        length: statements of the scenario when nothing dies.
    """

    length: int
    tries: int = 0
    kills: int = 0
    twice: int = 0
    last: int = 0
    seconds: float = 0.0
    pools: Counter[str] = field(default_factory=Counter[str])
    bad: list[Verdict] = field(default_factory=list[Verdict])

    @property
    def violations(self) -> int:
        return sum(len(verdict.violations) for verdict in self.bad)

    def add(self, verdict: Verdict) -> None:
        """Count one try. One that killed nobody is judged like the others."""
        self.tries += 1
        self.kills += verdict.killed
        self.twice += verdict.killed == 2
        if verdict.killed:
            self.last = max(self.last, verdict.kills[0].at)
            self.pools[verdict.statement[0].split("\t")[1]] += 1
        if verdict.violations:
            self.bad.append(verdict)

    def __str__(self) -> str:
        where = ", ".join(f"{name} {number}" for name, number in self.pools.most_common())
        return "\n".join(
            [
                f"statements of the scenario when nothing dies: {self.length}",
                f"the last statement that was killed at:        {self.last}",
                f"tries:                                        {self.tries} in {self.seconds:.0f} s",
                f"kills:                                        {self.kills} ({self.twice} tries died a second time)",
                f"violations:                                   {self.violations} in {len(self.bad)} tries",
                f"where the first death was: {where}",
            ]
        )


@contextmanager
def template() -> Generator[Template]:
    """A template of this process, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="lychd-crash-") as folder:
        made = Template(Path(folder))
        try:
            made.make()
            yield made
        finally:
            made.drop()


def at(number: int, *, again: bool = False) -> tuple[Kill, ...]:
    """The deaths of the try with this number; with `again` the next life dies as well, while it recovers."""
    first = Kill.number(number)
    return (first, Kill.number(1 + number * STRIDE % RECOVERY)) if again else (first,)


def spread(points: int, length: int) -> list[int]:
    """Numbers of statements, evenly over the whole scenario."""
    return [max(1, round(length * (place + 0.5) / points)) for place in range(points)]


def sweep(
    made: Template, numbers: Iterator[int], *, again: int, jobs: int, told: Callable[[Verdict, Result], None]
) -> Result:
    """Try every number until the scenario ends before it.

    Args:
        numbers: of statements, rising.
        again: every so many-th try dies a second time; 0: none.
        jobs: Vessels at a time.
        told: called after each try.
    """
    began = time.monotonic()
    unharmed = attempt(made, NEVER)
    result = Result(unharmed.statements)
    result.add(unharmed)
    told(unharmed, result)
    ended, place = 0, 0
    waiting: set[Future[Verdict]] = set()
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(waiting) < jobs and ended < PAST_THE_END and (number := next(numbers, None)) is not None:
                place += 1
                kills = at(number, again=bool(again) and place % again == 0)
                waiting.add(pool.submit(attempt, made, *kills))
            if not waiting:
                break
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for verdict in (each.result() for each in done):
                ended = 0 if verdict.killed else ended + 1
                result.seconds = time.monotonic() - began
                result.add(verdict)
                told(verdict, result)
    return result


@dataclass(slots=True)
class Record:
    """A line a try in a file, so that a long sweep that was stopped still says what it saw."""

    path: Path

    def write(self, verdict: Verdict) -> None:
        line: dict[str, Any] = {
            "kills": [str(kill) for kill in verdict.kills],
            "killed": verdict.killed,
            "at": verdict.statement,
            "seconds": round(verdict.seconds, 1),
            "violations": verdict.violations,
        }
        with self.path.open("a") as out:
            out.write(json.dumps(line) + "\n")


def numbers(first: int, every: int, limit: int | None) -> Iterator[int]:
    """From `first` on every so many-th number, at most `limit` of them."""
    return islice(count(first, every), limit)
