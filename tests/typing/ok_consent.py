"""A Pattern that asks, as an author writes it; the type checker must have nothing to say about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, assert_type

from pydantic import BaseModel

from consents.outcome import AwaitConsent
from runs.patterns import Context, Finish, Goto, Pattern, Verdict


class Wish(BaseModel):
    files: list[str]


class State(BaseModel):
    asked: int = 0


class Move(BaseModel):
    files: list[str]


class Report(BaseModel):
    moved: int


tidy = Pattern("tidy", input=Wish, state=State, output=Report)


@tidy.start
async def ask(ctx: Context[Wish, State]) -> AwaitConsent[Literal["apply"]] | Finish[Report]:
    if not ctx.input.files:
        return Finish(Report(moved=0))
    return AwaitConsent(
        title=f"Move {len(ctx.input.files)} files",
        facts={"files": ctx.input.files},
        risk="high",
        effect=Move(files=ctx.input.files),
        expires_in=timedelta(days=2),
        then="apply",
    )


@tidy.node(replay_safe=True)
async def apply(ctx: Context[Wish, State]) -> Goto[Literal["report"]] | AwaitConsent[Literal["apply"]]:
    assert_type(ctx.verdict, Verdict)
    if not ctx.verdict.granted and ctx.state.asked < 2:
        ctx.state.asked += 1
        return AwaitConsent(title="Really not?", quorum=2, group="lawyers", self_approval=False, then="apply")
    ctx.verdict.require(Move(files=ctx.input.files))
    return Goto("report")


@tidy.node
async def report(ctx: Context[Wish, State]) -> Finish[Report]:
    return Finish(Report(moved=len(ctx.input.files)))
