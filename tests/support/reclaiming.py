"""Work of the Pattern `reclaim` in processes that die by SIGKILL at a counted step of what they do to the disk.

The processes come from a fork server that has the modules loaded already, so that hundreds of deaths take seconds.
"""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os
import signal
import uuid
from collections import Counter
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Every call that changes the disk; a process may die before each and after each.
CHANGES = ("rename", "link", "unlink", "mkdir", "rmdir", "fsync", "write", "ftruncate", "fchmod", "utime", "open")


class Quiet:
    """Hears nothing; never stops, or after so many looks."""

    def __init__(self, looks: int | None = None) -> None:
        self.looks = looks
        self.told: list[Any] = []

    @property
    def cancelled(self) -> bool:
        if self.looks is None:
            return False
        self.looks -= 1
        return self.looks < 0

    def progress(self, *told: Any) -> None:
        self.told.append(told)


@dataclass(frozen=True)
class Job:
    """One call of a blocking half of the Pattern.

    Args:
        restore: put back as this Run, instead of moving.
        apart: behave as if root and data lay on two file systems.
        linkless: behave as if the file system had no hard links.
    """

    root: Path
    data: Path
    run_id: uuid.UUID
    restore: uuid.UUID | None = None
    apart: bool = False
    linkless: bool = False

    def start(self, step: int | None) -> ForkServerProcess:
        """Begin it in a process of its own that dies at that step."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.support.reclaiming", "lychd.patterns.reclaiming"])
        process = context.Process(target=_work, args=(self, step))
        process.start()
        return process

    def until(self, step: int | None) -> bool:
        """Do it in a process of its own that dies at that step; whether it died."""
        process = self.start(step)
        process.join(60)
        code = process.exitcode
        process.close()
        assert code in (0, -signal.SIGKILL), f"the work ended with {code}"
        return code != 0

    def do(self) -> None:
        """Do it in this process."""
        from lychd.patterns import reclaiming
        from lychd.patterns.pace import Pace

        if self.restore is None:
            reclaiming.move(self.run_id, Pace(Quiet()))
        else:
            reclaiming.put_back(self.run_id, self.restore, Pace(Quiet()))


def contents(*folders: Path) -> Counter[bytes]:
    """How often each content stands below these folders."""
    return Counter(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def apart(root: Path, real: Any) -> Any:
    """A rename or link that refuses to cross the border of `root`, as the system does between two file systems."""

    @functools.wraps(real)
    def call(source: Any, target: Any, *, src_dir_fd: int, dst_dir_fd: int, **more: Any) -> Any:
        inside = [os.readlink(f"/proc/self/fd/{fd}").startswith(str(root)) for fd in (src_dir_fd, dst_dir_fd)]
        if inside[0] != inside[1]:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **more)

    return call


def linkless(*_: Any, **__: Any) -> None:
    """A link on a file system without them."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def _work(job: Job, step: int | None) -> None:
    from django.conf import settings

    settings.configure(DATA=job.data, CONFIG=SimpleNamespace(roots=(job.root,)), LOGGING_CONFIG=None)
    if job.linkless:
        os.link = linkless
    if job.apart:
        os.rename, os.link = apart(job.root, os.rename), apart(job.root, os.link)
    if step is not None:
        _arm(step)
    job.do()


def _arm(step: int) -> None:
    passed = 0

    def count() -> None:
        nonlocal passed
        passed += 1
        if passed == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            changes = real.__name__ != "open" or args[1] & os.O_CREAT
            if changes:
                count()
            result = real(*args, **more)
            if changes:
                count()
            return result

        return call

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
