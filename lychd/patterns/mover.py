"""Moves the copies of an approved plan into the quarantine: each once, none lost, never the last of its content.

The files themselves are the journal of what was begun: a file stands in the quarantine under its path or it does not,
and every state in which a crash may leave one is recognised and finished when the same plan is carried on. What was
settled is noted in the journal, so a resumed work goes on behind it. Within a file system a move is one rename. Across
file systems: copy, prove the copy, put the original aside, look whether it is still the one that was copied, remove it.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

from lychd.patterns.contents import Identity, folder_of, holds, opened_file, seen
from lychd.patterns.halfway import (
    CHANGED,
    GONE,
    LAST,
    NAMES,
    PUT_BACK,
    Left,
    Place,
    aside,
    give_back,
    room,
    whereabouts,
)
from lychd.patterns.pace import Pace
from lychd.patterns.placing import NotAlike, copy, removed
from lychd.patterns.plan import Item, Plan, Portion, Totals
from lychd.patterns.quarantine import INCOMING, Account, Journal, Quarantine
from lychd.patterns.tree import is_fatal

_BATCH = 64


@dataclass(slots=True)
class Dirty:
    """Folders whose changes are to reach the disk before anybody says that they happened."""

    _fds: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def add(self, fd: int) -> None:
        """Note an open folder; it is kept open until it is synced."""
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) not in self._fds:
            self._fds[status.st_dev, status.st_ino] = os.dup(fd)

    def sync(self) -> None:
        """Bring all of them to the disk."""
        try:
            for fd in self._fds.values():
                os.fsync(fd)
        finally:
            self.close()

    def close(self) -> None:
        """Forget them."""
        fds, self._fds = list(self._fds.values()), {}
        for fd in fds:
            os.close(fd)


@dataclass(slots=True)
class Mover:
    """One work on one plan; for one thread."""

    plan: Plan
    totals: Totals
    quarantine: Quarantine
    root_fd: int
    journal: Journal
    pace: Pace
    _dirty: Dirty = field(default_factory=Dirty)
    _proved: dict[bytes, tuple[int, ...]] = field(default_factory=dict[bytes, tuple[int, ...]])

    def run(self) -> Account:
        """Move everything that may be moved; goes on where an interrupted work stopped.

        Raises:
            Stopped: the Run was asked to stop; what is moved is moved and in the journal.
            OSError: the machine ran out of something.
        """
        removed(self.quarantine.fd, INCOMING)
        closed = self.quarantine.was_put_back()
        try:
            for portion in self.plan.portions():
                if portion.items[-1].number <= self.journal.account.done:
                    continue
                self._proved.clear()
                for item in portion.items:
                    if item.number > self.journal.account.done:
                        self._one(portion, item, closed=closed)
        finally:
            self._flush()
        return self.journal.account

    def _one(self, portion: Portion, item: Item, *, closed: bool) -> None:
        self.pace.check()
        try:
            if closed:
                raise Left(PUT_BACK)
            self._move(portion, item)
        except Left as why:
            self.journal.left(item.number, item.path, str(why))
        except OSError as error:
            if is_fatal(error):
                raise
            self.journal.left(item.number, item.path, error.strerror or type(error).__name__)
        else:
            self.journal.moved(item.number, item.was.size)
        if item.number % _BATCH == 0:
            self._flush()
        account = self.journal.account
        self.pace.tell(item.number, self.totals.files, f"{account.moved:,} files, {account.bytes:,} bytes moved")

    def _flush(self) -> None:
        self._dirty.sync()
        self.journal.sync()

    def _move(self, portion: Portion, item: Item) -> None:
        found = whereabouts(self.quarantine, self.root_fd, item, self.pace)
        if found is Place.AWAY:
            return
        try:
            self._take(portion, item, copied=found is Place.BOTH)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Left(GONE) from error

    def _take(self, portion: Portion, item: Item, *, copied: bool) -> None:
        try:
            with folder_of(self.root_fd, item.path) as (fd, name), opened_file(fd, name) as (file, status):
                self._prove(file, status, item)
                witness = self._witness(portion, item, status)
                with room(self.quarantine, item) as (room_fd, new):
                    if not copied and self._rename(fd, name, room_fd, new, item, witness):
                        return
                    if not copied:
                        self._copy(file, room_fd, new, item)
                    copied = True
                    self._remove(fd, name, item, witness)
                    # The original is gone: from here on the copy is the file.
                    copied = False
        except BaseException:
            # We have not removed the original, so the copy in the quarantine is one too many.
            if copied:
                self._drop(item)
            raise

    def _prove(self, file: int, status: os.stat_result, item: Item) -> None:
        if Identity.of(status) != item.was:
            raise Left(CHANGED)
        if status.st_nlink > 1:
            raise Left(NAMES)
        if not holds(file, item.was.size, item.sha256, self.pace):
            raise Left(CHANGED)

    def _witness(self, portion: Portion, item: Item, own: os.stat_result) -> bytes:
        """The path of another copy that stands with the same content now: the one that stays, else any other."""
        for path in (portion.keep, *(other.path for other in portion.items if other.number != item.number)):
            if self._stands(path, portion, own):
                return path
        raise Left(LAST)

    def _stands(self, path: bytes, portion: Portion, own: os.stat_result) -> bool:
        try:
            with folder_of(self.root_fd, path) as (fd, name), opened_file(fd, name) as (file, status):
                if os.path.samestat(status, own):
                    return False
                # The change time cannot be set by anybody, so the same one means the same content.
                key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if self._proved.get(path) == key:
                    return True
                if not holds(file, portion.size, portion.sha256, self.pace):
                    return False
                self._proved[path] = key
                return True
        except OSError as error:
            if is_fatal(error):
                raise
            return False

    def _still_stands(self, path: bytes) -> bool:
        """Whether a witness is there after the item is gone from its place.

        It may have been the same file seen twice, or another Run may have moved it in the same moment: of two that take
        each other's witness, the later one to look gives its file back.
        """
        try:
            with folder_of(self.root_fd, path) as (fd, name):
                status = seen(fd, name)
        except (FileNotFoundError, NotADirectoryError):
            return False
        known = self._proved[path]
        return status is not None and known[:4] == (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
        )

    def _rename(self, fd: int, name: bytes, room_fd: int, new: bytes, item: Item, witness: bytes) -> bool:
        """Move within the file system; False when the quarantine is on another."""
        try:
            os.rename(name, new, src_dir_fd=fd, dst_dir_fd=room_fd)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return False
            raise
        moved = seen(room_fd, new)
        if moved is None or Identity.of(moved) != item.was or not stat.S_ISREG(moved.st_mode):
            give_back(room_fd, new, fd, name)
            raise Left(CHANGED)
        if not self._still_stands(witness):
            give_back(room_fd, new, fd, name)
            raise Left(LAST)
        self._dirty.add(fd)
        self._dirty.add(room_fd)
        return True

    def _copy(self, file: int, room_fd: int, new: bytes, item: Item) -> None:
        try:
            copy(file, item.sha256, self.quarantine.fd, INCOMING, self.pace)
        except NotAlike as error:
            if Identity.of(os.fstat(file)) != item.was:
                raise Left(CHANGED) from error
            raise
        os.rename(INCOMING, new, src_dir_fd=self.quarantine.fd, dst_dir_fd=room_fd)
        os.fsync(room_fd)

    def _remove(self, fd: int, name: bytes, item: Item, witness: bytes) -> None:
        """Remove the original, whose proved copy is on the disk; whatever is removed was looked at last under a name
        that nobody else knows."""
        hidden = aside(self.quarantine, item)
        os.rename(name, hidden, src_dir_fd=fd, dst_dir_fd=fd)
        status = seen(fd, hidden)
        if status is None or Identity.of(status) != item.was or status.st_nlink > 1:
            give_back(fd, hidden, fd, name)
            raise Left(CHANGED)
        if not self._still_stands(witness):
            give_back(fd, hidden, fd, name)
            raise Left(LAST)
        self._dirty.add(fd)
        # The last line: whatever fails before it leaves the original, and its copy is dropped.
        os.unlink(hidden, dir_fd=fd)

    def _drop(self, item: Item) -> None:
        with room(self.quarantine, item) as (fd, name):
            removed(fd, name)
            os.fsync(fd)
