"""The Pattern `reclaim`: finds duplicates, asks, and on yes moves them into a quarantine; `restore` brings them back.

Nothing is ever deleted: a copy moves only while another with the same content stands, and stays in the quarantine
folder until people remove it. Each node may run again after a death of the process.
"""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from typing import Literal

from consents.outcome import AwaitConsent
from lychd.patterns import quarantine as quarantines
from lychd.patterns import reclaiming
from lychd.patterns.names import shown
from lychd.patterns.pace import Pace
from lychd.patterns.quarantine import Account
from lychd.patterns.reclaim_report import Ending, Proposed, ReclaimInput, ReclaimReport, ReclaimState
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


@reclaim.start(replay_safe=True)
async def survey(ctx: Ctx) -> Goto[Literal["propose", "examine"]] | Finish[ReclaimReport]:
    """Take the inventory and write the plan; or go on to a quarantine that is to be put back."""
    if ctx.input.restore is not None:
        return Goto("examine")
    ctx.state = await ctx.run_sync(reclaiming.survey, ctx.input, ctx.run.id, ctx.run.tenant, Pace(ctx))
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
    effect = await ctx.run_sync(reclaiming.move_effect, ctx.run.id)
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
    verdict.require(await ctx.run_sync(reclaiming.move_effect, ctx.run.id))
    account = await ctx.run_sync(reclaiming.move, ctx.run.id, Pace(ctx))
    ctx.log("moved", files=account.moved, bytes=account.bytes, left_alone=account.left.total)
    return Finish(_report(ctx.run.id, state, verdict, account, "moved"))


@reclaim.node(replay_safe=True)
async def examine(ctx: Ctx) -> AwaitConsent[Literal["put_back"]] | Finish[ReclaimReport]:
    """Look what a quarantine holds, and ask: putting back writes into folders that are not the Vessel's own."""
    asked = _restore(ctx)
    effect, totals = await ctx.run_sync(reclaiming.put_back_effect, asked, ctx.run.tenant)
    kept = await ctx.run_sync(reclaiming.kept, asked)
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
    effect, _ = await ctx.run_sync(reclaiming.put_back_effect, asked, ctx.run.tenant)
    if not verdict.granted:
        return Finish(_report(asked, ctx.state, verdict, None, root=effect.folder))
    verdict.require(effect)
    account = await ctx.run_sync(reclaiming.put_back, asked, ctx.run.id, Pace(ctx))
    ctx.log("put back", files=account.moved, bytes=account.bytes, left_alone=account.left.total)
    return Finish(_report(asked, ctx.state, verdict, account, "put_back", root=effect.folder))


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
