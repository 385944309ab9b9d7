"""Which folders a Pattern may read, and the one way into them: by open folders, never by a path that can be swapped.

A root is resolved first and must lie below an allowed folder; then each part of it is opened without following links,
so a link that is put there in between leads nowhere. What is outside is refused before anything of it is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from lychd.config import Config
from lychd.patterns.names import shown
from runs.errors import NodeFailed

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_NAMED = 10


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:  # the folder is gone; nothing below it can be asked for
        return Path("/nonexistent")


# Remembered when the Patterns are loaded, so that code which changes the folder later changes nothing here.
STARTED_IN = _here()


class RootNotAllowed(NodeFailed):
    """The folder is outside of what the settings allow."""

    code, title = "root_not_allowed", "Folder not allowed"


class RootMissing(NodeFailed):
    """There is no such folder on the Vessel's machine."""

    code, title = "root_missing", "No such folder"


class RootNotAFolder(NodeFailed):
    """What is there is not a folder."""

    code, title = "root_not_a_folder", "Not a folder"


class RootUnreadable(NodeFailed):
    """The Vessel may not read the folder."""

    code, title = "root_unreadable", "Folder not readable"


@dataclass(frozen=True, slots=True)
class Root:
    """An open folder; `fd` is closed by `opened`."""

    path: bytes
    fd: int


def allowed() -> tuple[Path, ...]:
    """The folders below which Patterns may read, resolved: the setting's, else where the Vessel was started."""
    config: Config = settings.CONFIG
    configured = (STARTED_IN,) if config.roots is None else config.roots
    return tuple(Path(os.path.realpath(STARTED_IN / folder)) for folder in configured)


@contextmanager
def opened(root: str) -> Generator[Root]:
    """Open a folder that may be read.

    Args:
        root: absolute, or relative to the first allowed folder.

    Raises:
        RootNotAllowed: it leads out of every allowed folder, by itself, by `..` or over a link; names them. Or it
            leads into the Vessel's own data.
        RootMissing, RootNotAFolder, RootUnreadable: it is allowed but cannot be opened.
    """
    base, parts = _placed(root)
    path = os.path.join(os.fsencode(base), *parts)
    fd = _open(path, base, parts)
    try:
        yield Root(path, fd)
    finally:
        os.close(fd)


def own_folders(root: Root, *more: Path) -> dict[tuple[int, int], str]:
    """The product's own folders, where they are met below the root: keys and databases are nobody's inventory.

    Args:
        more: folders of ours besides the data folder.

    Returns:
        Device and inode of each, with the reason to pass it by; never the root itself.
    """
    data: Path = settings.DATA
    own = os.fstat(root.fd)
    skip: dict[tuple[int, int], str] = {}
    for folder in (data, *more):
        try:
            status = folder.stat()
        except OSError:
            continue
        if (status.st_dev, status.st_ino) != (own.st_dev, own.st_ino):
            skip[status.st_dev, status.st_ino] = "the Vessel's own data"
    return skip


def _placed(root: str) -> tuple[Path, tuple[bytes, ...]]:
    folders = allowed()
    if not folders:
        raise RootNotAllowed("LYCHD_ROOTS allows no folder to be read.")
    try:
        resolved = Path(os.path.realpath(folders[0] / root))
    except ValueError as error:  # a NUL byte, or half a surrogate pair
        raise RootMissing(f"No folder can have the name {root[:100]!r}.") from error
    data = Path(os.path.realpath(settings.DATA))
    own = resolved.is_relative_to(data)
    for folder in folders:
        # Whoever names a folder within the data as allowed means it; that it lies below an allowed one may be chance.
        if resolved.is_relative_to(folder) and (not own or folder.is_relative_to(data)):
            return folder, tuple(map(os.fsencode, resolved.relative_to(folder).parts))
    if own:
        raise RootNotAllowed(
            f"The folder {shown(os.fsencode(root))!r} holds the Vessel's own data: keys and databases."
        )
    names = ", ".join(shown(os.fsencode(folder)) for folder in folders[:_MOST_NAMED])
    more = f" and {len(folders) - _MOST_NAMED} more" if len(folders) > _MOST_NAMED else ""
    raise RootNotAllowed(
        f"The folder {shown(os.fsencode(root))!r} is not below what this Vessel may read: {names}{more}. "
        "The setting LYCHD_ROOTS names the folders."
    )


def _open(path: bytes, base: Path, parts: tuple[bytes, ...]) -> int:
    name = shown(path)
    try:
        return descend(os.open(base, FOLDER & ~os.O_NOFOLLOW), parts)
    except FileNotFoundError as error:
        raise RootMissing(f"There is no folder {name} on the Vessel's machine.") from error
    except NotADirectoryError as error:
        raise RootNotAFolder(f"{name} is not a folder.") from error
    except OSError as error:
        raise RootUnreadable(f"The folder {name} cannot be read: {error.strerror}.") from error


def descend(fd: int, parts: tuple[bytes, ...]) -> int:
    """Open the folder that `parts` lead to from the open folder `fd`, which is closed; follows no link.

    Raises:
        OSError: a part is missing, a link, not a folder, or may not be read.
    """
    for part in parts:
        try:
            below = os.open(part, FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd
