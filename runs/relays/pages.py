"""Which page a relay looks at next: forward through the keys, and back to every page that is unfinished (RLY-2, RLY-3).

Several poison pages neither vanish nor starve newer rows: whenever something is retained, one tick revisits the oldest
retained page and the next one goes forward. Cursors are opaque here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page[C]:
    """The next page to look at: the rows after `cursor` (None: from the start)."""

    cursor: C | None
    revisit: bool


class PageScheduler[C]:
    """Alternates revisits of retained pages with forward progress."""

    def __init__(self) -> None:
        self._forward: C | None = None
        self._retained: deque[C | None] = deque()
        self._sweep: set[C | None] = set()
        self._revisited_last = True

    @property
    def retained(self) -> list[C | None]:
        """The pages that wait for another look, oldest first."""
        return list(self._retained)

    def next(self) -> Page[C]:
        """The page of this tick."""
        if self._retained and not self._revisited_last:
            self._revisited_last = True
            return Page(self._retained[0], revisit=True)
        self._revisited_last = False
        return Page(self._forward, revisit=False)

    def report(self, page: Page[C], *, end: C | None, retain: bool) -> None:
        """Say how a page went.

        Args:
            page: as `next` gave it.
            end: the key of its last row when there may be rows after it; None when the end of all rows was reached.
            retain: it holds rows that are degraded, held, or clean but still waiting.
        """
        if page.revisit:
            self._retained.popleft()
        else:
            self._forward = end
            if retain:
                self._sweep.add(page.cursor)
        if retain and page.cursor not in self._retained:
            self._retained.append(page.cursor)
        if not page.revisit and end is None:
            self._forget_older_sweeps()

    def failed(self, page: Page[C]) -> None:
        """The page raised: it is looked at again, and a revisit that raises does not stall the way forward (RLY-12).

        Where a forward page ends is not known when it raises, so it stays the next forward page.
        """
        if page.revisit:
            self._retained.rotate(-1)

    def _forget_older_sweeps(self) -> None:
        # This sweep saw every row, so whatever is unfinished lies on a page that it retained. Pages of older sweeps
        # begin elsewhere only because rows have gone since; keeping them too would let them pile up without bound.
        self._retained = deque(cursor for cursor in self._retained if cursor in self._sweep)
        self._sweep.clear()
