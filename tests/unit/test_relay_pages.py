"""The order in which a relay looks at pages, driven with a table of rows instead of a database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from runs.relays.pages import Page, PageScheduler

PAGE = 32


@dataclass
class Table:
    """Rows by ascending number; a row in `unfinished` makes its page one that is kept."""

    rows: list[int]
    unfinished: set[int] = field(default_factory=set)
    raising: set[int | None] = field(default_factory=set)
    pages: PageScheduler[int] = field(default_factory=PageScheduler[int])
    looked: list[int | None] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)

    def tick(self) -> Page[int]:
        page = self.pages.next()
        self.looked.append(page.cursor)
        if page.cursor in self.raising:
            self.pages.failed(page)
            return page
        after = -1 if page.cursor is None else page.cursor
        found = [row for row in self.rows if row > after][:PAGE]
        for row in found:
            self.seen[row] = self.seen.get(row, 0) + 1
        full = len(found) == PAGE
        self.pages.report(page, end=found[-1] if full else None, retain=bool(self.unfinished & set(found)))
        return page

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.tick()


def rows(pages: int) -> list[int]:
    return list(range(pages * PAGE))


def ends(pages: Iterable[int]) -> list[int]:
    """The cursor of each page: the last row of the page before it."""
    return [number * PAGE - 1 for number in pages]


@pytest.mark.contract("RLY-2")
def test_s171_a_failing_first_page_is_revisited_between_steps_forward() -> None:
    table = Table(rows(4), unfinished={0})
    table.ticks(7)
    one, two, three = ends([1, 2, 3])
    assert table.looked == [None, None, one, None, two, None, three]


@pytest.mark.contract("RLY-2")
def test_without_anything_unfinished_every_tick_goes_forward_and_the_end_wraps() -> None:
    table = Table(rows(2))
    table.ticks(7)
    one, two = ends([1, 2])
    assert table.looked == [None, one, two, None, one, two, None]
    assert table.pages.retained == []


@pytest.mark.contract("RLY-3")
def test_s172_three_poison_pages_do_not_starve_a_healthy_one_and_are_all_revisited() -> None:
    table = Table(rows(4)[:-1], unfinished={0, PAGE, 2 * PAGE})
    healthy = set(range(3 * PAGE, 4 * PAGE - 1))
    table.ticks(7)
    assert healthy <= set(table.seen)
    before = dict(table.seen)
    table.ticks(6)
    assert all(table.seen[poison] > before[poison] for poison in table.unfinished)


@pytest.mark.contract("RLY-3")
def test_poison_pages_and_healthy_ones_are_looked_at_for_ever() -> None:
    table = Table(rows(6), unfinished={0, 2 * PAGE, 4 * PAGE})
    table.ticks(200)
    assert len(table.pages.retained) == 3
    assert min(table.seen.values()) >= 200 // 2 // 7


@pytest.mark.contract("RLY-2")
def test_a_page_is_kept_once_however_often_it_is_found_unfinished() -> None:
    table = Table(rows(2), unfinished={0, PAGE})
    table.ticks(40)
    assert sorted(table.pages.retained, key=str) == sorted([None, *ends([1])], key=str)


@pytest.mark.contract("RLY-2")
def test_a_page_that_was_found_clean_is_let_go() -> None:
    table = Table(rows(3), unfinished={0, PAGE})
    table.ticks(4)
    assert len(table.pages.retained) == 2
    table.unfinished = {PAGE}
    table.ticks(4)
    assert table.pages.retained == ends([1])
    table.unfinished.clear()
    table.ticks(4)
    assert table.pages.retained == []


@pytest.mark.contract("RLY-12")
def test_a_retry_page_that_raises_does_not_stall_the_way_forward() -> None:
    table = Table(rows(4), unfinished={0})
    table.tick()
    table.raising = {None}
    table.ticks(6)
    one, two, three = ends([1, 2, 3])
    assert table.looked[1:] == [None, one, None, two, None, three]
    table.raising.clear()
    table.unfinished.clear()
    table.ticks(2)
    assert table.pages.retained == []


@pytest.mark.contract("RLY-12", "RLY-3")
def test_a_retry_page_that_raises_gives_way_to_the_other_retry_pages() -> None:
    table = Table(rows(3), unfinished={0, PAGE})
    table.ticks(4)
    table.raising = {None}
    before = table.seen[PAGE]
    table.ticks(8)
    assert table.seen[PAGE] >= before + 2


@pytest.mark.contract("RLY-12")
def test_a_forward_page_that_raises_is_tried_again_and_not_skipped() -> None:
    table = Table(rows(3))
    table.tick()
    table.raising = set(ends([1]))
    table.ticks(3)
    assert table.looked == [None, *ends([1, 1, 1])]
    table.raising.clear()
    table.ticks(2)
    assert table.looked[-2:] == ends([1, 2])


@pytest.mark.contract("RLY-3", "REC-21")
def test_rows_that_appear_behind_the_way_forward_are_seen_by_the_next_sweep() -> None:
    table = Table(rows(3)[PAGE:])
    table.tick()
    late = 3
    table.rows = sorted([late, *table.rows])
    table.ticks(4)
    assert table.seen[late] >= 1


@pytest.mark.contract("RLY-2", "RLY-3")
def test_kept_pages_do_not_pile_up_while_rows_before_them_come_to_their_end() -> None:
    # Every sweep finds the poison row on a page that begins elsewhere.
    table = Table(rows(12), unfinished={10 * PAGE})
    for _ in range(100):
        table.ticks(13)
        gone = next(row for row in table.rows if row not in table.unfinished)
        table.rows.remove(gone)
        assert len(table.pages.retained) <= 3
    before = table.seen[10 * PAGE]
    table.ticks(26)
    assert table.seen[10 * PAGE] > before
