"""The Patterns that are measured: three durable nodes that do nothing, one that talks a lot, one that asks."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from typing import Literal

from pydantic import BaseModel

from consents.outcome import AwaitConsent
from runs.patterns import Context, Finish, Goto, Pattern


class Nothing(BaseModel):
    """No input."""


class Count(BaseModel):
    """How many nodes have run."""

    nodes: int = 0


three = Pattern("bench_three", revision="1", input=Nothing, state=Count, output=Count)


@three.start
async def first(ctx: Context[Nothing, Count]) -> Goto[Literal["second"]]:
    ctx.state.nodes += 1
    return Goto("second")


@three.node
async def second(ctx: Context[Nothing, Count]) -> Goto[Literal["third"]]:
    ctx.state.nodes += 1
    return Goto("third")


@three.node
async def third(ctx: Context[Nothing, Count]) -> Finish[Count]:
    return Finish(Count(nodes=ctx.state.nodes + 1))


class Talk(BaseModel):
    """How much to say, how fast, and how long to wait for listeners first."""

    events: int = 300
    per_second: float = 30.0
    wait: float = 5.0
    padding: int = 200


busy = Pattern("bench_busy", revision="1", input=Talk, state=Count, output=Count)


@busy.start
async def talk(ctx: Context[Talk, Count]) -> Finish[Count]:
    await asyncio.sleep(ctx.input.wait)
    for number in range(ctx.input.events):
        ctx.log(f"event {number} {'x' * ctx.input.padding}")
        await asyncio.sleep(1 / ctx.input.per_second)
    return Finish(Count(nodes=1))


# When a resumed node was entered, for whoever waits for it; and how often it was entered.
entered: dict[uuid.UUID, asyncio.Future[float]] = {}
visits: Counter[uuid.UUID] = Counter()

gate = Pattern("bench_gate", revision="1", input=Nothing, state=Count, output=Count)


@gate.start
async def ask(ctx: Context[Nothing, Count]) -> AwaitConsent[Literal["answered"]]:
    return AwaitConsent(title="Go on?", facts={"n": 1}, then="answered")


@gate.node
async def answered(ctx: Context[Nothing, Count]) -> Finish[Count]:
    visits[ctx.run.id] += 1
    waiting = entered.get(ctx.run.id)
    if waiting is not None:
        waiting.set_result(time.perf_counter())
    return Finish(Count(nodes=2))
