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
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from lychd.patterns.contents import Identity, folder_of, holds, opened_file, seen
from lychd.patterns.names import shown
from lychd.patterns.pace import Pace
from lychd.patterns.placing import NotAlike, copy, is_alike, made_folders, place, removed
from lychd.patterns.plan import Item, Plan, Portion, Totals
from lychd.patterns.quarantine import INCOMING, Account, Journal, Quarantine
from lychd.patterns.tree import is_fatal

CHANGED = "it changed since the question was asked"
GONE = "there is no such file any more"
CHANGED_THERE = "what is in the quarantine under its name has changed; it stays there"
LAST = "no other copy of it stands any more"
NAMES = "it has several names now (hard links); moving one frees nothing"
PUT_BACK = "the quarantine was put back meanwhile"
_BATCH = 64
_PRIVATE = 0o700


class Left(Exception):
    """This file is left where it is; the text says why."""


class Place(Enum):
    """Where a file of the plan is found."""

    HOME = "under its own name, not in the quarantine"
    AWAY = "in the quarantine"
    BOTH = "in the quarantine as a proved copy, and still under its own name"


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


def aside(quarantine: Quarantine, item: Item) -> bytes:
    """The name that an original has for the moment between its proof and its removal, beside its own name."""
    return f".lychd-{quarantine.id}-{item.number}".encode()


@contextmanager
def room(quarantine: Quarantine, item: Item) -> Generator[tuple[int, bytes]]:
    """The open folder of the quarantine for an item, made where it is missing, and the item's name in it."""
    fd = made_folders(quarantine.files, item.path, _PRIVATE)
    try:
        yield fd, item.path.rpartition(b"/")[2]
    finally:
        os.close(fd)


def whereabouts(quarantine: Quarantine, root_fd: int, item: Item, pace: Pace, *, changed_returns: bool = True) -> Place:
    """Where an item is, after what an interrupted work left halfway was brought to one side.

    Args:
        changed_returns: whether the file itself goes back when it changed in the quarantine.

    Raises:
        Left: it is found in a state that only people can judge; nothing of it was removed.
        OSError: nobody can tell.
    """
    try:
        with folder_of(quarantine.files, item.path) as (fd, name):
            kept = seen(fd, name)
            proved = kept is not None and _is_ours(fd, name, kept, item, pace)
    except FileNotFoundError:
        kept, proved = None, False
    try:
        with folder_of(root_fd, item.path) as (fd, name):
            _give_back_aside(quarantine, fd, name, item)
            if kept is not None and not proved:
                if not changed_returns and Identity.of(kept).ino == item.was.ino:
                    raise Left(CHANGED_THERE)
                # Somebody swapped the file in the moment of its move: theirs goes back.
                with room(quarantine, item) as (room_fd, kept_name):
                    _return(room_fd, kept_name, fd, name)
                raise Left(CHANGED)
            if kept is None:
                return Place.HOME
            here = seen(fd, name)
            return Place.BOTH if here is not None and Identity.of(here) == item.was else Place.AWAY
    except (FileNotFoundError, NotADirectoryError):
        return Place.HOME if kept is None else Place.AWAY


def _give_back_aside(quarantine: Quarantine, fd: int, name: bytes, item: Item) -> None:
    if seen(fd, aside(quarantine, item)) is not None:
        _return(fd, aside(quarantine, item), fd, name)


def _is_ours(fd: int, name: bytes, status: os.stat_result, item: Item, pace: Pace) -> bool:
    """Whether what stands in the quarantine is the item: the very file, or a copy with its content."""
    if not stat.S_ISREG(status.st_mode):
        return False
    return Identity.of(status) == item.was or is_alike(fd, name, item.was.size, item.sha256, pace)


def _return(from_fd: int, name: bytes, fd: int, own: bytes) -> None:
    """Give a file its own name back.

    Raises:
        Left: something has the name now; the file stays where it is and is named.
    """
    try:
        place(from_fd, name, fd, own)
    except FileExistsError as error:
        raise Left(f"{CHANGED}, and something has its name now; what was there is kept as {shown(name)}") from error
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise Left(CHANGED_THERE) from error
        raise


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
        with self.quarantine.turn(self.pace):
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
        """Whether a witness is there after the item is gone from its place: it may have been the same file twice."""
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
            _return(room_fd, new, fd, name)
            raise Left(CHANGED)
        if not self._still_stands(witness):
            _return(room_fd, new, fd, name)
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
            _return(fd, hidden, fd, name)
            raise Left(CHANGED)
        if not self._still_stands(witness):
            _return(fd, hidden, fd, name)
            raise Left(LAST)
        self._dirty.add(fd)
        # The last line: whatever fails before it leaves the original, and its copy is dropped.
        os.unlink(hidden, dir_fd=fd)

    def _drop(self, item: Item) -> None:
        with room(self.quarantine, item) as (fd, name):
            removed(fd, name)
            os.fsync(fd)
