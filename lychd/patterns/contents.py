"""Which file it is and what it holds: seen through an open file, so that what is judged is what was read."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from lychd.patterns.listing import signed
from lychd.patterns.pace import Pace
from lychd.patterns.roots import descend
from lychd.patterns.tree import FILE

CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """One file in one state: its inode as the listing keeps it, bytes, and nanoseconds of its last change.

    Without the device: its number may be another after the machine was started anew, and a question may wait that long.
    """

    ino: int
    size: int
    mtime: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """Of what was seen."""
        return cls(signed(status.st_dev, status.st_ino)[1], status.st_size, status.st_mtime_ns)


def split(path: bytes) -> tuple[tuple[bytes, ...], bytes]:
    """The folders that lead to a file from the root, and its name."""
    *folders, name = path.split(b"/")
    return tuple(folders), name


@contextmanager
def folder_of(root_fd: int, path: bytes) -> Generator[tuple[int, bytes]]:
    """The open folder that a file is in, reached without following a link, and the file's name in it.

    Raises:
        OSError: a folder is gone, is a link now, or may not be opened.
    """
    folders, name = split(path)
    fd = descend(os.dup(root_fd), folders)
    try:
        yield fd, name
    finally:
        os.close(fd)


@contextmanager
def opened_file(folder_fd: int, name: bytes) -> Generator[tuple[int, os.stat_result]]:
    """An open regular file of a folder; its status as it was opened.

    Raises:
        FileNotFoundError: there is none of that name, or it is a link, a folder, a pipe.
        OSError: it may not be read.
    """
    before = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    if not stat.S_ISREG(before.st_mode):
        raise FileNotFoundError(f"{name!r} is no regular file")
    fd = os.open(name, FILE, dir_fd=folder_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{name!r} is no regular file")
        yield fd, status
    finally:
        os.close(fd)


def seen(folder_fd: int, name: bytes) -> os.stat_result | None:
    """What stands under a name, links not followed; None when nothing does.

    Raises:
        OSError: nobody can tell.
    """
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def sha256(fd: int, pace: Pace) -> str:
    """Hash of a whole open file, from its beginning.

    Raises:
        Stopped: the Run was asked to stop.
        OSError: it cannot be read.
    """
    made = hashlib.sha256()
    place = 0
    while part := os.pread(fd, CHUNK, place):
        pace.check()
        made.update(part)
        place += len(part)
    return made.hexdigest()


def holds(fd: int, size: int, wanted: str, pace: Pace) -> bool:
    """Whether an open file has this size and hash and did not change while it was read.

    Raises:
        Stopped: the Run was asked to stop.
        OSError: it cannot be read.
    """
    before = Identity.of(os.fstat(fd))
    return before.size == size and sha256(fd, pace) == wanted and Identity.of(os.fstat(fd)) == before
