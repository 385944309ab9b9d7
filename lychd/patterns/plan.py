"""The plan of a reclaim: every copy that is to be moved and the one that stays, as a file that a digest names.

It may be long, so the question to the operator carries its digest and totals, and what is done is read from the very
file whose digest was approved. A line is a portion of a group of files with the same content; memory holds one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from lychd.patterns.contents import Identity
from lychd.patterns.listing import Listing
from lychd.patterns.names import shown
from lychd.patterns.pace import Pace
from lychd.patterns.tree import Tree
from runs.errors import NodeFailed

VERSION = 1
# Copies of one line; a larger group has several lines with the same file that stays.
PORTION = 500


class PlanDamaged(NodeFailed):
    """The plan in the quarantine folder cannot be read."""

    code, title = "plan_damaged", "Plan not readable"


@dataclass(frozen=True, slots=True)
class Item:
    """One copy to move. `number` counts from 1 over the whole plan; `path` is from the root."""

    number: int
    path: bytes
    was: Identity
    sha256: str


@dataclass(frozen=True, slots=True)
class Portion:
    """Copies of one content, and the path of the copy that stays."""

    sha256: str
    size: int
    keep: bytes
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """Whose plan it is, and below which folder."""

    run: str
    tenant: str
    root: bytes


@dataclass(frozen=True, slots=True)
class Totals:
    """What a whole plan comes to; `digest` is the SHA-256 of its file."""

    files: int
    bytes: int
    groups: int
    digest: str


@dataclass(frozen=True, slots=True)
class Line:
    """One move for people's eyes."""

    path: str
    bytes: int
    keep: str


class _Hashed:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._made = hashlib.sha256()

    def line(self, value: Any) -> None:
        data = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        self._made.update(data)
        self._file.write(data)

    def digest(self) -> str:
        return self._made.hexdigest()


@dataclass(slots=True)
class Written:
    """A plan that was written. `several_names` are copies left out because they have further names (hard links)."""

    totals: Totals
    largest: list[Line]
    several_names: int


def write(
    file: BinaryIO, header: Header, listing: Listing, tree: Tree, *, smallest: int, most: int, pace: Pace
) -> Written:
    """Write the plan for a compared listing, the largest files first.

    The copy that stays: one with several names if there is one, else the oldest, then the one the fewest folders deep.

    Args:
        smallest: bytes of the smallest file worth moving.
        most: how many lines the result shows.

    Raises:
        Stopped: the Run was asked to stop.
        OSError, sqlite3.Error: the disk.
    """
    out = _Hashed(file)
    out.line({"version": VERSION, "run": header.run, "tenant": header.tenant, "root": _text(header.root)})
    files = size_total = groups = several = 0
    largest: list[Line] = []
    for size, digest in _groups(listing, smallest):
        pace.check()
        keep: bytes | None = None
        portion: list[list[Any]] = []
        moved = 0
        inodes: set[tuple[int, int]] = set()
        for folder, name, dev, ino, mtime, has_names in _members(listing, size, digest):
            path = tree.path(folder, name)
            if keep is None:
                keep = path
                inodes.add((dev, ino))
                continue
            if has_names or (dev, ino) in inodes:
                # Moving one of several names frees nothing; one file seen at two places has no copy at all.
                several += 1
                continue
            inodes.add((dev, ino))
            portion.append([_text(path), ino, mtime])
            moved += 1
            if len(largest) < most:
                largest.append(Line(path=shown(path), bytes=size, keep=shown(keep)))
            if len(portion) == PORTION:
                out.line(_portion(digest, size, keep, portion))
                portion = []
        if keep is not None and portion:
            out.line(_portion(digest, size, keep, portion))
        groups += moved > 0
        files += moved
        size_total += moved * size
    return Written(Totals(files, size_total, groups, out.digest()), largest, several)


class Plan:
    """A plan on disk, open; read as often as needed, always from the same file."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.header = self._header()

    def totals(self) -> Totals:
        """Count and hash the whole file.

        Raises:
            PlanDamaged: a line cannot be read.
        """
        files = size = groups = 0
        last: tuple[str, bytes] | None = None
        for portion in self.portions():
            files += len(portion.items)
            size += portion.size * len(portion.items)
            groups += (portion.sha256, portion.keep) != last
            last = (portion.sha256, portion.keep)
        self._file.seek(0)
        return Totals(files, size, groups, hashlib.file_digest(self._file, "sha256").hexdigest())

    def portions(self) -> Iterator[Portion]:
        """Every line, in order.

        Raises:
            PlanDamaged: a line cannot be read.
        """
        self._file.seek(0)
        number = 0
        for place, line in enumerate(self._file):
            if place == 0:
                continue
            try:
                found = json.loads(line)
                size, digest = int(found["size"]), str(found["sha256"])
                items = tuple(
                    Item(number + count, _below(path), Identity(ino, size, mtime), digest)
                    for count, (path, ino, mtime) in enumerate(found["move"], 1)
                )
                yield Portion(digest, size, _below(found["keep"]), items)
            except (ValueError, KeyError, TypeError) as error:
                raise PlanDamaged(f"Line {place + 1} of the plan cannot be read: {error}.") from error
            number += len(items)

    def _header(self) -> Header:
        self._file.seek(0)
        try:
            found = json.loads(self._file.readline())
            if found["version"] != VERSION:
                raise PlanDamaged(f"The plan is of version {found['version']}, which this version cannot read.")
            return Header(found["run"], found["tenant"], _bytes(found["root"]))
        except (ValueError, KeyError, TypeError) as error:
            raise PlanDamaged(f"The plan has no readable beginning: {error}.") from error


def _groups(listing: Listing, smallest: int) -> Iterator[tuple[int, bytes]]:
    listing.sql.execute("create index if not exists whole_same on whole (size, digest)")
    cursor = listing.sql.execute(
        "select size, digest from whole where size >= ? group by size, digest having count(*) > 1"
        " order by size desc, min(file)",
        (max(smallest, 1),),
    )
    yield from cursor


def _members(listing: Listing, size: int, digest: bytes) -> Iterator[tuple[int, bytes, int, int, int, bool]]:
    yield from listing.sql.execute(
        """
        select f.folder, f.name, f.dev, f.ino, f.mtime,
               exists (select 1 from inode i where i.dev = f.dev and i.ino = f.ino) as has_names
        from whole w join file f on f.id = w.file join folder d on d.id = f.folder
        where w.size = ? and w.digest = ?
        order by has_names desc, f.mtime, d.depth, f.id
        """,
        (size, digest),
    )


def _portion(digest: bytes, size: int, keep: bytes, items: list[list[Any]]) -> dict[str, Any]:
    return {"sha256": digest.hex(), "size": size, "keep": _text(keep), "move": items}


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _below(path: str) -> bytes:
    parts = path.split("/")
    if not path or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{path[:100]!r} is no path below the root")
    return _bytes(path)


def reading(fd: int) -> io.BufferedReader:
    """A buffered reader that owns the descriptor."""
    return io.BufferedReader(io.FileIO(os.dup(fd), "rb"))
