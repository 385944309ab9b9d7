"""The Pattern `reclaim`: finds duplicates, asks, and on yes moves them into a quarantine; `restore` brings them back.

Nothing is ever deleted: a copy moves only while another with the same content stands, and stays in the quarantine
folder until people remove it. Each node may run again after a death of the process.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Literal

from django.conf import settings

from consents.outcome import AwaitConsent
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
    Ending,
    MoveEffect,
    Proposed,
    PutBackEffect,
    ReclaimInput,
    ReclaimReport,
    ReclaimState,
    Surveyed,
)
from lychd.patterns.roots import FOLDER, Root
from lychd.patterns.tree import Walk, standing
from lychd.patterns.twins import Twins
from runs.errors import NodeFailed
from runs.patterns import Context, Finish, Goto, Pattern, Verdict

type Ctx = Context[ReclaimInput, ReclaimState]

reclaim = Pattern(
    "reclaim",
    revision="1",
    input=ReclaimInput,
    state=ReclaimState,
    output=ReclaimReport,
    title="Reclaim space from duplicates",
    description="Finds duplicate files, asks, and moves all copies but one into a quarantine that can be put back.",
)


class OwnData(NodeFailed):
    """The folder is the Vessel's own data."""

    code, title = "own_data", "The Vessel's own data"


@reclaim.start(replay_safe=True)
async def survey(ctx: Ctx) -> Goto[Literal["propose", "examine"]] | Finish[ReclaimReport]:
    """Take the inventory and write the plan; or go on to a quarantine that is to be put back."""
    if ctx.input.restore is not None:
        return Goto("examine")
    ctx.state = await ctx.run_sync(_survey, ctx.input, ctx.run.id, ctx.run.tenant, Pace(ctx))
    surveyed, proposed = ctx.state.surveyed, ctx.state.proposed
    if surveyed is None:
        raise NodeFailed("The inventory kept nothing.")
    ctx.log("surveyed", files=surveyed.files, groups=surveyed.groups, extra_files=surveyed.extra_files)
    if proposed is None:
        return Finish(ReclaimReport(ending="nothing_to_do", root=surveyed.root, surveyed=surveyed))
    ctx.log("planned", files=proposed.files, bytes=proposed.bytes, plan=proposed.plan)
    return Goto("propose")


@reclaim.node(replay_safe=True)
async def propose(ctx: Ctx) -> AwaitConsent[Literal["move"]]:
    """Ask."""
    surveyed, proposed = ctx.state.surveyed, ctx.state.proposed
    if surveyed is None or proposed is None:
        raise NodeFailed("The node before this one kept nothing.")
    effect = await ctx.run_sync(_move_effect, ctx.run.id)
    return AwaitConsent(
        title=f"Move {_files(proposed.files)} ({_size(proposed.bytes)}) into a quarantine",
        body=(
            f"{surveyed.root} holds {_groups(proposed.groups)} with the same content. "
            "On yes, all copies but one of each move into the quarantine folder; the last copy of a content never "
            "moves, and a file that changed meanwhile is left alone. Nothing is deleted: a Run of reclaim with "
            f'{{"restore": "{ctx.run.id}"}} puts the files back. On no, nothing is touched.\n\n'
            f"The largest of the moves are shown; all of them are in {quarantines.PLAN} in the quarantine folder."
        ),
        facts={
            "folder": surveyed.root,
            "files": proposed.files,
            "bytes": proposed.bytes,
            "groups": proposed.groups,
            "quarantine": effect.quarantine,
            "plan_sha256": proposed.plan,
            "largest": proposed.largest,
            "not_shown": proposed.files - len(proposed.largest),
        },
        risk="medium",
        effect=effect,
        expires_in=_expiry(ctx.input),
        then="move",
    )


@reclaim.node(replay_safe=True)
async def move(ctx: Ctx) -> Finish[ReclaimReport]:
    """Act on the answer: move what was approved, or nothing."""
    verdict, state = ctx.verdict, ctx.state
    if not verdict.granted:
        await ctx.run_sync(quarantines.discard, ctx.run.id)
        return Finish(_report(ctx.run.id, state, verdict, None))
    verdict.require(await ctx.run_sync(_move_effect, ctx.run.id))
    account = await ctx.run_sync(_move, ctx.run.id, Pace(ctx))
    ctx.log("moved", files=account.moved, bytes=account.bytes, left_alone=account.left.total)
    return Finish(_report(ctx.run.id, state, verdict, account, "moved"))


@reclaim.node(replay_safe=True)
async def examine(ctx: Ctx) -> AwaitConsent[Literal["put_back"]] | Finish[ReclaimReport]:
    """Look what a quarantine holds, and ask: putting back writes into folders that are not the Vessel's own."""
    asked = _restore(ctx)
    effect, totals = await ctx.run_sync(_put_back_effect, asked, ctx.run.tenant)
    kept = await ctx.run_sync(_kept, asked)
    ctx.state.proposed = Proposed(files=kept[0], bytes=kept[1], groups=totals.groups, plan=totals.digest, largest=[])
    if not kept[0]:
        return Finish(ReclaimReport(ending="nothing_to_do", root=effect.folder, quarantine=effect.quarantine))
    return AwaitConsent(
        title=f"Put {_files(kept[0])} ({_size(kept[1])}) back from a quarantine",
        body=(
            f"The Run {asked} moved them out of {effect.folder}. On yes, each returns under its own name; where "
            "something has that name now, it is not overwritten and the file stays in the quarantine. "
            "On no, nothing is touched."
        ),
        facts={
            "folder": effect.folder,
            "files": kept[0],
            "bytes": kept[1],
            "quarantine": effect.quarantine,
            "plan_sha256": totals.digest,
        },
        effect=effect,
        expires_in=_expiry(ctx.input),
        then="put_back",
    )


@reclaim.node(replay_safe=True)
async def put_back(ctx: Ctx) -> Finish[ReclaimReport]:
    """Act on the answer: put back, or nothing."""
    verdict, asked = ctx.verdict, _restore(ctx)
    effect, _ = await ctx.run_sync(_put_back_effect, asked, ctx.run.tenant)
    if not verdict.granted:
        return Finish(_report(asked, ctx.state, verdict, None, root=effect.folder))
    verdict.require(effect)
    account = await ctx.run_sync(_put_back, asked, ctx.run.id, Pace(ctx))
    ctx.log("put back", files=account.moved, bytes=account.bytes, left_alone=account.left.total)
    return Finish(_report(asked, ctx.state, verdict, account, "put_back", root=effect.folder))


def _survey(asked: ReclaimInput, run_id: uuid.UUID, tenant: str, pace: Pace) -> ReclaimState:
    """Walk, compare, and leave the plan in the quarantine folder if there is something to move. In a worker thread."""
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


def _move_effect(run_id: uuid.UUID) -> MoveEffect:
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


def _move(run_id: uuid.UUID, pace: Pace) -> Account:
    with _at_work(run_id) as (quarantine, plan, root), quarantine.journal() as journal:
        return Mover(plan, plan.totals(), quarantine, root.fd, journal, pace).run()


def _put_back_effect(asked: uuid.UUID, tenant: str) -> tuple[PutBackEffect, Totals]:
    with quarantines.opened(asked) as quarantine, quarantine.plan() as plan:
        if plan.header.tenant != tenant:
            raise quarantines.QuarantineMissing(f"There is no quarantine of a Run {asked}.")
        totals = plan.totals()
        effect = PutBackEffect(
            folder=shown(plan.header.root), quarantine=shown(os.fsencode(quarantine.path)), plan=totals.digest
        )
        return effect, totals


def _kept(asked: uuid.UUID) -> tuple[int, int]:
    """Files and bytes that a quarantine holds."""
    files = size = 0
    with quarantines.opened(asked) as quarantine:
        for _, _, names, fd in os.fwalk(".", dir_fd=quarantine.files):
            for name in names:
                files += 1
                size += os.stat(name, dir_fd=fd, follow_symlinks=False).st_size
    return files, size


def _put_back(asked: uuid.UUID, run_id: uuid.UUID, pace: Pace) -> Account:
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


def _report(
    quarantine_id: uuid.UUID,
    state: ReclaimState,
    verdict: Verdict,
    account: Account | None,
    ending: Ending | None = None,
    *,
    root: str = "",
) -> ReclaimReport:
    surveyed, proposed = state.surveyed, state.proposed
    report = ReclaimReport(
        ending=ending or _no(verdict),
        root=surveyed.root if surveyed is not None else root,
        surveyed=surveyed,
        proposed=proposed.files if proposed is not None else 0,
        proposed_bytes=proposed.bytes if proposed is not None else 0,
        decided_by=verdict.by,
        comment=verdict.comment,
    )
    if account is not None:
        report.quarantine = shown(os.fsencode(quarantines.home() / str(quarantine_id)))
        report.moved, report.bytes = account.moved, account.bytes
        report.left_alone, report.left_alone_total = account.left.shown, account.left.total
    return report


def _no(verdict: Verdict) -> Ending:
    return verdict.status if verdict.status in ("denied", "expired") else "not_granted"


def _restore(ctx: Ctx) -> uuid.UUID:
    if ctx.input.restore is None:
        raise NodeFailed("There is nothing to put back.")
    return ctx.input.restore


def _expiry(asked: ReclaimInput) -> timedelta | None:
    return timedelta(minutes=asked.answer_within) if asked.answer_within is not None else None


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number:,} files"


def _groups(number: int) -> str:
    return "a group of files" if number == 1 else f"{number:,} groups of files"


def _size(size: int) -> str:
    amount: float = size
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"
