"""What a reclaim moves and what it leaves alone: others change the tree meanwhile, at the worst moment."""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from lychd.patterns import plan as plans
from lychd.patterns import quarantine as quarantines
from lychd.patterns import reclaiming
from lychd.patterns.pace import Pace, Stopped
from lychd.patterns.plan import PlanDamaged
from lychd.patterns.quarantine import Account, QuarantineBusy
from lychd.patterns.reclaim_report import ReclaimInput, ReclaimState
from lychd.patterns.roots import RootNotAllowed
from tests.support import reclaiming as support
from tests.support.reclaiming import Job, Quiet, contents, files

RUN = uuid.UUID("0197a000-0000-7000-8000-00000000000a")
OTHER = uuid.UUID("0197a000-0000-7000-8000-00000000000c")
RESTORE = uuid.UUID("0197a000-0000-7000-8000-00000000000b")
CHANGED = "it changed since the question was asked"
LAST = "no other copy of it stands any more"
GONE = "there is no such file any more"


# The rename that moves; over two file systems the one that is tried first, and the one that puts the original aside.
MOMENTS = pytest.mark.parametrize(("world", "at"), [("together", 1), ("apart", 1), ("apart", 2)])


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    """An empty allowed folder."""
    made = tmp_path / "tree"
    made.mkdir()
    settings.CONFIG = django_settings.CONFIG.model_copy(update={"roots": (made,)})
    settings.DATA = tmp_path / "data"
    return made


@pytest.fixture
def apart(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root and data lie on two file systems."""
    monkeypatch.setattr(os, "rename", support.apart(root, os.rename))
    monkeypatch.setattr(os, "link", support.apart(root, os.link))


def test_the_copy_that_stays_is_the_oldest_then_the_one_the_fewest_folders_deep(root: Path) -> None:
    write(root / "deep" / "down" / "old", b"x" * 10, age=1)
    write(root / "young", b"x" * 10, age=2)
    write(root / "deep" / "same age", b"y" * 20, age=3)
    write(root / "same age", b"y" * 20, age=3)
    state = surveyed()
    assert state.proposed is not None
    assert state.proposed.largest == [
        {"file": "deep/same age", "bytes": 20, "stays": "same age"},
        {"file": "young", "bytes": 10, "stays": "deep/down/old"},
    ]


def test_names_that_are_no_unicode_move_and_come_back(root: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n\\x")
    write(root / "a", b"same", age=1)
    write(root / name / name, b"same", age=2)
    surveyed()
    assert moved().moved == 1
    assert files(quarantine() / "files") == {f"{name}/{name}": b"same"}
    assert put_back().moved == 1
    assert (root / name / name).read_bytes() == b"same"


def test_one_file_with_several_names_is_one_copy(root: Path) -> None:
    write(root / "a", b"same")
    os.link(root / "a", root / "b")
    assert surveyed().proposed is None
    write(root / "c", b"same", age=1)
    write(root / "d", b"same", age=2)
    os.link(root / "d", root / "e")
    state = surveyed()
    assert state.proposed is not None
    assert state.surveyed is not None
    assert (state.proposed.files, state.surveyed.several_names) == (1, 1)
    moved()
    assert set(files(root)) == {"a", "b", "d", "e"}


def test_empty_files_links_and_pipes_are_no_duplicates(root: Path) -> None:
    write(root / "a", b"")
    write(root / "b", b"")
    write(root / "c", b"c")
    os.symlink("c", root / "d")
    os.mkfifo(root / "e")
    assert surveyed().proposed is None
    assert not quarantine().exists()


def test_a_large_group_is_written_in_portions_and_moves_as_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "PORTION", 2)
    for number in range(6):
        write(root / str(number), b"same", age=number)
    state = surveyed()
    assert state.proposed is not None
    assert (state.proposed.files, state.proposed.groups) == (5, 1)
    assert reclaiming.move_effect(RUN).plan == state.proposed.plan
    assert len((quarantine() / "plan.jsonl").read_text().splitlines()) == 4
    assert moved().moved == 5
    assert set(files(root)) == {"0"}


def test_a_changed_and_a_vanished_copy_are_left_alone(root: Path) -> None:
    for name in "abcd":
        write(root / name, b"same", age=ord(name))
    surveyed()
    (root / "b").write_bytes(b"SAME")
    (root / "c").unlink()
    account = moved()
    assert (account.moved, reasons(account)) == (1, {"b": CHANGED, "c": GONE})
    assert files(root) == {"a": b"same", "b": b"SAME"}


def test_a_file_that_was_changed_and_got_its_old_times_back_is_left_alone(root: Path) -> None:
    for name in "ab":
        write(root / name, b"same", age=ord(name))
    surveyed()
    write(root / "b", b"SAME", age=ord("b"))
    assert reasons(moved()) == {"b": CHANGED}
    assert (root / "b").read_bytes() == b"SAME"


@pytest.mark.parametrize("harm", ["removed", "changed", "renamed", "a link"])
def test_when_the_copy_that_was_to_stay_does_not_stand_another_stays(root: Path, harm: str) -> None:
    for name in "abc":
        write(root / name, b"same", age=ord(name))
    surveyed()
    if harm == "changed":
        write(root / "a", b"SAME", age=ord("a"))
    else:
        (root / "a").rename(root / "z") if harm == "renamed" else (root / "a").unlink()
        if harm == "a link":
            os.symlink("b", root / "a")
    account = moved()
    assert (account.moved, reasons(account)) == (1, {"c": LAST})
    assert (root / "c").read_bytes() == b"same"


def test_a_file_that_got_a_second_name_is_left_alone(root: Path) -> None:
    for name in "ab":
        write(root / name, b"same", age=ord(name))
    surveyed()
    os.link(root / "b", root / "c")
    assert list(reasons(moved()).values()) == ["it has several names now (hard links); moving one frees nothing"]


def test_two_names_of_one_file_are_never_taken_for_copies(root: Path) -> None:
    """As a folder that is mounted at two places shows it: one inode, one link, two paths."""
    write(root / "b", b"same", age=1)
    status = (root / "b").stat()
    hand_made(RUN, root, keep="./b".removeprefix("./"), move="b", status=status, content=b"same")
    assert reasons(moved()) == {"b": LAST}


@pytest.mark.parametrize("target", ["file", "folder"])
def test_a_link_put_in_the_way_is_not_followed(root: Path, tmp_path: Path, target: str) -> None:
    write(root / "a", b"same", age=1)
    write(root / "sub" / "b", b"same", age=2)
    surveyed()
    outside = tmp_path / "outside"
    (root / "sub").rename(outside)
    if target == "folder":
        os.symlink(outside, root / "sub")
    else:
        (root / "sub").mkdir()
        os.symlink(outside / "b", root / "sub" / "b")
    assert reasons(moved()) == {"sub/b": GONE}
    assert (outside / "b").read_bytes() == b"same"


@MOMENTS
def test_a_file_swapped_in_the_moment_of_its_move_is_given_back(
    root: Path, world: str, at: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    if world == "apart":
        request.getfixturevalue("apart")

    def swap() -> None:
        write(root / "new", b"somebody's work")
        (root / "new").replace(root / "b")

    just_before(monkeypatch, "rename", b"b", at, swap)
    assert reasons(moved()) == {"b": CHANGED}
    assert files(root) == {"a": b"same", "b": b"somebody's work"}
    assert not files(quarantine() / "files")


@MOMENTS
def test_a_file_written_to_in_the_moment_of_its_move_is_given_back(
    root: Path, world: str, at: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    if world == "apart":
        request.getfixturevalue("apart")
    just_before(monkeypatch, "rename", b"b", at, lambda: (root / "b").write_bytes(b"more than before"))
    assert reasons(moved()) == {"b": CHANGED}
    assert files(root) == {"a": b"same", "b": b"more than before"}
    assert not files(quarantine() / "files")


@MOMENTS
def test_when_the_other_copy_goes_in_the_moment_of_the_move_the_file_is_given_back(
    root: Path, world: str, at: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    if world == "apart":
        request.getfixturevalue("apart")
    just_before(monkeypatch, "rename", b"b", at, (root / "a").unlink)
    assert reasons(moved()) == {"b": LAST}
    assert files(root) == {"b": b"same"}
    assert not files(quarantine() / "files")


def test_a_file_that_was_swapped_just_before_the_process_died_is_given_back_by_the_next(root: Path) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    write(root / "b", b"somebody's work", age=2)
    (root / "b").rename(quarantine() / "files" / "b")
    assert reasons(moved()) == {"b": CHANGED}
    assert files(root) == {"a": b"same", "b": b"somebody's work"}
    assert not files(quarantine() / "files")


def test_two_plans_that_each_keep_what_the_other_moves_never_take_both(root: Path, tmp_path: Path) -> None:
    for turn in range(5):
        write(root / "p", b"same" * 1000)
        write(root / "q", b"same" * 1000)
        hand_made(RUN, root, keep="p", move="q", status=(root / "q").stat(), content=b"same" * 1000)
        hand_made(OTHER, root, keep="q", move="p", status=(root / "p").stat(), content=b"same" * 1000)
        jobs = [Job(root, tmp_path / "data", run_id).start(None) for run_id in (RUN, OTHER)]
        for job in jobs:
            job.join(60)
            assert job.exitcode == 0
        kept = [quarantines.home() / str(run_id) / "files" for run_id in (RUN, OTHER)]
        assert set(files(root)) in ({"p"}, {"q"}, {"p", "q"}), f"turn {turn}: both have moved"
        assert sum(contents(root, *kept).values()) == 2
        for run_id in (RUN, OTHER):
            for path in (quarantines.home() / str(run_id) / "files").iterdir():
                path.unlink()
            (quarantines.home() / str(run_id) / "journal.jsonl").unlink()


def test_a_quarantine_is_worked_on_by_one_run_at_a_time(root: Path) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    with quarantines.opened(RUN), pytest.raises(QuarantineBusy):
        moved()
    assert set(files(root)) == {"a", "b"}


def test_a_stopped_work_keeps_what_it_did_and_goes_on_where_it_stopped(root: Path) -> None:
    for number in range(9):
        write(root / str(number), b"same", age=number)
    surveyed()
    whole = contents(root)
    listener = Quiet(looks=12)
    with pytest.raises(Stopped):
        reclaiming.move(RUN, Pace(listener))
    assert 1 < len(files(root)) < 9
    assert contents(root, quarantine() / "files") == whole
    account = moved()
    assert (account.done, account.moved, account.bytes) == (8, 8, 32)
    assert contents(root, quarantine() / "files") == whole


def test_a_torn_last_line_of_the_journal_is_found_out_again(root: Path) -> None:
    for name in "abc":
        write(root / name, b"same", age=ord(name))
    surveyed()
    assert moved().moved == 2
    journal = quarantine() / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-5])
    account = moved()
    assert (account.moved, account.bytes, reasons(account)) == (2, 8, {})
    assert [json.loads(line)["n"] for line in journal.read_text().splitlines()] == [1, 2]


def test_a_file_put_there_after_the_move_is_neither_moved_nor_overwritten(root: Path) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    moved()
    (quarantine() / "journal.jsonl").unlink()
    (root / "b").write_bytes(b"new")
    assert moved().moved == 1
    assert (root / "b").read_bytes() == b"new"
    account = put_back()
    assert (account.moved, reasons(account)) == (0, {"b": "something has its name now; it stays in the quarantine"})
    assert (root / "b").read_bytes() == b"new"
    assert files(quarantine() / "files") == {"b": b"same"}


@pytest.mark.parametrize("world", ["together", "apart", "linkless"])
def test_a_file_put_there_in_the_moment_of_the_return_is_not_overwritten(
    root: Path, world: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    moved()
    if world == "apart":
        request.getfixturevalue("apart")
    if world == "linkless":
        monkeypatch.setattr(os, "link", support.linkless)
    just_before(monkeypatch, "link", None, 1, lambda: (root / "b").write_bytes(b"new"))
    assert reasons(put_back()) == {"b": "something has its name now; it stays in the quarantine"}
    assert files(root) == {"a": b"same", "b": b"new"}
    assert files(quarantine() / "files") == {"b": b"same"}


@pytest.mark.usefixtures("apart")
def test_over_two_file_systems_mode_times_and_attributes_are_kept_there_and_back(root: Path) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    (root / "b").chmod(0o640)
    labelled = label(root / "b")
    before = (root / "b").stat()
    surveyed()
    assert moved().moved == 1
    kept = quarantine() / "files" / "b"
    for path in (kept, root / "b"):
        after = path.stat()
        assert (stat.S_IMODE(after.st_mode), after.st_mtime_ns) == (0o640, before.st_mtime_ns)
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
        assert not labelled or os.getxattr(path, "user.lychd") == b"kept"
        if path == kept:
            assert put_back().moved == 1
    assert not kept.exists()


@pytest.mark.usefixtures("apart")
def test_a_copy_that_the_disk_gives_back_otherwise_is_dropped_and_the_original_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    real = os.write

    def broken(fd: int, data: Any) -> int:
        is_copy = os.readlink(f"/proc/self/fd/{fd}").endswith("incoming")
        return real(fd, b"eman" if is_copy else data)

    monkeypatch.setattr(os, "write", broken)
    assert reasons(moved()) == {"b": "the copy does not hold the same"}
    assert set(files(root)) == {"a", "b"}
    assert not files(quarantine() / "files")
    assert not (quarantine() / "incoming").exists()


def test_a_real_second_file_system(root: Path, settings: Any, tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == root.stat().st_dev or not os.access(shm, os.W_OK):
        pytest.skip("there is no second file system at /dev/shm")
    settings.DATA = shm / f"lychd-test-{uuid.uuid4()}"
    try:
        write(root / "a", b"same", age=1)
        write(root / "sub" / "b", b"same", age=2)
        surveyed()
        assert moved().moved == 1
        assert files(root) == {"a": b"same"}
        assert put_back().moved == 1
        assert files(root) == {"a": b"same", "sub/b": b"same"}
    finally:
        for path in sorted(settings.DATA.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        settings.DATA.rmdir()


def test_a_folder_that_is_gone_is_made_again_when_its_file_returns(root: Path) -> None:
    write(root / "a", b"same", age=1)
    write(root / "sub" / "b", b"same", age=2)
    surveyed()
    moved()
    (root / "sub").rmdir()
    assert put_back().moved == 1
    assert (root / "sub" / "b").read_bytes() == b"same"


@pytest.mark.parametrize("world", ["together", "apart"])
def test_what_changed_in_the_quarantine_stays_there(root: Path, world: str, request: pytest.FixtureRequest) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    if world == "apart":
        request.getfixturevalue("apart")
    moved()
    (quarantine() / "files" / "b").write_bytes(b"other")
    account = put_back()
    assert reasons(account) == {"b": "what is in the quarantine under its name has changed; it stays there"}
    assert (files(root), files(quarantine() / "files")) == ({"a": b"same"}, {"b": b"other"})


@pytest.mark.usefixtures("apart")
def test_when_the_original_cannot_be_removed_its_copy_is_dropped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()

    def refuse() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    just_before(monkeypatch, "rename", b"b", 2, refuse)
    assert reasons(moved()) == {"b": "Permission denied"}
    assert set(files(root)) == {"a", "b"}
    assert not files(quarantine() / "files")


def test_a_later_restore_tries_what_the_earlier_left(root: Path) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    moved()
    (root / "b").write_bytes(b"in the way")
    assert put_back().left.total == 1
    (root / "b").unlink()
    account = reclaiming.put_back(RUN, OTHER, Pace(Quiet()))
    assert (account.moved, account.bytes, account.left.total) == (1, 4, 0)
    assert files(root) == {"a": b"same", "b": b"same"}


def test_a_plan_that_leads_out_of_the_root_is_not_read(root: Path, tmp_path: Path) -> None:
    write(root / "a", b"same", age=1)
    write(tmp_path / "outside", b"same", age=2)
    hand_made(RUN, root, keep="a", move="../outside", status=(tmp_path / "outside").stat(), content=b"same")
    with pytest.raises(PlanDamaged):
        moved()
    assert (tmp_path / "outside").read_bytes() == b"same"


def test_a_folder_that_is_not_allowed_any_more_is_not_touched(root: Path, tmp_path: Path, settings: Any) -> None:
    write(root / "a", b"same", age=1)
    write(root / "b", b"same", age=2)
    surveyed()
    settings.CONFIG = django_settings.CONFIG.model_copy(update={"roots": (tmp_path / "elsewhere",)})
    with pytest.raises(RootNotAllowed):
        moved()
    assert set(files(root)) == {"a", "b"}


def test_the_quarantine_is_for_nobody_elses_eyes(root: Path) -> None:
    write(root / "a", b"same", age=1)
    write(root / "sub" / "b", b"same", age=2)
    surveyed()
    moved()
    for folder in (quarantines.home(), quarantine(), quarantine() / "files", quarantine() / "files" / "sub"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def surveyed() -> ReclaimState:
    return reclaiming.survey(ReclaimInput(root="."), RUN, "default", Pace(Quiet()))


def moved() -> Account:
    return reclaiming.move(RUN, Pace(Quiet()))


def put_back() -> Account:
    return reclaiming.put_back(RUN, RESTORE, Pace(Quiet()))


def reasons(account: Account) -> dict[str, str]:
    return {one.path: one.reason for one in account.left.shown}


def quarantine() -> Path:
    return quarantines.home() / str(RUN)


def write(path: Path, content: bytes, *, age: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (age, age))


def label(path: Path) -> bool:
    """Give a file an attribute of its user's, where its file system has such."""
    try:
        os.setxattr(path, "user.lychd", b"kept")
    except (OSError, AttributeError):
        return False
    return True


def hand_made(run_id: uuid.UUID, root: Path, *, keep: str, move: str, status: os.stat_result, content: bytes) -> None:
    """A plan of one move."""
    from hashlib import sha256

    head = {"version": 1, "run": str(run_id), "tenant": "default", "root": str(root)}
    portion = {
        "sha256": sha256(content).hexdigest(),
        "size": len(content),
        "keep": keep,
        "move": [[move, status.st_ino, status.st_mtime_ns]],
    }
    with quarantines.opened(run_id, create=True) as made, made.writing_plan() as file:
        file.write(f"{json.dumps(head)}\n{json.dumps(portion)}\n".encode())


def just_before(
    monkeypatch: pytest.MonkeyPatch, call: str, name: bytes | None, at: int, act: Callable[[], Any]
) -> None:
    """Do something right before the call of `os` number `at` is made for a file of that name."""
    real = getattr(os, call)
    calls = 0

    def watched(source: Any, *args: Any, **more: Any) -> Any:
        nonlocal calls
        if name in (None, source):
            calls += 1
            if calls == at:
                act()
        return real(source, *args, **more)

    monkeypatch.setattr(os, call, watched)
