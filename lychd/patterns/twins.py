"""Finds files with the same content: by size, then by a hash of the beginning, then by a hash of the whole.

Each hash is a row of the listing, so memory does not grow with the number of candidates. A file counts only if it is
still the one that was listed, before and after it was read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from lychd.patterns.listing import FileRow, Listing, signed
from lychd.patterns.names import shown
from lychd.patterns.pace import Pace
from lychd.patterns.report import MOST_PATHS, Duplicates, Group
from lychd.patterns.tree import FILE, Tree, Troubles

HEAD = 16 * 1024
CHUNK = 1024 * 1024
_PAGE = 200

_SAME_SIZE = "f.size in (select size from same_size)"
_SAME_HEAD = "f.id in (select file from same_head)"
_GROUPS = "select size, digest, count(*) as files from whole group by size, digest having count(*) > 1"


@dataclass(slots=True)
class Twins:
    """One comparison of the files of a sealed listing."""

    tree: Tree
    listing: Listing
    pace: Pace
    changed: int = 0
    unreadable: Troubles = field(default_factory=Troubles)

    def find(self, most: int) -> Duplicates:
        """Compare, and give all groups in numbers and the `most` that waste most.

        Raises:
            Stopped: the Run was asked to stop.
            OSError: the machine ran out of something.
            sqlite3.Error: the listing could not be used.
        """
        sql = self.listing.sql
        sql.execute("drop table if exists same_size")
        sql.execute("drop table if exists same_head")
        sql.execute("delete from head")
        sql.execute("delete from whole")
        # Keys, not bare columns: each page asks these tables again.
        sql.execute("create table same_size (size integer primary key)")
        sql.execute(
            "insert into same_size select size from file where first and readable and size > 0"
            " group by size having count(*) > 1"
        )
        self._heads()
        sql.execute(
            f"insert into whole select file, size, digest from head where size <= {HEAD}"  # noqa: S608 - a number of ours
        )
        sql.execute("create table same_head (file integer primary key, size integer not null)")
        sql.execute(
            f"""
            insert into same_head select h.file, h.size from head h join (
                select size, digest from head where size > {HEAD} group by size, digest having count(*) > 1
            ) s on s.size = h.size and s.digest = h.digest
            """  # noqa: S608 - a number of ours
        )
        self._wholes()
        return self._result(most)

    def _heads(self) -> None:
        (total,) = self.listing.sql.execute(
            f"select count(*) from file f where f.first and f.readable and {_SAME_SIZE}"  # noqa: S608 - a constant
        ).fetchone()
        for done, row in enumerate(self._rows(_SAME_SIZE)):
            self.pace.tell(done, total, "comparing the beginnings of files of the same size")
            self._hash("head", row, min(row.size, HEAD), None)
        self.pace.tell(total, total, "comparing the beginnings of files of the same size")

    def _wholes(self) -> None:
        # Not sum(): two sparse files are more than its whole numbers hold.
        (total,) = self.listing.sql.execute("select total(size) from same_head").fetchone()
        done = 0
        for row in self._rows(_SAME_HEAD):
            self._hash("whole", row, row.size, (done, total))
            done += row.size
        if total:
            self.pace.tell(total, total, "comparing whole files, in bytes")

    def _rows(self, which: str) -> Iterator[FileRow]:
        last = 0
        while page := self.listing.page(which, last, _PAGE):
            yield from page
            last = page[-1].id

    def _hash(self, table: str, row: FileRow, size: int, progress: tuple[int, float] | None) -> None:
        self.pace.check()
        try:
            digest = self._digest(row, size, progress)
        except (FileNotFoundError, NotADirectoryError):
            digest = None
        except OSError as error:
            self.unreadable.failed(self.tree.path(row.folder, row.name), error)
            return
        if digest is None:
            self.changed += 1
            return
        self.listing.sql.execute(f"insert into {table} values (?, ?, ?)", (row.id, row.size, digest))  # noqa: S608 - ours

    def _digest(self, row: FileRow, size: int, progress: tuple[int, float] | None) -> bytes | None:
        """SHA-256 of the first `size` bytes; None when the file is not the listed one any more."""
        fd = os.open(row.name, FILE, dir_fd=self.tree.folder(row.folder))
        try:
            if not _is_same(fd, row):
                return None
            made = hashlib.sha256()
            left = size
            while left:
                part = os.read(fd, min(CHUNK, left))
                if not part:
                    return None
                made.update(part)
                left -= len(part)
                if progress is not None:
                    self.pace.check()
                    self.pace.tell(progress[0] + size - left, progress[1], "comparing whole files, in bytes")
            return made.digest() if _is_same(fd, row) else None
        finally:
            os.close(fd)

    def _result(self, most: int) -> Duplicates:
        sql = self.listing.sql
        groups, extra, wasted = sql.execute(
            f"select count(*), coalesce(sum(files - 1), 0), coalesce(sum(size * (files - 1)), 0) from ({_GROUPS})"  # noqa: S608 - a constant
        ).fetchone()
        best = sql.execute(
            f"{_GROUPS} order by size * (count(*) - 1) desc, size desc, min(file) limit ?", (most,)
        ).fetchall()
        return Duplicates(
            groups=groups,
            extra_files=extra,
            wasted=wasted,
            shown=[
                Group(
                    sha256=digest.hex(),
                    bytes=size,
                    files=files,
                    wasted=size * (files - 1),
                    paths=self._paths(size, digest),
                )
                for size, digest, files in best
            ],
        )

    def _paths(self, size: int, digest: bytes) -> list[str]:
        found = self.listing.sql.execute(
            "select f.folder, f.name from whole w join file f on f.id = w.file "
            "where w.size = ? and w.digest = ? order by w.file limit ?",
            (size, digest, MOST_PATHS),
        ).fetchall()
        return [shown(self.tree.path(folder, name)) for folder, name in found]


def _is_same(fd: int, row: FileRow) -> bool:
    status = os.fstat(fd)
    return (
        stat.S_ISREG(status.st_mode)
        and signed(status.st_dev, status.st_ino) == (row.dev, row.ino)
        and (status.st_size, status.st_mtime_ns) == (row.size, row.mtime)
    )
