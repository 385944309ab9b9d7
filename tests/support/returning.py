"""Patterns whose Runs return: from a checkpoint, or from a wait."""

from __future__ import annotations

from typing import Literal

from consents.outcome import AwaitConsent
from runs.patterns import Context, Finish, Goto, Pattern
from runs.patterns.pattern import AnyPattern
from tests.support.delegates import AwaitJob
from tests.support.vessel_parts import Body, Note, Report, Tally, finish


def walk(*, safe: bool) -> AnyPattern:
    """Three nodes; the last two may run again or not."""
    pattern = Pattern("walk", input=Note, state=Tally, output=Report)

    @pattern.start()
    async def one(ctx: Context[Note, Tally]) -> Goto[Literal["two"]]:
        ctx.state.visited.append("one")
        return Goto("two")

    @pattern.node(replay_safe=safe)
    async def two(ctx: Context[Note, Tally]) -> Goto[Literal["three"]]:
        ctx.state.visited.append("two")
        return Goto("three")

    @pattern.node(replay_safe=safe)
    async def three(ctx: Context[Note, Tally]) -> Finish[Report]:
        return Finish(Report(text=" ".join(ctx.state.visited)))

    return pattern


def asking(*, job: bool = False) -> AnyPattern:
    """Asks, and then acts."""
    pattern = Pattern("asking", input=Note, state=Tally, output=Report)

    if job:

        @pattern.start()
        async def hand_out(ctx: Context[Note, Tally]) -> AwaitJob[Literal["act"]]:
            return AwaitJob(then="act")

    else:

        @pattern.start()
        async def ask(ctx: Context[Note, Tally]) -> AwaitConsent[Literal["act"]]:
            return AwaitConsent(then="act", title="May I?")

    @pattern.node()
    async def act(ctx: Context[Note, Tally]) -> Finish[Report]:
        return Finish(Report(text="yes" if ctx.verdict is not None and ctx.verdict.granted else "no"))

    return pattern


def stopping(body: Body, *, safe: bool) -> AnyPattern:
    """Two nodes; the second does `body`, and may run again or not."""
    pattern = Pattern("stopping", input=Note, state=Tally, output=Report)

    @pattern.start()
    async def one(ctx: Context[Note, Tally]) -> Goto[Literal["two"]]:
        return Goto("two")

    @pattern.node(replay_safe=safe)
    async def two(ctx: Context[Note, Tally]) -> Finish[Report]:
        return finish(await body(ctx))

    return pattern
