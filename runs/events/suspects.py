"""Batches of unknown outcome: when each is tried again, in which parts, and when it is given up.

A lost connection says nothing about the rows: most often the database went away, now and then one row is what breaks
it. So a batch that missed twice is tried in parts, beside fresh rows of other Runs; what alone keeps missing while
others are answered is the culprit, and nobody else pays for it (ruling 10). Decides only; writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from runs.events.event import Event

_TRIES_TOGETHER = 2
_TRIES_ALONE = 3


@dataclass(slots=True)
class Group:
    """Rows that go in one statement; rows of one Run stand together and in order."""

    rows: list[Event]
    tries: int = 0
    since: float = field(default_factory=time.monotonic)

    def halves(self) -> list[Group]:
        """Two groups, cut between Runs where there are several, so that each Run's rows stay in order."""
        rows = self.rows
        middle = len(rows) // 2
        cuts = [at for at in range(1, len(rows)) if rows[at].run_id != rows[at - 1].run_id]
        cut = min(cuts, key=lambda at: abs(at - middle)) if cuts else middle
        tries = min(self.tries, 1)
        return [Group(rows[:cut], tries, self.since), Group(rows[cut:], tries, self.since)]


class Suspects:
    """The groups whose outcome is unknown.

    Args:
        patience: seconds after which a group that nobody answers is given up.
    """

    def __init__(self, *, patience: float) -> None:
        self._patience = patience
        self._groups: list[Group] = []
        self._unsure: set[UUID] = set()
        self._missed: list[Group] = []
        self._answered = 0.0

    def __bool__(self) -> bool:
        return bool(self._groups)

    def round(self, fresh: list[Event]) -> list[Group]:
        """What to try now: fresh rows first, then the suspects, those in parts that missed twice together."""
        groups = [Group(fresh)] if fresh else []
        for group in self._groups:
            if len(group.rows) > 1 and group.tries >= _TRIES_TOGETHER:
                groups.extend(group.halves())
            else:
                groups.append(group)
        self._groups, self._missed = [], []
        self._unsure = set()
        return groups

    def holds(self, group: Group) -> bool:
        """Whether an earlier row of the group's first Run is in doubt in this round: then the order says wait."""
        return group.rows[0].run_id in self._unsure

    def answered(self) -> None:
        """The store is there."""
        self._answered = time.monotonic()

    def missed(self, group: Group) -> None:
        """The group's outcome is unknown."""
        group.tries += 1
        self._missed.append(group)
        self.keep(group)

    def keep(self, group: Group) -> None:
        """The group stays in doubt."""
        self._groups.append(group)
        self._unsure.update(event.run_id for event in group.rows)

    def proven_bad(self) -> list[Group]:
        """Take out the single rows that missed again in this round, and others were answered since they first did."""
        bad = [
            group
            for group in self._missed
            if len(group.rows) == 1 and group.tries >= _TRIES_ALONE and group.since < self._answered
        ]
        return self._pick(lambda group: any(group is other for other in bad))

    def expired(self) -> list[Group]:
        """Take out the groups that nobody answered for longer than patience."""
        limit = time.monotonic() - self._patience
        return self._pick(lambda group: group.since <= limit)

    def clear(self) -> list[Group]:
        """Take out everything."""
        return self._pick(lambda _: True)

    def _pick(self, wanted: Callable[[Group], bool]) -> list[Group]:
        taken = [group for group in self._groups if wanted(group)]
        self._groups = [group for group in self._groups if not wanted(group)]
        return taken
