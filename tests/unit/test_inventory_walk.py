"""What the walk of `inventory` counts and lists, and what it survives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lychd.patterns import listing as scratch
from lychd.patterns.pace import Stopped
from tests.support.inventory import Ear, Place, as_nobody

pytest_plugins = ["tests.support.inventory_fixtures"]


def test_files_folders_bytes_and_kinds_are_counted(place: Place) -> None:
    place.write("a.txt", b"12345")
    place.write("deep/down/B.TXT", b"123")
    place.write("deep/photo.jpeg", b"1234567890")
    place.write("deep/Makefile", b"1")
    place.write(".bashrc")
    place.write("odd.name with spaces", b"12")
    found = place.survey()
    assert (found.files, found.folders, found.bytes, found.empty) == (6, 3, 21, 1)
    assert [(one.kind, one.family, one.files, one.bytes) for one in found.by_kind] == [
        ("jpeg", "image", 1, 10),
        ("txt", "text", 2, 8),
        ("", "other", 3, 3),
    ]
    assert found.root == str(place.root)


def test_kinds_beyond_those_that_the_report_has_room_for_are_summed(place: Place) -> None:
    for number in range(70):
        place.write(f"f.k{number}", b"x" * (100 - number))
    found = place.survey()
    assert len(found.by_kind) == 61
    rest = found.by_kind[-1]
    assert (rest.kind, rest.files, rest.bytes) == ("*", 10, sum(100 - number for number in range(60, 70)))
    assert sum(one.bytes for one in found.by_kind) == found.bytes


def test_the_largest_files_are_named_largest_first(place: Place) -> None:
    for size in (3, 9, 1, 7):
        place.write(f"d{size}/f", b"x" * size)
    assert [(one.path, one.bytes) for one in place.survey(largest=2).largest] == [("d9/f", 9), ("d7/f", 7)]
    assert place.survey(largest=0).largest == []


def test_an_empty_folder_is_an_inventory_of_nothing(place: Place) -> None:
    found, compared = place.both()
    assert (found.files, found.folders, found.bytes, found.by_kind) == (0, 1, 0, [])
    assert compared.duplicates.groups == 0


def test_links_are_counted_and_never_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"not yours")
    place.write("real/file", b"12")
    os.symlink(tmp_path, place.root / "out")
    os.symlink(tmp_path / "secret", place.root / "out_file")
    os.symlink(place.root, place.root / "real" / "loop")
    os.symlink("nowhere", place.root / "broken")
    found = place.survey()
    assert (found.files, found.folders, found.bytes, found.symlinks) == (1, 2, 2, 4)


def test_pipes_and_sockets_are_counted_and_never_opened(place: Place) -> None:
    os.mkfifo(place.root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place.root / "sock"))
        found, compared = place.both()
    assert (found.special, found.files) == (2, 0)
    assert compared.unreadable_total == 0


def test_further_names_of_a_file_count_its_bytes_once_and_are_no_duplicates(place: Place) -> None:
    first = place.write("one.bin", b"same content")
    os.link(first, place.root / "two.bin")
    os.link(first, place.root / "three.bin")
    found, compared = place.both()
    assert (found.files, found.hard_links, found.bytes) == (3, 2, 12)
    assert [(one.files, one.bytes) for one in found.by_kind] == [(3, 12)]
    assert len(found.largest) == 1
    assert compared.duplicates.groups == 0
    place.write("copy.bin", b"same content")
    _, compared = place.both()
    assert (compared.duplicates.groups, compared.duplicates.extra_files, compared.duplicates.wasted) == (1, 1, 12)


def test_what_may_not_be_read_is_listed_and_the_rest_goes_on(place: Place) -> None:
    place.write("closed.bin", b"123")
    place.write("open1.bin", b"same")
    place.write("open2.bin", b"same")
    place.write("twin.bin", b"same")
    place.write("locked/inside.bin", b"1")
    for name in ("closed.bin", "twin.bin", "locked"):
        (place.root / name).chmod(0)
    with as_nobody():
        found, compared = place.both()
    (place.root / "locked").chmod(0o700)
    assert {(one.path, one.reason) for one in found.unreadable} == {
        (name, "Permission denied") for name in ("closed.bin", "twin.bin", "locked")
    }
    assert found.unreadable_total == 3
    assert (found.files, found.folders, found.bytes) == (4, 2, 15)
    assert compared.unreadable_total == 0, "told twice"
    assert sorted(compared.duplicates.shown[0].paths) == ["open1.bin", "open2.bin"]


def test_only_the_first_of_many_unreadable_files_are_named(place: Place) -> None:
    for number in range(60):
        place.write(f"f{number}", b"x")
        (place.root / f"f{number}").chmod(0)
    with as_nobody():
        found = place.survey()
    assert (len(found.unreadable), found.unreadable_total) == (50, 60)


def test_the_vessels_own_data_is_not_looked_at_where_it_lies_below(place: Place, settings: object) -> None:
    inside = place.root / "var"
    place.write("var/secret.key", b"key")
    settings.DATA = inside  # pyright: ignore[reportAttributeAccessIssue] - pytest-django's
    place.listing = inside / "scratch" / "inventory" / "x.sqlite"
    found = place.survey()
    assert found.files == 0
    assert [(one.path, one.reason) for one in found.skipped] == [("var", "the Vessel's own data")]


def test_a_tree_deeper_than_the_limit_is_listed_there_and_not_entered(place: Place) -> None:
    folder = os.open(place.root, os.O_RDONLY)
    for _ in range(1003):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    found = place.survey()
    assert found.folders == 1001
    assert [one.reason for one in found.unreadable] == ["more than 1,000 folders deep"]


def test_a_path_that_no_single_call_could_name_is_walked_and_compared(place: Place) -> None:
    folder = os.open(place.root, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("n" * 200, dir_fd=folder)
        below = os.open("n" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    for name in ("a", "b"):
        file = os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=folder)
        os.write(file, b"same")
        os.close(file)
    os.close(folder)
    found, compared = place.both()
    assert (found.files, found.folders, found.unreadable_total) == (2, 41, 0)
    (group,) = compared.duplicates.shown
    assert all(len(path.encode()) <= 400 and "…" in path for path in group.paths)


def test_names_that_are_no_text_are_told_apart_and_can_be_stored(place: Place) -> None:
    names = [b"caf\xe9.txt", b"caf\\xe9.txt", "café.txt".encode(), b"line\nend", b"esc\x1b[31m", b"\xff\xfe"]
    for name in names:
        place.write(name, b"same")
    found, compared = place.both(largest=10)
    shown = {one.path for one in found.largest}
    assert shown == {"caf\\xe9.txt", "caf\\\\xe9.txt", "café.txt", "line\\nend", "esc\\x1b[31m", "\\xff\\xfe"}
    assert set(compared.duplicates.shown[0].paths) == shown
    found.model_dump_json().encode()


def test_progress_is_told_at_the_end_and_now_and_then(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1100):
        place.write(f"f{number}")
    place.survey()
    assert place.ear.heard == [(1100, 1100, "1,100 files in 1 folders")]
    place.ear.heard.clear()
    monkeypatch.setattr("lychd.patterns.pace.INTERVAL", 0.0)
    place.survey()
    assert [done for done, _, _ in place.ear.heard] == [255, 511, 767, 1023, 1100]
    assert [total for _, total, _ in place.ear.heard[:-1]] == [None] * 4


def test_a_stop_ends_the_walk_and_leaves_no_listing(place: Place) -> None:
    for number in range(1000):
        place.write(f"f{number}")
    place.ear.stop_when = lambda ear: ear.looks >= 2
    with pytest.raises(Stopped):
        place.survey()
    assert place.ear.looks == 2, "it looked again after it was told to stop"
    assert place.left_behind == []


def test_the_listing_is_gone_after_the_comparison_and_after_a_stop_in_it(place: Place) -> None:
    place.write("a", b"same")
    place.write("b", b"same")
    found = place.survey()
    assert place.left_behind == [place.listing.name]
    place.ear = Ear(stop_when=lambda _: True)
    with pytest.raises(Stopped):
        place.compare(found)
    assert place.left_behind == []


def test_listings_that_runs_abandoned_a_day_ago_are_swept(place: Place) -> None:
    place.listing.parent.mkdir(parents=True)
    old, young = place.listing.with_name("old.sqlite"), place.listing.with_name("young.sqlite")
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    place.survey()
    assert sorted(place.left_behind) == sorted([young.name, place.listing.name])


def test_a_scratch_folder_that_cannot_be_written_is_a_sentence(place: Place) -> None:
    (place.data / "scratch").write_bytes(b"in the way")
    with pytest.raises(scratch.ScratchFailed, match="could not be written"):
        place.survey()
