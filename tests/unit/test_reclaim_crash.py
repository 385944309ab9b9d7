"""A reclaim whose process is killed at any step of its work: nothing is lost, nothing moves twice, the work ends."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from lychd.patterns import reclaiming
from lychd.patterns.pace import Pace
from lychd.patterns.reclaim_report import ReclaimInput
from tests.support.reclaiming import Job, Quiet, contents, files

RUN = uuid.UUID("0197a000-0000-7000-8000-00000000000a")
RESTORE = uuid.UUID("0197a000-0000-7000-8000-00000000000b")
A, B, ALONE = b"A" * 30_000, b"B" * 9, b"alone"
WORLDS = [
    pytest.param({}, id="one-file-system"),
    pytest.param({"apart": True}, id="two-file-systems"),
    pytest.param({"linkless": True}, id="no-hard-links"),
    pytest.param({"apart": True, "linkless": True}, id="two-without-hard-links"),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the machine has one: thousands of calls of fsync follow."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="lychd-test-") as made:
        yield Path(made)


@pytest.fixture
def job(place: Path, settings: Any) -> Job:
    """A tree with an approved plan of three moves."""
    root = place / "tree"
    settings.CONFIG = django_settings.CONFIG.model_copy(update={"roots": (root,)})
    settings.DATA = place / "data"
    for name, content in (
        ("a", A),
        ("sub/a", A),
        ("sub/deep/a", A),
        ("b", B),
        ("sub/b", B),
        ("alone", ALONE),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    state = reclaiming.survey(ReclaimInput(root="."), RUN, "default", Pace(Quiet()))
    assert state.proposed is not None
    assert state.proposed.files == 3
    return Job(root, place / "data", RUN)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", WORLDS)
def test_a_move_killed_at_any_step_loses_nothing_and_is_finished_by_the_next(
    job: Job, world: dict[str, Any], place: Path
) -> None:
    job = Job(job.root, job.data, RUN, **world)
    whole = contents(job.root)
    deaths = killed_at_every_step(job, place, lambda: still_whole(job, whole), lambda: moved(job, whole))
    assert deaths > 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", WORLDS)
def test_a_restore_killed_at_any_step_loses_nothing_and_is_finished_by_the_next(
    job: Job, world: dict[str, Any], place: Path
) -> None:
    before, whole = files(job.root), contents(job.root)
    Job(job.root, job.data, RUN, **world).until(None)
    moved(job, whole)

    def back() -> None:
        assert files(job.root) == before
        assert not list((quarantine(job) / "files").iterdir())

    restore = Job(job.root, job.data, RUN, restore=RESTORE, **world)
    deaths = killed_at_every_step(restore, place, lambda: still_whole(job, whole), back)
    assert deaths > 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", WORLDS[:2])
def test_a_restore_after_a_move_that_died_at_any_step_brings_everything_back(
    job: Job, world: dict[str, Any], place: Path
) -> None:
    before = files(job.root)
    saved = place / "saved"
    save(job, saved)
    step = 0
    while Job(job.root, job.data, RUN, **world).until(step := step + 1):
        Job(job.root, job.data, RUN, restore=RESTORE, **world).until(None)
        assert files(job.root) == before, f"killed at step {step}"
        Job(job.root, job.data, RUN, **world).until(None)
        assert files(job.root) == before, f"moved again after it was put back (step {step})"
        load(job, saved)
    assert step > 20


def killed_at_every_step(job: Job, place: Path, whole: Any, ended: Any) -> int:
    """Kill at step 1, 2, 3, … from the same beginning until the work gets through; how many deaths there were."""
    saved = place / "saved"
    save(job, saved)
    step = 0
    while True:
        step += 1
        # Now and then the resumed work dies as well, somewhere in its first half.
        for second in (None,) if step % 3 else (None, 2 + step % 11):
            if not job.until(step):
                ended()
                return step - 1
            whole()
            if second is not None:
                job.until(second)
                whole()
            assert not job.until(None)
            ended()
            load(job, saved)


def still_whole(job: Job, whole: Counter[bytes]) -> None:
    """Nothing is lost, and of each content one copy at least stands under a name of its own."""
    now = contents(job.root, quarantine(job) / "files")
    assert not whole - now, "a content is lost"
    standing = {content for name, content in files(job.root).items() if "/.lychd-" not in f"/{name}"}
    assert {A, B, ALONE} <= standing, "the last copy of a content has moved"


def moved(job: Job, whole: Counter[bytes]) -> None:
    """All three moves are done, once."""
    assert contents(job.root, quarantine(job) / "files") == whole
    assert contents(job.root) == Counter([A, B, ALONE])
    lines = [json.loads(line) for line in (quarantine(job) / "journal.jsonl").read_text().splitlines()]
    assert [(line["n"], line["moved"]) for line in lines] == [(1, len(A)), (2, len(A)), (3, len(B))]
    assert not (quarantine(job) / "incoming").exists()


def quarantine(job: Job) -> Path:
    return job.data / "quarantine" / str(RUN)


def save(job: Job, saved: Path) -> None:
    saved.mkdir()
    for folder in (job.root, job.data):
        clone(folder, saved / folder.name)


def load(job: Job, saved: Path) -> None:
    for folder in (job.root, job.data):
        shutil.rmtree(folder)
        clone(saved / folder.name, folder)
    renew(job)


def clone(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target, copy_function=shutil.copy2)


def renew(job: Job) -> None:
    """The plan names inodes, and a cloned tree has others."""
    path = quarantine(job) / "plan.jsonl"
    head, *lines = path.read_text().splitlines()
    made = [head]
    for line in lines:
        portion = json.loads(line)
        for entry in portion["move"]:
            for place in (job.root, quarantine(job) / "files"):
                if (place / entry[0]).exists():
                    status = (place / entry[0]).stat()
                    entry[1], entry[2] = status.st_ino, status.st_mtime_ns
        made.append(json.dumps(portion))
    path.write_text("\n".join(made) + "\n")
