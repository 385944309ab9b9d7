"""The Patterns of `tests.support.demo`, and one that takes as long as it is told."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from runs.patterns import Context, Finish, Pattern
from tests.support.demo import Empty, Number, quick, three

__all__ = ["quick", "slow", "three"]


class Span(BaseModel):
    seconds: float


slow = Pattern("slow", input=Span, state=Empty, output=Number)


@slow.start
async def sleep(ctx: Context[Span, Empty]) -> Finish[Number]:
    ctx.log("asleep")
    await asyncio.sleep(ctx.input.seconds)
    return Finish(Number())
