"""The folder of the embedded server: what lies where, who holds it, and how to reach the socket.

Below the data folder, `postgres/` holds `data/` (PostgreSQL's own), `socket/`, the log, the access files and two lock
files. Changes the mode of nothing but that folder and what lies in it. Starts and stops nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lychd.postgres.account import Account
from lychd.postgres.errors import DatabaseBusy, FolderUnusable
from lychd.postgres.urls import socket_url

# A Unix socket's path holds 107 bytes (103 on macOS); PostgreSQL adds `/.s.PGSQL.<port>.lock`.
LONGEST_SOCKET_FOLDER = 80
OPEN_FOR_OTHERS = 0o711


@dataclass(frozen=True, slots=True)
class Home:
    """The embedded database that belongs to the data folder `root`."""

    root: Path

    @property
    def base(self) -> Path:
        return self.root / "postgres"

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def log(self) -> Path:
        return self.base / "server.log"

    @property
    def record(self) -> Path:
        """Holds the URL where it is not the usual one."""
        return self.base / "url"

    def url(self) -> str:
        """Where the server answers when it runs: as recorded, else as it will be by default."""
        try:
            return self.record.read_text().strip() or self._usual_url()
        except OSError:
            return self._usual_url()

    def prepare(self) -> None:
        """Make the folder, open for passing through where the server runs as another user.

        Raises:
            FolderUnusable: it cannot be made or written.
        """
        with self._usable():
            missing = [part for part in [*reversed(self.base.parents), self.base] if not part.exists()]
            mode = OPEN_FOR_OTHERS if os.geteuid() == 0 else 0o700
            for part in missing:
                part.mkdir(exist_ok=True)
                if os.geteuid() == 0 or part == self.base:
                    part.chmod(mode)
            if stat.S_IMODE(self.base.stat().st_mode) != mode and self.base.stat().st_uid == os.geteuid():
                self.base.chmod(mode)
            self.log.touch(mode=0o600)

    def make_empty(self, name: str, account: Account) -> Path:
        """A fresh private folder of the server's user below `base`."""
        folder = self.base / name
        with self._usable():
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(mode=0o700)
            account.take(folder)
        return folder

    def adopt(self, made: Path) -> None:
        """Give freshly made data its final name, so that half made data never has it."""
        with self._usable():
            made.rename(self.data)
            handle = os.open(self.base, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def open_socket_folder(self, account: Account, port: int | None) -> Path:
        """The private folder for the socket, emptied; recorded where the URL is not the usual one.

        Only called while no server of this folder lives.
        """
        with self._usable():
            folder = self._usual_socket_folder()
            if folder.parent != self.base:
                folder = self._short_folder(folder, account)
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)
            account.take(folder)
            for left in folder.glob(".s.PGSQL.*"):
                left.unlink()
            url = socket_url(folder, port=port)
            if url == self._usual_url():
                self.record.unlink(missing_ok=True)
            else:
                self.write(self.record, url + "\n")
        return folder

    def write(self, path: Path, text: str) -> None:
        """Write a small file that the server may read; a reader sees the old text or the new one."""
        fresh = path.with_name(path.name + ".new")
        with self._usable():
            fresh.write_text(text)
            fresh.chmod(0o644)
            fresh.rename(path)

    def remove_short_folder(self, folder: Path) -> None:
        """Remove the socket's folder where it lies outside of this one and nothing is left in it."""
        if folder.parent != self.base:
            try:
                folder.rmdir()
            except OSError:
                return  # another life of the server uses it already, or it never was there

    @contextmanager
    def starting(self, patience: float) -> Generator[None]:
        """Hold the right to start or stop this server; a process that dies lets go of it.

        Raises:
            DatabaseBusy: somebody else held it for longer than `patience` seconds.
        """
        with self._usable():
            handle = os.open(self.base / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + patience
            while not _lock(handle, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    raise DatabaseBusy(
                        f"Another process has been starting or stopping the database in {self.base} "
                        f"for more than {patience:.0f} s: wait for it or end it, then try again."
                    )
                time.sleep(0.02)
            yield
        finally:
            os.close(handle)

    def join(self) -> int:
        """Count as one of the server's users until the handle that this returns is closed, or the process dies."""
        with self._usable():
            handle = os.open(self.base / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_SH)
        return handle

    def is_used(self) -> bool:
        """Whether any process counts as a user. Only meaningful while holding `starting`."""
        try:
            handle = os.open(self.base / "users.lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _lock(handle, fcntl.LOCK_EX)
        finally:
            os.close(handle)

    def _usual_url(self) -> str:
        return socket_url(self._usual_socket_folder())

    def _usual_socket_folder(self) -> Path:
        folder = self.base / "socket"
        text = str(folder)
        # libpq splits a host at commas, PostgreSQL its list of folders at commas and quotes.
        if len(os.fsencode(text)) <= LONGEST_SOCKET_FOLDER and not set(text) & set(",\"'\\\n"):
            return folder
        mark = hashlib.sha256(os.fsencode(text)).hexdigest()[:16]
        runtime = Path("/run")
        place = runtime if os.geteuid() == 0 and os.access(runtime, os.W_OK) else Path("/tmp")  # noqa: S108 - checked below
        return place / f"lychd-{os.geteuid()}-{mark}"

    def _short_folder(self, folder: Path, account: Account) -> Path:
        """`folder` if it is ours alone, else a new one: its name can be guessed, somebody may have been there first."""
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), account.uid}:
                return Path(tempfile.mkdtemp(prefix="lychd-", dir=folder.parent))
        return folder

    @contextmanager
    def _usable(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise FolderUnusable(
                f"The folder {self.base} cannot be used for the database "
                f"({error.filename or self.base}: {error.strerror}). "
                "Choose another one with LYCHD_DATA, or set DATABASE_URL to a PostgreSQL server."
            ) from error


def _lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
