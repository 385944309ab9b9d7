"""Puts a file under another name without ever overwriting one, and copies a file with all that it has.

Nothing here decides whether to: callers hold open folders and have proved what they move.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable

from lychd.patterns.contents import CHUNK, holds, opened_file, seen, split
from lychd.patterns.pace import Pace
from lychd.patterns.roots import FOLDER

# A file system without hard links, or one where the system forbids them for this file.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_NOREPLACE = 1
# Of the extended attributes those that belong to the file; the others are the machine's own labels.
_KEPT = ("user.", "system.posix_acl_access")
_NO_ATTRIBUTES = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP})


class NotAlike(OSError):
    """The copy does not hold what the file holds."""


def place(from_fd: int, name: bytes, to_fd: int, new: bytes) -> None:
    """Move a file to a name that nothing has, within one file system.

    A crash in between leaves it under both names, never under none; called again, this finishes it.

    Raises:
        FileExistsError: something has the name; nothing was changed.
        OSError: with `EXDEV` for another file system; or this one cannot do it without the danger of overwriting.
    """
    try:
        os.link(name, new, src_dir_fd=from_fd, dst_dir_fd=to_fd, follow_symlinks=False)
    except FileExistsError:
        if not _is_one(from_fd, name, to_fd, new):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_only(from_fd, name, to_fd, new)
        return
    os.unlink(name, dir_fd=from_fd)


def copy(source_fd: int, digest: str, folder_fd: int, name: bytes, pace: Pace) -> os.stat_result:
    """Copy an open file to a new name, with owner, mode, times and attributes, down to the disk; proved by its hash.

    Args:
        digest: SHA-256 that the copy must have.
        name: must be free.

    Returns:
        The status of the copy.

    Raises:
        Stopped: the Run was asked to stop; nothing is left.
        NotAlike: the file changed while it was copied, or the disk gave back something else; nothing is left.
        OSError: the copy cannot be made, or not with the same owner; nothing is left.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=folder_fd)
    try:
        place_at = 0
        while part := os.pread(source_fd, CHUNK, place_at):
            pace.check()
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
            place_at += len(part)
        status = os.fstat(source_fd)
        _dress(source_fd, fd, status)
        os.fsync(fd)
        if not holds(fd, status.st_size, digest, pace):
            raise NotAlike(errno.EIO, "the copy does not hold the same")
        return os.fstat(fd)
    except BaseException:
        os.unlink(name, dir_fd=folder_fd)
        raise
    finally:
        os.close(fd)


def made_folders(root_fd: int, path: bytes, mode: int) -> int:
    """Open the folder for a file below an open root, making what is missing of it; no link is followed.

    Returns:
        An open folder, to be closed by the caller.

    Raises:
        OSError: a part is a link or no folder, or may not be made.
    """
    fd = os.dup(root_fd)
    for part in split(path)[0]:
        try:
            below = _below(fd, part, mode)
        finally:
            os.close(fd)
        fd = below
    return fd


def removed(folder_fd: int, name: bytes) -> None:
    """Remove a file of our own, if it is there."""
    try:
        os.unlink(name, dir_fd=folder_fd)
    except FileNotFoundError:
        pass


def is_alike(folder_fd: int, name: bytes, size: int, digest: str, pace: Pace) -> bool:
    """Whether a regular file of that name holds exactly this.

    Raises:
        Stopped: the Run was asked to stop.
        OSError: it is there and cannot be read.
    """
    try:
        with opened_file(folder_fd, name) as (fd, _):
            return holds(fd, size, digest, pace)
    except FileNotFoundError:
        return False


def _below(fd: int, part: bytes, mode: int) -> int:
    try:
        return os.open(part, FOLDER, dir_fd=fd)
    except FileNotFoundError:
        try:
            os.mkdir(part, mode, dir_fd=fd)
        except FileExistsError:
            pass
        below = os.open(part, FOLDER, dir_fd=fd)
        os.fsync(fd)
        return below


def _dress(source_fd: int, fd: int, status: os.stat_result) -> None:
    made = os.fstat(fd)
    if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
        os.fchown(fd, status.st_uid, status.st_gid)
    os.fchmod(fd, status.st_mode & 0o7777)
    for name in _attributes(source_fd):
        os.setxattr(fd, name, os.getxattr(source_fd, name))
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def _attributes(fd: int) -> list[str]:
    if not hasattr(os, "listxattr"):
        return []
    try:
        return [name for name in os.listxattr(fd) if name.startswith(_KEPT)]
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return []
        raise


def _is_one(from_fd: int, name: bytes, to_fd: int, new: bytes) -> bool:
    mine, there = seen(from_fd, name), seen(to_fd, new)
    return mine is not None and there is not None and os.path.samestat(mine, there)


def _rename_only(from_fd: int, name: bytes, to_fd: int, new: bytes) -> None:
    call = _renameat2()
    if call is None:
        raise OSError(errno.ENOTSUP, "the file system cannot place a file without the danger of overwriting another")
    if call(from_fd, name, to_fd, new, _NOREPLACE) == 0:
        return
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    call.restype = ctypes.c_int
    return call
