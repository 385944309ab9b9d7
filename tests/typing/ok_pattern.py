"""A Pattern as an author writes it; the type checker must have nothing to say about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, assert_type
from uuid import UUID

from pydantic import BaseModel

from runs.patterns import Context, Finish, Goto, Pattern, PatternRegistry, RetryPolicy, Wait


class Input(BaseModel):
    root: str


class State(BaseModel):
    names: list[str] = []


class Report(BaseModel):
    count: int


class Longer(Report):
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Ask[L: str](Wait[L]):
    kind: ClassVar[str] = "ask"

    title: str
    expires_in: timedelta | None = None

    def request(self) -> dict[str, Any]:
        return {"title": self.title}


type Ctx = Context[Input, State]
type Loop = Goto[Literal["scan", "ask"]]

tidy = Pattern("tidy", revision="2", input=Input, state=State, output=Report, continues=["1"])
seeded = Pattern("seeded", input=Input, state=State, output=Report, initial=lambda given: State(names=[given.root]))


async def list_files(root: str) -> list[str]:
    await asyncio.sleep(0)
    return [root]


def count_files(names: Sequence[str], factor: float) -> int:
    return int(len(names) * factor)


def scale(number: int, factor: int = 2) -> int:
    return number * factor


@tidy.start
async def scan(ctx: Context[Input, State]) -> Goto[Literal["ask"]] | Finish[Report]:
    names = await ctx.step("list", list_files, ctx.input.root)
    assert_type(names, list[str])
    count = await ctx.step(
        "count", count_files, names, 1.5, retry=RetryPolicy(attempts=3), timeout=timedelta(seconds=5)
    )
    assert_type(count, int)
    again = await ctx.run_sync(count_files, names, 2)
    assert_type(again, int)
    report = await ctx.step("report", Report.model_validate, {"count": 1}, returns=Report)
    assert_type(report, Report)
    scaled = await ctx.step("scaled", scale, 3)
    assert_type(scaled, int)
    lazy = await ctx.step("lazy", lambda: 1.5)
    assert_type(lazy, float)
    assert_type(ctx.effect_key("list"), UUID)
    assert_type(ctx.run.hop, int)
    ctx.state.names = names
    ctx.state = State(names=names)
    ctx.log("listed", level="warning", count=count)
    ctx.progress(1, 2.5, "half")
    if ctx.cancelled:
        return Finish(Report(count=0))
    return Goto("ask")


@tidy.node
async def ask(ctx: Ctx) -> Ask[Literal["apply"]]:
    return Ask(title="Move 12 files", expires_in=timedelta(days=2), then="apply")


@tidy.node(replay_safe=True, timeout=timedelta(minutes=1))
async def apply(ctx: Ctx) -> Finish[Longer] | Loop:
    if ctx.state.names:
        return Goto("scan")
    return Finish(Longer(count=len(ctx.state.names)))


@tidy.node(timeout=5)
async def rest(ctx: Ctx) -> Finish[Report]:
    return Finish(Report(count=0))


async def drive(ctx: Context[Input, State]) -> None:
    outcome = await tidy.run_node("scan", ctx)
    if isinstance(outcome, Finish):
        assert_type(outcome.output, Report)
    assert_type(tidy.parse_input({}), Input)
    assert_type(tidy.initial_state(Input(root=".")), State)
    registry = PatternRegistry([tidy, seeded])
    registry.select("tidy")
