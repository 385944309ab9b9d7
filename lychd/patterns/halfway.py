"""Where a file of a plan is, also after a crash: what an interrupted move left halfway is recognised and settled."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum

from lychd.patterns.contents import Identity, folder_of, seen
from lychd.patterns.names import shown
from lychd.patterns.pace import Pace
from lychd.patterns.placing import is_alike, made_folders, place
from lychd.patterns.plan import Item
from lychd.patterns.quarantine import Quarantine

CHANGED = "it changed since the question was asked"
GONE = "there is no such file any more"
CHANGED_THERE = "what is in the quarantine under its name has changed; it stays there"
LAST = "no other copy of it stands any more"
NAMES = "it has several names now (hard links); moving one frees nothing"
PUT_BACK = "the quarantine was put back meanwhile"
_PRIVATE = 0o700


class Left(Exception):
    """This file is left where it is; the text says why."""


class Place(Enum):
    """Where a file of the plan is found."""

    HOME = "under its own name, not in the quarantine"
    AWAY = "in the quarantine"
    BOTH = "in the quarantine as a proved copy, and still under its own name"


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
                    give_back(room_fd, kept_name, fd, name)
                raise Left(CHANGED)
            if kept is None:
                return Place.HOME
            here = seen(fd, name)
            return Place.BOTH if here is not None and Identity.of(here) == item.was else Place.AWAY
    except (FileNotFoundError, NotADirectoryError):
        return Place.HOME if kept is None else Place.AWAY


def _give_back_aside(quarantine: Quarantine, fd: int, name: bytes, item: Item) -> None:
    if seen(fd, aside(quarantine, item)) is not None:
        give_back(fd, aside(quarantine, item), fd, name)


def _is_ours(fd: int, name: bytes, status: os.stat_result, item: Item, pace: Pace) -> bool:
    """Whether what stands in the quarantine is the item: the very file, or a copy with its content."""
    if not stat.S_ISREG(status.st_mode):
        return False
    return Identity.of(status) == item.was or is_alike(fd, name, item.was.size, item.sha256, pace)


def give_back(from_fd: int, name: bytes, fd: int, own: bytes) -> None:
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
