"""Who runs the embedded server. PostgreSQL refuses to run as root, so root hands it to another user.

Two roads for root: switch to another user, or, where that user may not enter the folders, stay root outside and
be somebody else inside a user namespace. Never makes a user, never opens a folder that is not ours.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from lychd.postgres.errors import DatabaseUnavailable, FolderUnusable

# A user of ours first, then the one that systems keep for database servers, then the one that is everywhere.
PREFERRED = ("lychd", "postgres", "nobody")
# In a namespace every user that is not mapped looks like this one; being it would let everybody in.
OVERFLOW_UID = 65534
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


class Road(StrEnum):
    """How the server's processes get their user."""

    SAME = "same"
    SWITCHED = "switched"
    MAPPED = "mapped"


@dataclass(frozen=True, slots=True)
class Account:
    """The user that runs the server.

    Attributes:
        road: how the processes become that user.
        name: the user's name as the server sees it.
        uid, gid: what owns the server's files, as seen from here.
        inside: user and group id inside the namespace (road `mapped` only).
    """

    road: Road
    name: str
    uid: int
    gid: int
    inside: tuple[int, int] | None = None

    def start(self, argv: Sequence[str], out: IO[bytes] | int, err: IO[bytes] | int) -> subprocess.Popen[bytes]:
        """Start a program as this user: own session, so that Ctrl-C does not reach it; in `/`; bare environment."""
        switched = self.road is Road.SWITCHED
        return subprocess.Popen(  # noqa: S603 - our own programs by their full path
            [*self._prefix(), *argv],
            cwd="/",
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            umask=0o077,
            user=self.uid if switched else None,
            group=self.gid if switched else None,
            extra_groups=() if switched else None,
            stdout=out,
            stderr=err,
        )

    def run(self, argv: Sequence[str], *, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a short program as this user and keep what it says; a program that cannot be started exits with 126."""
        try:
            process = self.start(argv, subprocess.PIPE, subprocess.PIPE)
        except OSError as error:
            return subprocess.CompletedProcess(list(argv), 126, "", f"{error.filename or argv[0]}: {error.strerror}")
        with process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(
            list(argv), process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
        )

    def take(self, path: Path) -> None:
        """Make `path` this user's own."""
        if self.road is Road.SWITCHED:
            os.chown(path, self.uid, self.gid)

    def clients(self, owner: int) -> list[str]:
        """The system users that may connect, by name: we, the owner of the database's folder, and root.

        Inside a namespace the server sees the root of outside under its own name and everybody else as nobody.
        """
        if self.road is Road.MAPPED:
            return [self.name]
        names = {_name_of(uid) for uid in (os.geteuid(), owner, 0)}
        return sorted(name for name in names if name is not None)

    def can_enter(self, folder: Path) -> bool:
        """Whether this user really gets into `folder`; tried, because modes are not the whole truth."""
        return self.run(["/bin/sh", "-c", 'cd -- "$0"', str(folder)], timeout=30).returncode == 0

    def can_run(self, program: str) -> bool:
        """Whether this user can start `program`."""
        return self.run([program, "-V"], timeout=30).returncode == 0

    def _prefix(self) -> list[str]:
        if self.inside is None:
            return []
        uid, gid = self.inside
        return [shutil.which("unshare") or "unshare", "--user", f"--map-user={uid}", f"--map-group={gid}", "--"]


def choose(folder: Path, data: Path, program: str) -> Account:
    """The account for the cluster whose files lie in `data` below `folder`.

    Data that exists already decides: its owner runs the server.

    Args:
        folder: the database's folder; must exist.
        data: PostgreSQL's own data folder; may be missing.
        program: the server's program.

    Raises:
        FolderUnusable: the only users possible cannot enter a folder on the way; the sentence names it.
        DatabaseUnavailable: our own user has no name.
    """
    if os.geteuid() != 0:
        name = _name_of(os.geteuid())
        if name is None:
            raise DatabaseUnavailable(
                f"User id {os.geteuid()} has no name on this system, which PostgreSQL needs: "
                "add it to /etc/passwd, or set DATABASE_URL to a PostgreSQL server."
            )
        return Account(Road.SAME, name, os.geteuid(), os.getegid())
    first: Account | None = None
    for account in _roads(data):
        first = first or account
        if account.can_run(program) and account.can_enter(folder):
            return account
    if first is None:
        raise DatabaseUnavailable("This system has no user but root, and PostgreSQL does not run as root.")
    closed = closed_folder(Path(program).parent, first) or closed_folder(folder, first) or folder
    raise FolderUnusable(
        f"The embedded database runs as user {first.name!r}, which cannot enter {closed}, and user namespaces are not "
        "available: keep data and installation where others may enter (for example LYCHD_DATA=/var/lib/lychd), "
        "run as an ordinary user, or set DATABASE_URL to a PostgreSQL server."
    )


def closed_folder(folder: Path, account: Account) -> Path | None:
    """The first folder on the way to `folder` whose mode keeps the account out; only to name it in a sentence."""
    for part in [*reversed(folder.parents), folder]:
        try:
            status = part.stat()
        except OSError:
            return part
        shift = 6 if status.st_uid == account.uid else 3 if status.st_gid == account.gid else 0
        if not status.st_mode >> shift & 1:
            return part
    return None


def _roads(data: Path) -> Iterator[Account]:
    try:
        owner = data.stat()
    except OSError:
        owner = None
    if owner is not None and owner.st_uid != 0:
        yield Account(Road.SWITCHED, _name_of(owner.st_uid) or str(owner.st_uid), owner.st_uid, owner.st_gid)
        return
    if owner is None:
        for name in PREFERRED:
            entry = _entry(name)
            if entry is not None:
                yield Account(Road.SWITCHED, entry.pw_name, entry.pw_uid, entry.pw_gid)
                break
    inside = _inside_user()
    if inside is not None and shutil.which("unshare"):
        yield Account(Road.MAPPED, inside.pw_name, 0, 0, (inside.pw_uid, inside.pw_gid))


def _inside_user() -> pwd.struct_passwd | None:
    known = [entry for name in (*PREFERRED, "daemon") if (entry := _entry(name))]
    return next((entry for entry in [*known, *pwd.getpwall()] if entry.pw_uid not in {0, OVERFLOW_UID}), None)


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _name_of(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
