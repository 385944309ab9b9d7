"""What goes into an inventory, what it keeps between its nodes, and the report; all of it bounded whatever the tree."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

# Lists of the report end here; the numbers beside them do not.
MOST_KINDS = 60
MOST_PATHS = 8
MOST_TROUBLES = 50


class InventoryInput(BaseModel):
    """What to look at."""

    model_config = ConfigDict(extra="forbid")

    root: str = Field(
        ".",
        min_length=1,
        max_length=4096,
        description="folder on the Vessel's machine; relative to the first allowed folder",
    )
    largest: int = Field(10, ge=0, le=100, description="how many of the largest files the report names")
    duplicates: int = Field(20, ge=0, le=100, description="how many groups of duplicates the report names")


class KindCount(BaseModel):
    """Files of one extension; empty for files without one, `*` for the kinds that the list has no room for."""

    kind: str
    family: str
    files: int
    bytes: int


class SizedFile(BaseModel):
    """One file."""

    path: str
    bytes: int


class Trouble(BaseModel):
    """What could not be looked at, and why."""

    path: str
    reason: str


class Found(BaseModel):
    """What a walk over the tree found. Files with several names count their bytes once."""

    root: str
    files: int = 0
    folders: int = 0
    bytes: int = 0
    empty: int = 0
    hard_links: int = 0
    symlinks: int = 0
    special: int = 0
    changed: int = 0
    by_kind: list[KindCount] = []
    largest: list[SizedFile] = []
    unreadable: list[Trouble] = []
    unreadable_total: int = 0
    skipped: list[Trouble] = []
    seconds: float = 0.0


class Group(BaseModel):
    """Files with the same content; `wasted` is what all but one of them take, `paths` are some of them."""

    sha256: str
    bytes: int
    files: int
    wasted: int
    paths: list[str]


class Duplicates(BaseModel):
    """All groups in numbers, and those that waste most. `extra_files` are the copies beyond the first of each group."""

    groups: int = 0
    extra_files: int = 0
    wasted: int = 0
    shown: list[Group] = []


class Compared(BaseModel):
    """What comparing contents found, besides what could not be read."""

    duplicates: Duplicates
    changed: int = 0
    unreadable: list[Trouble] = []
    unreadable_total: int = 0
    seconds: float = 0.0


class InventoryState(BaseModel):
    """Kept between the nodes: numbers and short lists, never the listing of the tree."""

    found: Found | None = None
    compared: Compared | None = None


class InventoryReport(BaseModel):
    """The report.

    `folders` includes the root. Links are counted, not followed; `special` are sockets, pipes and devices, which are
    never opened; `hard_links` are further names of files already counted; `unreadable` files count with their size, but
    are not compared; `changed` are files that changed or vanished while they were looked at. `seconds` is the time of
    work.
    """

    root: str
    files: int
    folders: int
    bytes: int
    empty: int
    hard_links: int
    symlinks: int
    special: int
    by_kind: list[KindCount]
    largest: list[SizedFile]
    duplicates: Duplicates
    unreadable: list[Trouble]
    unreadable_total: int
    skipped: list[Trouble]
    changed: int
    seconds: float
