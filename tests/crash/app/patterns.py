"""The Patterns under fire. Every node leaves a line when it is entered; every step's function leaves one when it runs,
and the node another one with the result that it was given: the two are compared afterwards.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Literal

from pydantic import BaseModel, Field

from consents.outcome import AwaitConsent
from runs.patterns import Context, Finish, Goto, Pattern
from tests.crash.app.effects import happened


class Ask(BaseModel):
    """Nothing to choose."""


class Kept(BaseModel):
    """What the nodes left behind for each other."""

    values: list[str] = Field(default_factory=list)
    verdicts: list[str] = Field(default_factory=list)


type Ctx = Context[Ask, Kept]


def _pattern(key: str) -> Pattern[Ask, Kept, Kept]:
    return Pattern(key, input=Ask, state=Kept, output=Kept)


def _enter(ctx: Ctx) -> None:
    happened("entered", ctx.run)


async def _step(ctx: Ctx, name: str, *, threaded: bool = False) -> None:
    """One journaled step whose function gives another result whenever it runs."""
    run, key = ctx.run, str(ctx.effect_key(name))

    def act() -> str:
        value = str(uuid.uuid4())
        happened("ran", run, key=key, step=name, value=value)
        return value

    async def act_here() -> str:
        return act()

    value = await (ctx.step(name, act, returns=str) if threaded else ctx.step(name, act_here, returns=str))
    happened("saw", run, key=key, step=name, value=value)
    ctx.state.values.append(value)


finish = _pattern("finish")
"""Three durable nodes, none of which may run twice."""


@finish.start
async def one(ctx: Ctx) -> Goto[Literal["two"]]:
    _enter(ctx)
    ctx.log("one")
    return Goto("two")


@finish.node
async def two(ctx: Ctx) -> Goto[Literal["three"]]:
    _enter(ctx)
    return Goto("three")


@finish.node
async def three(ctx: Ctx) -> Finish[Kept]:
    _enter(ctx)
    return Finish(ctx.state)


fail = _pattern("fail")
"""Fails at its second node."""


@fail.start
async def begin(ctx: Ctx) -> Goto[Literal["break_"]]:
    _enter(ctx)
    return Goto("break_")


@fail.node
async def break_(ctx: Ctx) -> Finish[Kept]:
    _enter(ctx)
    raise RuntimeError("as it must")


replay = _pattern("replay")
"""Every node may run again: whatever happens, it must get to its end, and each recorded step is seen as recorded."""


@replay.start(replay_safe=True)
async def gather(ctx: Ctx) -> Goto[Literal["store"]]:
    _enter(ctx)
    await _step(ctx, "first")
    await _step(ctx, "second", threaded=True)
    return Goto("store")


@replay.node(replay_safe=True)
async def store(ctx: Ctx) -> Finish[Kept]:
    _enter(ctx)
    await _step(ctx, "first")
    return Finish(ctx.state)


mixed = _pattern("mixed")
"""One node that must not run twice between two that may."""


@mixed.start(replay_safe=True)
async def look(ctx: Ctx) -> Goto[Literal["pay"]]:
    _enter(ctx)
    await _step(ctx, "look")
    return Goto("pay")


@mixed.node
async def pay(ctx: Ctx) -> Goto[Literal["tell"]]:
    _enter(ctx)
    await _step(ctx, "debit")
    await _step(ctx, "credit")
    return Goto("tell")


@mixed.node(replay_safe=True)
async def tell(ctx: Ctx) -> Finish[Kept]:
    _enter(ctx)
    await _step(ctx, "tell")
    return Finish(ctx.state)


twice = _pattern("twice")
"""Asks two questions in a row, and acts after the first answer."""


@twice.start
async def ask(ctx: Ctx) -> AwaitConsent[Literal["act"]]:
    _enter(ctx)
    return AwaitConsent(title="The first?", effect=Ask(), then="act")


@twice.node
async def act(ctx: Ctx) -> AwaitConsent[Literal["close"]]:
    _enter(ctx)
    ctx.verdict.require(Ask())
    ctx.state.verdicts.append(ctx.verdict.status)
    return AwaitConsent(title="The second?", risk="high", then="close")


@twice.node
async def close(ctx: Ctx) -> Finish[Kept]:
    _enter(ctx)
    ctx.state.verdicts.append(ctx.verdict.status)
    return Finish(ctx.state)


question = _pattern("question")
"""Asks from a node that may run again."""


@question.start(replay_safe=True)
async def wonder(ctx: Ctx) -> AwaitConsent[Literal["answered"]]:
    _enter(ctx)
    return AwaitConsent(title="Well?", then="answered")


@question.node(replay_safe=True)
async def answered(ctx: Ctx) -> Finish[Kept]:
    _enter(ctx)
    ctx.state.verdicts.append(ctx.verdict.status)
    return Finish(ctx.state)


linger = _pattern("linger")
"""Works until it is cancelled; must not run twice."""


@linger.start
async def stay(ctx: Ctx) -> Finish[Kept]:
    _enter(ctx)
    await asyncio.Event().wait()
    return Finish(ctx.state)


again = _pattern("again")
"""Works until it is cancelled; begins anew after a death."""


@again.start(replay_safe=True)
async def stay_again(ctx: Ctx) -> Finish[Kept]:
    _enter(ctx)
    await _step(ctx, "once")
    await asyncio.Event().wait()
    return Finish(ctx.state)
