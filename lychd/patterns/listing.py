"""The listing of a tree on disk: every file is a row, so that memory does not grow with the tree.

A private scratch file, trusted only by the process that wrote it: after a death of the process it may be anything, so
whoever finds another's takes the walk again. Knows nothing of the file system that it lists.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from runs.errors import NodeFailed

_PROCESS = secrets.token_hex(8)
_ABANDONED_SECONDS = 86_400.0
_MIB = 1024 * 1024
_SIGN = 1 << 63

_TABLES = """
create table owner (process text not null);
create table folder (id integer primary key, parent integer, name blob not null, depth integer not null);
create table file (
    id integer primary key, folder integer not null, name blob not null, size integer not null, kind text not null,
    mtime integer not null, dev integer not null, ino integer not null, first integer not null,
    readable integer not null
);
create table inode (dev integer not null, ino integer not null, primary key (dev, ino)) without rowid;
create table head (file integer primary key, size integer not null, digest blob not null);
create table whole (file integer primary key, size integer not null, digest blob not null);
"""


class ScratchFailed(NodeFailed):
    """The listing could not be kept below the data folder."""

    code, title = "scratch_failed", "Scratch file not usable"


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file; `first` is false for a further name of a file that is listed already."""

    folder: int
    name: bytes
    size: int
    kind: str
    mtime: int
    dev: int
    ino: int
    first: bool
    readable: bool
    id: int = 0


class Listing:
    """An open listing; for one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.sql = connection

    def seal(self) -> None:
        """The walk is complete; the rows may be trusted by this process from now on."""
        self.sql.execute("create index by_size on file (size) where first and readable")
        self.sql.execute("insert into owner values (?)", (_PROCESS,))

    def add_folder(self, parent: int | None, name: bytes, depth: int) -> None:
        """List a folder; the root comes first, without a parent."""
        self.sql.execute("insert into folder (parent, name, depth) values (?, ?, ?)", (parent, name, depth))

    def folders(self) -> Iterator[tuple[int, int]]:
        """Id and depth of every folder, those included that are added meanwhile."""
        last = 0
        while True:
            page = self.sql.execute(
                "select id, depth from folder where id > ? order by id limit 200", (last,)
            ).fetchall()
            if not page:
                return
            yield from page
            last = page[-1][0]

    def is_first(self, dev: int, ino: int) -> bool:
        """Remember a file that has several names; False when it was remembered before."""
        done = self.sql.execute("insert or ignore into inode values (?, ?)", (_signed(dev), _signed(ino)))
        return done.rowcount == 1

    def add_files(self, rows: list[FileRow]) -> None:
        """List files."""
        self.sql.executemany(
            "insert into file (folder, name, size, kind, mtime, dev, ino, first, readable)"
            " values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    row.folder,
                    row.name,
                    row.size,
                    row.kind,
                    row.mtime,
                    *signed(row.dev, row.ino),
                    row.first,
                    row.readable,
                )
                for row in rows
            ],
        )

    def parts(self, folder: int) -> tuple[bytes, ...]:
        """The names that lead from the root to a folder."""
        found = self.sql.execute(
            """
            with recursive up (parent, name, depth) as (
                select parent, name, depth from folder where id = ?
                union all
                select f.parent, f.name, f.depth from up join folder f on f.id = up.parent
            )
            select name from up where parent is not null order by depth
            """,
            (folder,),
        ).fetchall()
        return tuple(name for (name,) in found)

    def kinds(self, most: int) -> Iterator[tuple[str | None, int, int]]:
        """Extension, files, bytes, by bytes; a last row without an extension for the rest."""
        # Two sums, because one may not fit: a sparse file can be larger than the disk by any factor.
        cursor = self.sql.execute(
            f"""
            select kind, count(*), sum(size * first / {_MIB}), sum(size * first % {_MIB})
            from file group by kind order by 3 desc, 4 desc, 2 desc, 1
            """  # noqa: S608 - a number of ours
        )
        files = size = rest = 0
        for place, (kind, count, mib, left) in enumerate(cursor):
            if place < most:
                yield kind, count, mib * _MIB + left
            else:
                rest, files, size = rest + 1, files + count, size + mib * _MIB + left
        if rest:
            yield None, files, size

    def largest(self, most: int) -> list[tuple[int, bytes, int]]:
        """Folder, name and size of the largest files, each file under its first name."""
        return self.sql.execute(
            "select folder, name, size from file where first order by size desc, id limit ?", (most,)
        ).fetchall()

    def page(self, which: str, after: int, limit: int) -> list[FileRow]:
        """Files after an id that a query over `file f` picks; `which` is SQL of ours."""
        found = self.sql.execute(
            f"""
            select f.folder, f.name, f.size, f.kind, f.mtime, f.dev, f.ino, f.first, f.readable, f.id
            from file f where f.first and f.readable and f.id > ? and {which} order by f.id limit ?
            """,  # noqa: S608 - constants of ours
            (after, limit),
        ).fetchall()
        return [FileRow(*row) for row in found]


def signed(dev: int, ino: int) -> tuple[int, int]:
    """Numbers of a file as the listing keeps them."""
    return _signed(dev), _signed(ino)


@contextmanager
def fresh(path: Path) -> Generator[Listing]:
    """A new listing at `path`; removed again when the block ends with an error, sealed otherwise.

    Raises:
        ScratchFailed: the disk is full, or the folder cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove(path)
        _sweep(path.parent)
        with _connected(path) as connection:
            connection.executescript(_TABLES)
            connection.execute("begin")
            listing = Listing(connection)
            yield listing
            listing.seal()
            connection.execute("commit")
    except BaseException as error:
        with suppress(OSError):
            remove(path)
        if isinstance(error, sqlite3.Error | OSError):
            raise ScratchFailed(f"The listing {path} could not be written: {error}.") from error
        raise


@contextmanager
def kept(path: Path) -> Generator[Listing | None]:
    """The sealed listing that this process left at `path`; None when there is none.

    Raises:
        ScratchFailed: the disk is full, or the file was damaged meanwhile.
    """
    if not path.exists() or not _is_ours(path):
        yield None
        return
    try:
        with _connected(path) as connection:
            connection.execute("begin")
            yield Listing(connection)
            connection.execute("commit")
    except sqlite3.Error as error:
        raise ScratchFailed(f"The listing {path} could not be used: {error}.") from error


def remove(path: Path) -> None:
    """Remove a listing, if it is there."""
    path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    """Whether this process completed the listing; what another left may not even be a database."""
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            return connection.execute("select process from owner").fetchone() == (_PROCESS,)
        finally:
            connection.close()
    except sqlite3.DatabaseError:
        return False


@contextmanager
def _connected(path: Path) -> Generator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        # Nothing of this outlives the process, so nothing of it needs to survive a crash.
        connection.execute("pragma journal_mode = off")
        connection.execute("pragma synchronous = off")
        connection.execute("pragma temp_store = file")
        yield connection
    finally:
        connection.close()


def _sweep(folder: Path) -> None:
    """Remove what Runs left behind that died between two nodes."""
    limit = time.time() - _ABANDONED_SECONDS
    for path in folder.iterdir():
        try:
            if path.stat().st_mtime < limit:
                path.unlink()
        except OSError:
            continue


def _signed(number: int) -> int:
    return number - 2 * _SIGN if number >= _SIGN else number
