"""The blocking halves of the Pattern `reclaim`: each is one call in a worker thread, and may be made again."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from lychd.patterns import listing as scratch
from lychd.patterns import plan as plans
from lychd.patterns import quarantine as quarantines
from lychd.patterns import roots
from lychd.patterns.mover import Mover
from lychd.patterns.names import shown
from lychd.patterns.pace import Pace
from lychd.patterns.plan import Header, Plan, Totals
from lychd.patterns.putback import PutBack
from lychd.patterns.quarantine import Account, Quarantine
from lychd.patterns.reclaim_report import (
    MOST_SHOWN,
    MoveEffect,
    Proposed,
    PutBackEffect,
    ReclaimInput,
    ReclaimState,
    Surveyed,
)
from lychd.patterns.roots import FOLDER, Root
from lychd.patterns.tree import Walk, standing
from lychd.patterns.twins import Twins
from runs.errors import NodeFailed


class OwnData(NodeFailed):
    """The folder is the Vessel's own data."""

    code, title = "own_data", "The Vessel's own data"


def survey(asked: ReclaimInput, run_id: uuid.UUID, tenant: str, pace: Pace) -> ReclaimState:
    """Walk, compare, and leave the plan in the quarantine folder if there is something to move.

    Raises:
        RootNotAllowed, RootMissing, RootNotAFolder, RootUnreadable, OwnData: the folder is not for this.
        ScratchFailed, QuarantineFailed: the disk. Stopped: the Run was asked to stop.
    """
    data: Path = settings.DATA
    path = data / "scratch" / "reclaim" / f"{run_id}.sqlite"
    try:
        with roots.opened(asked.root) as root:
            _refuse_own_data(root)
            with scratch.fresh(path) as listing, standing(root.fd, listing) as tree:
                tally = Walk(tree, listing, pace, roots.own_folders(root, path.parent)).run()
            with scratch.kept(path) as listing:
                if listing is None:
                    raise scratch.ScratchFailed(f"The listing {path} vanished as soon as it was written.")
                with standing(root.fd, listing) as tree:
                    twins = Twins(tree, listing, pace)
                    same = twins.find(0)
                    with quarantines.opened(run_id, create=True) as quarantine, quarantine.writing_plan() as file:
                        written = plans.write(
                            file,
                            Header(str(run_id), tenant, root.path),
                            listing,
                            tree,
                            smallest=asked.smallest,
                            most=MOST_SHOWN,
                            pace=pace,
                        )
    except (OSError, sqlite3.Error) as error:
        raise quarantines.QuarantineFailed(f"The plan could not be made: {error}.") from error
    finally:
        scratch.remove(path)
    surveyed = Surveyed(
        root=shown(root.path),
        files=tally.files,
        bytes=tally.bytes,
        groups=same.groups,
        extra_files=same.extra_files,
        unreadable=tally.unreadable.total + twins.unreadable.total,
        changed=tally.changed + twins.changed,
        several_names=written.several_names,
    )
    totals = written.totals
    if not totals.files:
        quarantines.discard(run_id)
        return ReclaimState(surveyed=surveyed)
    return ReclaimState(
        surveyed=surveyed,
        proposed=Proposed(
            files=totals.files,
            bytes=totals.bytes,
            groups=totals.groups,
            plan=totals.digest,
            largest=[{"file": line.path, "bytes": line.bytes, "stays": line.keep} for line in written.largest],
        ),
    )


def _refuse_own_data(root: Root) -> None:
    """The quarantine lies there, and what the Vessel needs to live."""
    data: Path = settings.DATA
    try:
        own = data.stat()
    except FileNotFoundError:
        return
    fd = os.dup(root.fd)
    try:
        while not os.path.samestat(os.fstat(fd), own):
            above = os.open("..", FOLDER, dir_fd=fd)
            at_top = os.path.samestat(os.fstat(above), os.fstat(fd))
            os.close(fd)
            fd = above
            if at_top:
                return
    finally:
        os.close(fd)
    raise OwnData(f"{shown(root.path)} is inside of the Vessel's own data folder.")


def move_effect(run_id: uuid.UUID) -> MoveEffect:
    """What the plan on disk would do now."""
    with quarantines.opened(run_id) as quarantine, quarantine.plan() as plan:
        totals = plan.totals()
        return MoveEffect(
            folder=shown(plan.header.root),
            quarantine=shown(os.fsencode(quarantine.path)),
            plan=totals.digest,
            files=totals.files,
            bytes=totals.bytes,
        )


def move(run_id: uuid.UUID, pace: Pace) -> Account:
    """Carry out the plan of this Run; goes on where an interrupted call stopped.

    Raises:
        NodeFailed: the quarantine or the folder cannot be used; what is moved is in the journal. Stopped: likewise.
    """
    with _at_work(run_id) as (quarantine, plan, root), quarantine.journal() as journal:
        return Mover(plan, plan.totals(), quarantine, root.fd, journal, pace).run()


def put_back_effect(asked: uuid.UUID, tenant: str) -> tuple[PutBackEffect, Totals]:
    """What putting a quarantine back means, the same however much of it is back already.

    Raises:
        QuarantineMissing: there is none of this tenant.
    """
    with quarantines.opened(asked) as quarantine, quarantine.plan() as plan:
        if plan.header.tenant != tenant:
            raise quarantines.QuarantineMissing(f"There is no quarantine of a Run {asked}.")
        totals = plan.totals()
        effect = PutBackEffect(
            folder=shown(plan.header.root), quarantine=shown(os.fsencode(quarantine.path)), plan=totals.digest
        )
        return effect, totals


def kept(asked: uuid.UUID) -> tuple[int, int]:
    """Files and bytes that a quarantine holds."""
    files = size = 0
    with quarantines.opened(asked) as quarantine:
        for _, _, names, fd in os.fwalk(".", dir_fd=quarantine.files):
            for name in names:
                files += 1
                size += os.stat(name, dir_fd=fd, follow_symlinks=False).st_size
    return files, size


def put_back(asked: uuid.UUID, run_id: uuid.UUID, pace: Pace) -> Account:
    """Put the quarantine of the Run `asked` back, as the Run `run_id`; goes on where an interrupted call stopped.

    Raises:
        NodeFailed: the quarantine or the folder cannot be used; what is back is in the journal. Stopped: likewise.
    """
    with _at_work(asked) as (quarantine, plan, root), quarantine.journal(run_id) as journal:
        return PutBack(plan, plan.totals(), quarantine, root.fd, journal, pace).run()


@contextmanager
def _at_work(run_id: uuid.UUID) -> Generator[tuple[Quarantine, Plan, Root]]:
    with quarantines.opened(run_id) as quarantine, quarantine.plan() as plan:
        try:
            with roots.opened(os.fsdecode(plan.header.root)) as root:
                yield quarantine, plan, root
        except OSError as error:
            raise quarantines.QuarantineFailed(f"The work on {quarantine.path} stopped: {error}.") from error
