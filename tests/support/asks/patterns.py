"""Counts copies, asks, and moves them or leaves them."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, Field

from consents.outcome import AwaitConsent
from runs.patterns import Context, Finish, Goto, Pattern


class Wish(BaseModel):
    """What the question says."""

    title: str = "Move 3 duplicate photos into quarantine"
    files: int = Field(3, ge=0, le=1000)
    risk: Literal["low", "medium", "high", "critical"] = "medium"
    quorum: int = 1
    group: str = ""
    expires_in: float | None = None


class Move(BaseModel):
    """One file."""

    source: str
    target: str
    size: int


class Moves(BaseModel):
    """What is done on yes."""

    moves: list[Move] = Field(default_factory=list[Move])


class Tidied(BaseModel):
    answer: str = ""
    moved: int = 0


tidy = Pattern("tidy", input=Wish, state=Tidied, output=Tidied, title="Tidy", description="Moves copies away.")

_NAMES = ("IMG_2041.jpg", "IMG_2041 (1).jpg", "beach.jpg", "beach-copy.jpg", "scan 7.png")


def _moves(count: int) -> Moves:
    return Moves(
        moves=[
            Move(
                source=f"photos/2026/{_NAMES[n % len(_NAMES)]}",
                target=f"quarantine/0192/{n:03}",
                size=2_411_724 + 31_337 * n,
            )
            for n in range(count)
        ]
    )


@tidy.start
async def count(ctx: Context[Wish, Tidied]) -> Goto[Literal["ask"]]:
    ctx.log("looking for copies", folders=4)
    ctx.progress(1842, 1842)
    ctx.log("found copies", copies=ctx.input.files)
    return Goto("ask")


@tidy.node
async def ask(ctx: Context[Wish, Tidied]) -> AwaitConsent[Literal["answered"]]:
    wish, moves = ctx.input, _moves(ctx.input.files)
    return AwaitConsent(
        title=wish.title,
        body=(
            "These files have the same content as another file under photos/. "
            "One copy of each stays where it is.\n\n"
            "Nothing is deleted: the copies are moved into quarantine and can be moved back."
        ),
        facts={
            "copies": wish.files,
            "bytes": sum(move.size for move in moves.moves),
            "last copy": "never moved",
            "folders": ["photos/2026", "photos/2025"],
        },
        risk=wish.risk,
        effect=moves,
        quorum=wish.quorum,
        group=wish.group,
        expires_in=timedelta(seconds=wish.expires_in) if wish.expires_in is not None else None,
        then="answered",
    )


@tidy.node
async def answered(ctx: Context[Wish, Tidied]) -> Goto[Literal["move", "leave"]]:
    ctx.state.answer = ctx.verdict.status
    if not ctx.verdict.granted:
        return Goto("leave")
    ctx.verdict.require(_moves(ctx.input.files))
    return Goto("move")


@tidy.node
async def move(ctx: Context[Wish, Tidied]) -> Finish[Tidied]:
    ctx.log("moved", files=ctx.input.files)
    ctx.state.moved = ctx.input.files
    return Finish(ctx.state)


@tidy.node
async def leave(ctx: Context[Wish, Tidied]) -> Finish[Tidied]:
    ctx.log("left everything where it is")
    return Finish(ctx.state)
