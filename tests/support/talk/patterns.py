"""Patterns that say a lot, wait for a file, or fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from runs.patterns import Context, Finish, Goto, Pattern


class Talk(BaseModel):
    """What to say, and which file to wait for in the middle."""

    lines: int = Field(3, ge=0, le=10_000)
    tokens: int = 0
    wait_for: str | None = None
    fail: bool = False


class Said(BaseModel):
    lines: int = 0


talk = Pattern(
    "talk", revision="1", input=Talk, state=Said, output=Said, title="Talk", description="Says lines and ends."
)


@talk.start
async def begin(ctx: Context[Talk, Said]) -> Goto[Literal["say"]]:
    ctx.log("hello \x1b[31mred\x1b[0m")
    return Goto("say")


@talk.node(replay_safe=True)
async def say(ctx: Context[Talk, Said]) -> Finish[Said]:
    for number in range(ctx.input.lines):
        ctx.log(f"line {number}", number=number)
        ctx.progress(number + 1, ctx.input.lines)
        for _ in range(ctx.input.tokens):
            ctx.token("word ")
        if number == ctx.input.lines // 2 and ctx.input.wait_for:
            while not await asyncio.to_thread(Path(ctx.input.wait_for).exists):  # noqa: ASYNC110 a file tells nobody
                await asyncio.sleep(0.02)
    if ctx.input.fail:
        raise RuntimeError("it was meant to fail")
    return Finish(Said(lines=ctx.input.lines))
