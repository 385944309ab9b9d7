"""The work of the Pattern `inventory` without a Run: both of its threads' halves, and a listener that a test steers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lychd.patterns import folder_inventory
from lychd.patterns.pace import Pace
from lychd.patterns.report import Compared, Found, InventoryInput

_survey = folder_inventory._survey  # pyright: ignore[reportPrivateUsage]
_compare = folder_inventory._compare  # pyright: ignore[reportPrivateUsage]
NOBODY = 65534


@dataclass
class Ear:
    """A listener: keeps what it hears, and asks to stop when `stop_when` says so."""

    heard: list[tuple[float, float | None, str | None]] = field(
        default_factory=list[tuple[float, float | None, str | None]]
    )
    looks: int = 0
    stop_when: Callable[[Ear], bool] = lambda _: False

    @property
    def cancelled(self) -> bool:
        self.looks += 1
        return self.stop_when(self)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.heard.append((done, total, message))


@dataclass
class Place:
    """An allowed folder `root` and a data folder of their own."""

    root: Path
    data: Path
    ear: Ear = field(default_factory=Ear)
    listing: Path = field(init=False)

    def __post_init__(self) -> None:
        self.listing = self.data / "scratch" / "inventory" / f"{uuid.uuid4()}.sqlite"

    def write(self, name: str | bytes, content: bytes = b"") -> bytes:
        """Make a file, and the folders above it."""
        path = os.path.join(os.fsencode(self.root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def survey(self, root: str = ".", **asked: Any) -> Found:
        """The first half: walk, and leave the listing."""
        return _survey(InventoryInput(root=root, **asked), self.listing, Pace(self.ear))

    def compare(self, found: Found | None = None, root: str = ".", **asked: Any) -> tuple[Found, Compared]:
        """The second half: compare what the listing names."""
        return _compare(InventoryInput(root=root, **asked), found, self.listing, Pace(self.ear))

    def both(self, root: str = ".", **asked: Any) -> tuple[Found, Compared]:
        """Both halves, as one Run does them."""
        return self.compare(self.survey(root, **asked), root, **asked)

    @property
    def left_behind(self) -> list[str]:
        """Scratch files that are there."""
        return [path.name for path in self.listing.parent.iterdir()] if self.listing.parent.exists() else []


@contextmanager
def as_nobody() -> Generator[None]:
    """Without root's power to read everything, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
