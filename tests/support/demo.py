"""Patterns for tests of whole Vessels: one that ends at once, and some that a test holds and lets go."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal

from pydantic import BaseModel

from runs.patterns import AnyPattern, Context, Finish, Goto, Pattern


class Number(BaseModel):
    n: int = 0


class Empty(BaseModel):
    pass


type Ctx = Context[Number, Empty]

quick = Pattern("quick", input=Number, state=Empty, output=Number)
three = Pattern("three", input=Number, state=Number, output=Number)
held = Pattern("held", input=Number, state=Empty, output=Number)
threaded = Pattern("threaded", input=Number, state=Empty, output=Number)


class Hold:
    """What holds `held` and `threaded`; a test makes a fresh one."""

    def __init__(self) -> None:
        self.entered = 0
        self.go = asyncio.Event()
        self.thread_entered = threading.Event()
        self.thread_go = threading.Event()

    def block(self, n: int) -> int:
        self.thread_entered.set()
        self.thread_go.wait(30)
        return n


hold = Hold()


def fresh_hold() -> Hold:
    global hold
    hold = Hold()
    return hold


@quick.start
async def answer(ctx: Ctx) -> Finish[Number]:
    return Finish(Number(n=ctx.input.n + 1))


@three.start
async def one(ctx: Context[Number, Number]) -> Goto[Literal["two"]]:
    ctx.state.n = ctx.input.n
    return Goto("two")


@three.node
async def two(ctx: Context[Number, Number]) -> Goto[Literal["last"]]:
    ctx.state.n += 1
    return Goto("last")


@three.node
async def last(ctx: Context[Number, Number]) -> Finish[Number]:
    return Finish(Number(n=ctx.state.n + 1))


@held.start
async def wait(ctx: Ctx) -> Finish[Number]:
    hold.entered += 1
    await hold.go.wait()
    return Finish(ctx.input)


@threaded.start
async def block(ctx: Ctx) -> Finish[Number]:
    return Finish(Number(n=await ctx.run_sync(hold.block, ctx.input.n)))


PATTERNS: tuple[AnyPattern, ...] = (quick, three, held, threaded)
