"""The Pattern `inventory`: what lies in a folder on the Vessel's machine, by kind and size, and what lies there twice.

It only reads, so each node may run again after a death of the process. The listing between the nodes is a scratch file
below the data folder; what is kept of it on the Run is small. Never reads outside of the allowed folders.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from django.conf import settings

from lychd.patterns import listing as scratch
from lychd.patterns import roots
from lychd.patterns.kinds import OTHER, family_of
from lychd.patterns.listing import Listing
from lychd.patterns.names import shown
from lychd.patterns.pace import Pace
from lychd.patterns.report import (
    MOST_KINDS,
    MOST_TROUBLES,
    Compared,
    Found,
    InventoryInput,
    InventoryReport,
    InventoryState,
    KindCount,
    SizedFile,
)
from lychd.patterns.tree import Tree, Walk, standing
from lychd.patterns.twins import Twins
from runs.errors import NodeFailed
from runs.patterns import Context, Finish, Goto, Pattern

type Ctx = Context[InventoryInput, InventoryState]

inventory = Pattern(
    "inventory",
    revision="1",
    input=InventoryInput,
    state=InventoryState,
    output=InventoryReport,
    title="Inventory of a folder",
    description="Counts the files of a folder by kind and size, names the largest, and finds duplicates.",
)


@inventory.start(replay_safe=True)
async def scan(ctx: Ctx) -> Goto[Literal["compare"]]:
    """Walk over the folder and list every file."""
    found = await ctx.run_sync(_survey, ctx.input, _scratch(ctx.run.id), Pace(ctx))
    ctx.state.found = found
    ctx.log("scanned", files=found.files, folders=found.folders, bytes=found.bytes, unreadable=found.unreadable_total)
    return Goto("compare")


@inventory.node(replay_safe=True)
async def compare(ctx: Ctx) -> Goto[Literal["report"]]:
    """Find files with the same content: by size, then by hash."""
    found = ctx.state.found
    found, compared = await ctx.run_sync(_compare, ctx.input, found, _scratch(ctx.run.id), Pace(ctx))
    ctx.state = InventoryState(found=found, compared=compared)
    same = compared.duplicates
    ctx.log("compared", groups=same.groups, extra_files=same.extra_files, wasted=same.wasted)
    return Goto("report")


@inventory.node(replay_safe=True)
async def report(ctx: Ctx) -> Finish[InventoryReport]:
    """Put the report together."""
    found, compared = ctx.state.found, ctx.state.compared
    if found is None or compared is None:
        raise NodeFailed("The nodes before this one kept nothing.")
    return Finish(
        InventoryReport(
            **found.model_dump(exclude={"changed", "unreadable", "unreadable_total", "seconds"}),
            duplicates=compared.duplicates,
            unreadable=[*found.unreadable, *compared.unreadable][:MOST_TROUBLES],
            unreadable_total=found.unreadable_total + compared.unreadable_total,
            changed=found.changed + compared.changed,
            seconds=round(found.seconds + compared.seconds, 3),
        )
    )


def _scratch(run_id: uuid.UUID) -> Path:
    data: Path = settings.DATA
    return data / "scratch" / "inventory" / f"{run_id}.sqlite"


def _survey(asked: InventoryInput, path: Path, pace: Pace) -> Found:
    """Walk, leave the listing at `path`, and give what is kept of it. In a worker thread."""
    began = time.monotonic()
    with (
        roots.opened(asked.root) as root,
        scratch.fresh(path) as listing,
        standing(root.fd, listing) as tree,
    ):
        tally = Walk(tree, listing, pace, roots.own_folders(root, path.parent)).run()
        return Found(
            root=shown(root.path),
            files=tally.files,
            folders=tally.folders,
            bytes=tally.bytes,
            empty=tally.empty,
            hard_links=tally.hard_links,
            symlinks=tally.symlinks,
            special=tally.special,
            changed=tally.changed,
            by_kind=list(_by_kind(listing)),
            largest=_largest(listing, tree, asked.largest),
            unreadable=tally.unreadable.shown,
            unreadable_total=tally.unreadable.total,
            skipped=tally.skipped,
            seconds=time.monotonic() - began,
        )


def _compare(asked: InventoryInput, found: Found | None, path: Path, pace: Pace) -> tuple[Found, Compared]:
    """Compare the files of the listing at `path`, which is gone afterwards. In a worker thread.

    Where the listing is another process's or missing, the walk is taken again and its findings replace the earlier.
    """
    try:
        compared = None if found is None else _compare_listed(asked, path, pace)
        if found is None or compared is None:
            found = _survey(asked, path, pace)
            compared = _compare_listed(asked, path, pace)
        if compared is None:
            raise scratch.ScratchFailed(f"The listing {path} vanished as soon as it was written.")
        return found, compared
    finally:
        scratch.remove(path)


def _compare_listed(asked: InventoryInput, path: Path, pace: Pace) -> Compared | None:
    began = time.monotonic()
    with roots.opened(asked.root) as root, scratch.kept(path) as listing:
        if listing is None:
            return None
        with standing(root.fd, listing) as tree:
            twins = Twins(tree, listing, pace)
            duplicates = twins.find(asked.duplicates)
        return Compared(
            duplicates=duplicates,
            changed=twins.changed,
            unreadable=twins.unreadable.shown,
            unreadable_total=twins.unreadable.total,
            seconds=time.monotonic() - began,
        )


def _by_kind(listing: Listing) -> Iterable[KindCount]:
    for kind, files, size in listing.kinds(MOST_KINDS):
        yield KindCount(
            kind="*" if kind is None else kind,
            family=OTHER if kind is None else family_of(kind),
            files=files,
            bytes=size,
        )


def _largest(listing: Listing, tree: Tree, most: int) -> list[SizedFile]:
    return [SizedFile(path=shown(tree.path(folder, name)), bytes=size) for folder, name, size in listing.largest(most)]
