"""Which folders `inventory` may read: what lies below the allowed ones by the system's word, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lychd import config as configuration
from lychd.patterns import roots
from lychd.patterns.roots import RootMissing, RootNotAFolder, RootNotAllowed, RootUnreadable
from tests.support.inventory import Place, as_nobody

pytest_plugins = ["tests.support.inventory_fixtures"]


def names_in(root: str) -> set[str]:
    with roots.opened(root) as opened:
        return set(os.listdir(opened.fd))


@pytest.fixture
def outside(place: Place) -> Path:
    """A folder beside the allowed one, with a file that must never be seen."""
    folder = place.root.parent / "tree-private"
    folder.mkdir()
    (folder / "secret").touch()
    return folder


def test_a_root_is_absolute_or_relative_to_the_first_allowed_folder(place: Place) -> None:
    place.write("sub/file")
    assert names_in(".") == {"sub"}
    assert names_in("sub") == names_in(str(place.root / "sub")) == names_in("sub/../sub/.") == {"file"}


@pytest.mark.parametrize(
    "root", ["/", "/etc", "..", "../tree-private", "sub/../../tree-private", "link", "link/..", "{base}/tree-private"]
)
def test_a_root_outside_is_refused_and_the_allowed_folders_are_named(place: Place, outside: Path, root: str) -> None:
    place.write("sub/file")
    os.symlink(outside, place.root / "link")
    with pytest.raises(RootNotAllowed) as refused:
        names_in(root.format(base=place.root.parent))
    assert str(place.root) in refused.value.detail
    assert "LYCHD_ROOTS" in refused.value.detail
    assert refused.value.code == "root_not_allowed"


def test_a_link_that_stays_inside_is_a_root_by_the_name_of_what_it_leads_to(place: Place) -> None:
    place.write("sub/file")
    os.symlink("sub", place.root / "link")
    with roots.opened("link") as opened:
        assert opened.path == os.fsencode(place.root / "sub")


def test_an_allowed_folder_that_is_itself_a_link_allows_what_it_leads_to(
    place: Place, outside: Path, settings: Any
) -> None:
    link = place.root.parent / "link"
    os.symlink(place.root, link)
    settings.CONFIG = settings.CONFIG.model_copy(update={"roots": (link,)})
    place.write("file")
    assert names_in(str(link)) == names_in(str(place.root)) == names_in(".") == {"file"}
    with pytest.raises(RootNotAllowed):
        names_in(str(outside))


def test_a_link_put_in_place_after_the_check_leads_nowhere(
    place: Place, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("a/b/file")
    real = os.path.realpath

    def swapped(path: Any) -> str:
        resolved = real(path)
        if resolved.endswith("/a/b"):
            (place.root / "a").rename(place.root / "moved")
            os.symlink(outside.parent, place.root / "a")
            (outside.parent / "b").mkdir()
        return resolved

    monkeypatch.setattr("os.path.realpath", swapped)
    with pytest.raises(RootNotAFolder):
        names_in("a/b")


@pytest.mark.parametrize("root", ["var", "var/postgres", "link"])
def test_the_vessels_own_data_is_refused_though_it_lies_below_an_allowed_folder(
    place: Place, settings: Any, root: str
) -> None:
    place.write("var/postgres/PG_VERSION")
    os.symlink("var/postgres", place.root / "link")
    settings.DATA = place.root / "var"
    with pytest.raises(RootNotAllowed, match="the Vessel's own data"):
        names_in(root)


def test_a_folder_within_the_data_that_the_setting_names_is_allowed(place: Place, settings: Any) -> None:
    place.write("var/files/a")
    place.write("var/secret.key")
    settings.DATA = place.root / "var"
    settings.CONFIG = settings.CONFIG.model_copy(update={"roots": (place.root, place.root / "var" / "files")})
    assert names_in("var/files") == {"a"}
    with pytest.raises(RootNotAllowed):
        names_in("var")


@pytest.mark.parametrize("root", ["a\0b", "\0", "bad\ud800name"])
def test_a_name_that_no_folder_can_have_is_a_sentence(place: Place, root: str) -> None:
    with pytest.raises(RootMissing, match="No folder can have the name"):
        names_in(root)


def test_a_root_that_is_missing_too_long_or_no_folder_is_told_so(place: Place) -> None:
    place.write("file")
    with pytest.raises(RootMissing, match="There is no folder"):
        names_in("nowhere/at/all")
    with pytest.raises(RootNotAFolder, match="is not a folder"):
        names_in("file")
    with pytest.raises(RootUnreadable, match="File name too long"):
        names_in("n" * 300)
    os.symlink("loop", place.root / "loop")
    with pytest.raises((RootNotAFolder, RootUnreadable)):
        names_in("loop")


def test_a_root_that_the_vessel_may_not_read_is_told_so(place: Place) -> None:
    place.write("closed/file")
    (place.root / "closed").chmod(0)
    with as_nobody(), pytest.raises(RootUnreadable, match="Permission denied"):
        names_in("closed")


def test_no_descriptor_stays_open_whatever_happens(place: Place, outside: Path) -> None:
    place.write("a/b/file")
    before = set(os.listdir("/proc/self/fd"))
    names_in("a/b")
    for root in ("a/nowhere/x", "a/b/file/x", str(outside), "a\0"):
        with pytest.raises((RootMissing, RootNotAFolder, RootNotAllowed)):
            names_in(root)
    place.both("a")
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_setting_names_folders_as_in_path_and_an_empty_one_allows_none(
    place: Place, outside: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LYCHD_ROOTS", f"{place.root}{os.pathsep}{outside}")
    settings.CONFIG = configuration.load()
    assert roots.allowed() == (place.root, outside)
    assert names_in(str(outside)) == {"secret"}
    monkeypatch.setenv("LYCHD_ROOTS", "")
    settings.CONFIG = configuration.load()
    with pytest.raises(RootNotAllowed, match="LYCHD_ROOTS allows no folder"):
        names_in(".")


def test_without_the_setting_the_folder_in_which_the_vessel_was_started_is_allowed(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LYCHD_ROOTS", raising=False)
    settings.CONFIG = configuration.load()
    monkeypatch.chdir(tmp_path)
    assert roots.allowed() == (roots.STARTED_IN.resolve(),)
