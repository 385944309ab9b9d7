"""The quarantine of one reclaim: a private folder below the data folder with the plan, the moved files and journals.

quarantine/<run id>/plan.jsonl             what was proposed
quarantine/<run id>/files/…                what was moved, each file under its path from the root
quarantine/<run id>/journal.jsonl          what became of each file, in the order of the plan
quarantine/<run id>/restore-<run id>.jsonl likewise, of a Run that put files back
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from django.conf import settings

from lychd.patterns.contents import Identity
from lychd.patterns.names import shown
from lychd.patterns.plan import Plan, reading
from lychd.patterns.roots import FOLDER
from lychd.patterns.tree import FILE, Troubles
from runs.errors import NodeFailed

PLAN = "plan.jsonl"
JOURNAL = "journal.jsonl"
FILES = "files"
# A copy in the making; there is one at a time.
INCOMING = b"incoming"
_RESTORE = "restore-"
_PRIVATE = 0o700


class QuarantineMissing(NodeFailed):
    """There is no such quarantine."""

    code, title = "quarantine_missing", "No such quarantine"


class QuarantineBusy(NodeFailed):
    """Another Run works on this quarantine."""

    code, title = "quarantine_busy", "Quarantine in use"


class QuarantineFailed(NodeFailed):
    """The quarantine folder cannot be used."""

    code, title = "quarantine_failed", "Quarantine not usable"


def home() -> Path:
    """The folder of all quarantines."""
    data: Path = settings.DATA
    return data / "quarantine"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """An open quarantine; `fd` is its folder, `files` the folder of the moved files."""

    id: uuid.UUID
    path: Path
    fd: int
    files: int

    @contextmanager
    def plan(self) -> Generator[Plan]:
        """The plan, open.

        Raises:
            QuarantineMissing: there is none. PlanDamaged: it cannot be read.
        """
        try:
            fd = os.open(PLAN, FILE, dir_fd=self.fd)
        except FileNotFoundError as error:
            raise QuarantineMissing(f"{self.path} holds no plan.") from error
        try:
            with reading(fd) as file:
                yield Plan(file)
        finally:
            os.close(fd)

    @contextmanager
    def writing_plan(self) -> Generator[BinaryIO]:
        """A file that becomes the plan when the block ends well: whole or not at all, and on the disk."""
        new = f"{PLAN}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600, dir_fd=self.fd), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, PLAN, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)

    def journal(self, restore: uuid.UUID | None = None) -> Journal:
        """The journal of the moves, or of the Run that puts them back."""
        name = JOURNAL if restore is None else f"{_RESTORE}{restore}.jsonl"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        os.fsync(self.fd)
        return Journal(fd)

    def was_put_back(self) -> bool:
        """Whether some Run has begun to put files back: nothing may be moved here any more."""
        with os.scandir(self.fd) as entries:
            return any(entry.name.startswith(_RESTORE) for entry in entries)

    def sweep(self) -> None:
        """Remove the empty folders that are left when files were put back."""
        for _, folders, _, fd in os.fwalk(FILES, topdown=False, dir_fd=self.fd):
            for folder in folders:
                with contextlib.suppress(OSError):
                    os.rmdir(folder, dir_fd=fd)


@contextmanager
def opened(run_id: uuid.UUID, *, create: bool = False) -> Generator[Quarantine]:
    """Open a quarantine and keep other Runs out of it until the block ends.

    Raises:
        QuarantineMissing: there is none, and `create` is off.
        QuarantineBusy: another Run has it open.
        QuarantineFailed: the data folder cannot be used.
    """
    path = home() / str(run_id)
    with contextlib.ExitStack() as stack:
        try:
            top = _folder(stack, home(), create=create)
            fd = _folder(stack, str(run_id), create=create, within=top)
            files = _folder(stack, FILES, create=create, within=fd)
        except FileNotFoundError as error:
            raise QuarantineMissing(f"There is no quarantine of a Run {run_id}.") from error
        except OSError as error:
            raise QuarantineFailed(f"The quarantine {path} cannot be opened: {error.strerror}.") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise QuarantineBusy(f"Another Run works on the quarantine {run_id}.") from error
        yield Quarantine(run_id, path, fd, files)


def discard(run_id: uuid.UUID) -> None:
    """Remove a quarantine into which nothing was moved; one that holds a file stays.

    Raises:
        QuarantineFailed: it cannot be removed.
    """
    try:
        with opened(run_id) as quarantine:
            os.rmdir(FILES, dir_fd=quarantine.fd)
            for name in os.listdir(quarantine.fd):
                os.unlink(name, dir_fd=quarantine.fd)
            os.rmdir(quarantine.path)
    except QuarantineMissing:
        return
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            return
        raise QuarantineFailed(f"{home() / str(run_id)} cannot be removed: {error.strerror}.") from error


@dataclass(slots=True)
class Account:
    """What became of the files of a plan so far. `done` is the number of the last one that is settled."""

    done: int = 0
    moved: int = 0
    bytes: int = 0
    left: Troubles = field(default_factory=Troubles)
    placing: tuple[int, Identity] | None = None


class Journal:
    """Appended lines, one for each file that is settled. What the disk does not have is found out again.

    A line that a crash cut short is dropped.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: list[bytes] = []
        self.account = Account()
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def moved(self, number: int, size: int) -> None:
        """This file is where it was to be brought."""
        self._note({"n": number, "moved": size})

    def left(self, number: int, path: bytes, reason: str) -> None:
        """This file was left alone."""
        self._note({"n": number, "path": shown(path), "left": reason})

    def passed(self, number: int) -> None:
        """There is nothing to do for this file."""
        self._note({"n": number})

    def placing(self, number: int, made: Identity) -> None:
        """A copy is about to be put under its name; on the disk when this returns."""
        self._note({"n": number, "placing": [made.ino, made.size, made.mtime]})
        self.sync()

    def sync(self) -> None:
        """Bring the lines to the disk.

        Raises:
            OSError: the disk is full or broken.
        """
        if not self._lines:
            return
        data = memoryview(b"".join(self._lines))
        self._lines.clear()
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)

    def _note(self, line: dict[str, Any]) -> None:
        self._lines.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._count(line)

    def _count(self, line: dict[str, Any]) -> None:
        account = self.account
        if "placing" in line:
            account.placing = (line["n"], Identity(*line["placing"]))
            return
        account.done = line["n"]
        if "moved" in line:
            account.moved += 1
            account.bytes += line["moved"]
        elif "left" in line:
            account.left.note(line["path"], line["left"])

    def _read(self) -> None:
        good = 0
        with reading(self._fd) as file:
            for text in file:
                if not text.endswith(b"\n"):
                    break
                try:
                    self._count(json.loads(text))
                except (ValueError, KeyError, TypeError):
                    break
                good += len(text)
        os.ftruncate(self._fd, good)
        os.lseek(self._fd, good, os.SEEK_SET)


def _folder(stack: contextlib.ExitStack, name: str | Path, *, create: bool, within: int | None = None) -> int:
    if create:
        with contextlib.suppress(FileExistsError):
            if isinstance(name, Path):
                name.parent.mkdir(parents=True, exist_ok=True)
            os.mkdir(name, _PRIVATE, dir_fd=within)
    fd = os.open(name, FOLDER, dir_fd=within)
    stack.callback(os.close, fd)
    return fd
