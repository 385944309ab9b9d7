"""Walks over a tree by open folders and lists it. Follows no link, opens no file, and survives what others change."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lychd.patterns.kinds import kind_of
from lychd.patterns.listing import FileRow, Listing
from lychd.patterns.names import shown
from lychd.patterns.pace import Pace
from lychd.patterns.report import MOST_TROUBLES, Trouble
from lychd.patterns.roots import descend

# A tree may be made deeper than any path can name; nobody's real tree is.
MOST_DEPTH = 1000
_BATCH = 500
_LOOK_EVERY = 256
# Never waits for the other end of a pipe that took the file's place, never makes a terminal ours.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
EFFECTIVE_IDS = os.access in os.supports_effective_ids
# The machine has run out of something: what follows would all fail, and none of it would be the tree's fault.
_FATAL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_fatal(error: OSError) -> bool:
    """Whether the machine has run out of something, so that it is not the one file's fault."""
    return error.errno in _FATAL


@dataclass(slots=True)
class Troubles:
    """What could not be read: all in number, the first ones by name."""

    total: int = 0
    shown: list[Trouble] = field(default_factory=list[Trouble])

    def add(self, path: bytes, reason: str) -> None:
        self.note(shown(path), reason)

    def note(self, path: str, reason: str) -> None:
        """Note what has its text already."""
        self.total += 1
        if len(self.shown) < MOST_TROUBLES:
            self.shown.append(Trouble(path=path, reason=reason))

    def failed(self, path: bytes, error: OSError) -> None:
        """Note an error of one file or folder.

        Raises:
            OSError: the error itself, when it is the machine's and not the file's.
        """
        if is_fatal(error):
            raise error
        self.add(path, error.strerror or type(error).__name__)


@dataclass(slots=True)
class Tally:
    """What the walk counted."""

    files: int = 0
    folders: int = 0
    bytes: int = 0
    empty: int = 0
    hard_links: int = 0
    symlinks: int = 0
    special: int = 0
    changed: int = 0
    unreadable: Troubles = field(default_factory=Troubles)
    skipped: list[Trouble] = field(default_factory=list[Trouble])


class Tree:
    """An open root and its listing. Folders are opened from the root down, each time; the last one stays open."""

    def __init__(self, root_fd: int, listing: Listing) -> None:
        self._root = root_fd
        self._listing = listing
        self._last: tuple[int, int] | None = None

    def folder(self, folder: int) -> int:
        """A descriptor of a listed folder, valid until the next call.

        Raises:
            OSError: it is gone, is a link now, or may not be read.
        """
        if self._last is not None and self._last[0] == folder:
            return self._last[1]
        self.close()
        fd = descend(os.dup(self._root), self._listing.parts(folder))
        self._last = (folder, fd)
        return fd

    def path(self, folder: int, name: bytes = b"") -> bytes:
        """Where something is, from the root."""
        parts = self._listing.parts(folder)
        return b"/".join((*parts, name) if name else parts) or b"."

    def close(self) -> None:
        """Close what stayed open."""
        last, self._last = self._last, None
        if last is not None:
            os.close(last[1])


@contextmanager
def standing(root_fd: int, listing: Listing) -> Generator[Tree]:
    """A tree that is closed at the end; the root's descriptor stays open."""
    tree = Tree(root_fd, listing)
    try:
        yield tree
    finally:
        tree.close()


@dataclass(slots=True)
class Walk:
    """One walk.

    Args:
        skip: folders not to enter, by device and inode, each with the reason.
    """

    tree: Tree
    listing: Listing
    pace: Pace
    skip: dict[tuple[int, int], str]
    tally: Tally = field(default_factory=Tally)
    _rows: list[FileRow] = field(default_factory=list[FileRow])
    _seen: int = 0

    def run(self) -> Tally:
        """List everything.

        Raises:
            Stopped: the Run was asked to stop.
            OSError: the machine ran out of something.
            sqlite3.Error: the listing could not be written.
        """
        self.listing.add_folder(None, b"", 0)
        for folder, depth in self.listing.folders():
            self._enter(folder, depth)
        self._flush()
        self.pace.tell(self.tally.files, self.tally.files, self._told())
        return self.tally

    def _enter(self, folder: int, depth: int) -> None:
        try:
            entries = os.scandir(self.tree.folder(folder))
        except (FileNotFoundError, NotADirectoryError):
            self.tally.changed += 1
            return
        except OSError as error:
            self.tally.folders += 1
            self.tally.unreadable.failed(self.tree.path(folder), error)
            return
        self.tally.folders += 1
        with entries:
            while True:
                try:
                    entry = next(entries, None)
                except OSError as error:
                    self.tally.unreadable.failed(self.tree.path(folder), error)
                    return
                if entry is None:
                    return
                self._look(folder, depth, entry)

    def _look(self, folder: int, depth: int, entry: os.DirEntry[str]) -> None:
        self._seen += 1
        if self._seen % _LOOK_EVERY == 0:
            self.pace.check()
            self.pace.tell(self.tally.files, None, self._told())
        name = os.fsencode(entry.name)
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            self.tally.changed += 1
            return
        except OSError as error:
            self.tally.unreadable.failed(self.tree.path(folder, name), error)
            return
        if stat.S_ISREG(status.st_mode):
            self._file(folder, name, status)
        elif stat.S_ISDIR(status.st_mode):
            reason = self.skip.get((status.st_dev, status.st_ino))
            if reason is not None:
                self.tally.skipped.append(Trouble(path=shown(self.tree.path(folder, name)), reason=reason))
            elif depth >= MOST_DEPTH:
                self.tally.unreadable.add(self.tree.path(folder, name), f"more than {MOST_DEPTH:,} folders deep")
            else:
                self.listing.add_folder(folder, name, depth + 1)
        elif stat.S_ISLNK(status.st_mode):
            self.tally.symlinks += 1
        else:
            self.tally.special += 1

    def _file(self, folder: int, name: bytes, status: os.stat_result) -> None:
        readable = self._is_readable(folder, name)
        first = status.st_nlink < 2 or self.listing.is_first(status.st_dev, status.st_ino)
        self.tally.files += 1
        if first:
            self.tally.bytes += status.st_size
            self.tally.empty += status.st_size == 0
        else:
            self.tally.hard_links += 1
        self._rows.append(
            FileRow(
                folder,
                name,
                status.st_size,
                kind_of(name),
                status.st_mtime_ns,
                status.st_dev,
                status.st_ino,
                first,
                readable,
            )
        )
        if len(self._rows) >= _BATCH:
            self._flush()

    def _is_readable(self, folder: int, name: bytes) -> bool:
        fd = self.tree.folder(folder)
        if os.access(name, os.R_OK, dir_fd=fd, effective_ids=EFFECTIVE_IDS, follow_symlinks=False):
            return True
        try:
            # A no without a reason; opening gives the reason.
            os.close(os.open(name, FILE, dir_fd=fd))
        except FileNotFoundError:
            self.tally.changed += 1
        except OSError as error:
            self.tally.unreadable.failed(self.tree.path(folder, name), error)
        else:
            return True
        return False

    def _flush(self) -> None:
        self.listing.add_files(self._rows)
        self._rows.clear()

    def _told(self) -> str:
        return f"{self.tally.files:,} files in {self.tally.folders:,} folders"
