"""How `inventory` finds duplicates, and what it makes of files that change under its hands."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest

from lychd.patterns.pace import Stopped
from lychd.patterns.twins import CHUNK, HEAD
from tests.support.inventory import Ear, Place

pytest_plugins = ["tests.support.inventory_fixtures"]


def test_files_are_compared_by_size_then_beginning_then_whole(place: Place) -> None:
    beginning = b"h" * HEAD
    place.write("same1", beginning + b"tail one")
    place.write("same2", beginning + b"tail one")
    place.write("other_tail", beginning + b"tail two")
    place.write("other_head", b"g" * HEAD + b"tail one")
    place.write("other_size", beginning + b"tail one!")
    place.write("small1", b"s")
    place.write("small2", b"s")
    place.write("small3", b"t")
    _, compared = place.both()
    same = compared.duplicates
    assert (same.groups, same.extra_files, same.wasted) == (2, 2, HEAD + 8 + 1)
    assert [(sorted(one.paths), one.files, one.bytes, one.wasted) for one in same.shown] == [
        (["same1", "same2"], 2, HEAD + 8, HEAD + 8),
        (["small1", "small2"], 2, 1, 1),
    ]
    assert same.shown[0].sha256 == hashlib.sha256(beginning + b"tail one").hexdigest()


@pytest.mark.parametrize("size", [HEAD - 1, HEAD, HEAD + 1, CHUNK, CHUNK + 1])
def test_a_last_byte_that_differs_is_seen_at_every_size(place: Place, size: int) -> None:
    place.write("a", b"x" * size)
    place.write("b", b"x" * size)
    place.write("c", b"x" * (size - 1) + b"y")
    _, compared = place.both()
    assert [sorted(one.paths) for one in compared.duplicates.shown] == [["a", "b"]]


def test_empty_files_are_no_duplicates(place: Place) -> None:
    place.write("a")
    place.write("b")
    found, compared = place.both()
    assert found.empty == 2
    assert compared.duplicates.groups == 0


def test_all_groups_are_counted_and_those_that_waste_most_are_named(place: Place) -> None:
    for group in range(5):
        for copy in range(group + 2):
            place.write(f"{group}/{copy}", bytes([group]) * 10)
    _, compared = place.both(duplicates=2)
    same = compared.duplicates
    assert (same.groups, same.extra_files, same.wasted) == (5, 15, 150)
    assert [(one.files, one.wasted) for one in same.shown] == [(6, 50), (5, 40)]


def test_of_a_large_group_only_some_paths_are_named(place: Place) -> None:
    names = {f"{copy:02}" for copy in range(12)}
    for name in names:
        place.write(name, b"x")
    _, compared = place.both()
    (group,) = compared.duplicates.shown
    assert (group.files, len(group.paths)) == (12, 8)
    assert set(group.paths) < names


def test_files_that_change_or_vanish_between_the_nodes_are_counted_as_changed(place: Place, tmp_path: Path) -> None:
    for name in ("gone", "grown", "rewritten", "linked", "piped", "foldered", "left1", "left2"):
        place.write(name, b"same")
    place.write("moved/inside", b"same")
    found = place.survey()
    (tmp_path / "inside").write_bytes(b"same")
    (place.root / "gone").unlink()
    (place.root / "grown").write_bytes(b"same and more")
    (place.root / "rewritten").unlink()
    place.write("rewritten", b"same")
    os.utime(place.root / "rewritten", ns=(1, 1))
    for name in ("linked", "piped", "foldered"):
        (place.root / name).unlink()
    os.symlink(tmp_path / "inside", place.root / "linked")
    os.mkfifo(place.root / "piped")
    (place.root / "foldered").mkdir()
    (place.root / "moved").rename(place.root / "away")
    os.symlink(tmp_path, place.root / "moved")
    _, compared = place.compare(found)
    assert [sorted(one.paths) for one in compared.duplicates.shown] == [["left1", "left2"]]
    assert (compared.changed, compared.unreadable_total) == (7, 0)


def test_files_that_change_while_they_are_read_are_no_duplicates(place: Place) -> None:
    size = 3 * CHUNK
    place.write("a", b"x" * size)
    place.write("b", b"x" * size)
    found = place.survey()

    def meddle(ear: Ear) -> bool:
        if ear.looks == 4:  # in the middle of the first whole file, before the second one is opened
            for name in ("a", "b"):
                place.write(name, b"x" * size)
                os.utime(place.root / name, ns=(1, 1))
        return False

    place.ear.stop_when = meddle
    _, compared = place.compare(found)
    assert place.ear.looks > 4
    assert (compared.duplicates.groups, compared.changed) == (0, 2)


def test_a_stop_is_seen_in_the_middle_of_a_large_file(place: Place) -> None:
    for name in ("a", "b"):
        place.write(name)
        os.truncate(place.root / name, 1 << 40)
    found = place.survey()
    place.ear.stop_when = lambda ear: ear.looks >= 10
    with pytest.raises(Stopped):
        place.compare(found)
    assert place.ear.looks == 10


def test_sparse_files_larger_together_than_any_number_of_the_listing_are_no_error(place: Place) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("no file system here holds files of that size")
    files = [shared / f"lychd-{os.getpid()}-{name}" for name in "ab"]
    try:
        for file in files:
            file.touch()
            os.truncate(file, (1 << 63) - (1 << 20))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lychd.patterns.roots.allowed", lambda: (shared,))
            found = place.survey(str(shared))
            assert found.bytes >= 2 * ((1 << 63) - (1 << 20))
            place.ear.stop_when = lambda ear: ear.looks > 20
            with pytest.raises(Stopped):
                place.compare(found, str(shared))
    finally:
        for file in files:
            file.unlink(missing_ok=True)


@pytest.mark.parametrize("what", ["missing", "garbage", "unsealed", "of another process"])
def test_without_a_listing_of_this_process_the_walk_is_taken_again(place: Place, what: str) -> None:
    place.write("a", b"same")
    place.write("b", b"same")
    stale = place.survey()
    place.write("c", b"same")
    match what:
        case "missing":
            place.listing.unlink()
        case "garbage":
            place.listing.write_bytes(os.urandom(9000))
        case "unsealed":
            with sqlite3.connect(place.listing) as connection:
                connection.execute("delete from owner")
            connection.close()
        case _:
            with sqlite3.connect(place.listing) as connection:
                connection.execute("update owner set process = 'another'")
            connection.close()
    found, compared = place.compare(stale)
    assert (stale.files, found.files) == (2, 3), "the findings are those of the new walk"
    assert compared.duplicates.shown[0].files == 3
    assert place.left_behind == []
