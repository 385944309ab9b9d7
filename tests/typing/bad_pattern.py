"""Mistakes that the type checker must find: each line marked with `error` and no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from runs.patterns import Context, Finish, Goto, Pattern, RetryPolicy, Wait


class Input(BaseModel):
    root: str


class State(BaseModel):
    names: list[str] = []


class Report(BaseModel):
    count: int


class Other(BaseModel):
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Ask[L: str](Wait[L]):
    kind: ClassVar[str] = "ask"

    title: str

    def request(self) -> dict[str, Any]:
        return {"title": self.title}


tidy = Pattern("tidy", input=Input, state=State, output=Report)
not_a_model = Pattern("bad", input=dict, state=State, output=Report)  # error


async def list_files(root: str) -> list[str]:
    return [root]


def count_files(names: list[str], factor: float) -> int:
    return int(len(names) * factor)


@tidy.start
async def scan(ctx: Context[Input, State]) -> Goto[Literal["ask"]] | Finish[Report]:
    wrong: int = await ctx.step("list", list_files, ctx.input.root)  # error
    await ctx.step("list", list_files, 5)  # error
    await ctx.step("list", list_files)  # error
    await ctx.step("count", count_files, ["a"], "twice")  # error
    text: str = await ctx.run_sync(count_files, ["a"], 1.0)  # error
    await ctx.step("list", list_files, "a", retry=3)  # error
    ctx.input = Input(root="")  # error
    ctx.state = Report(count=1)  # error
    ctx.state.nmaes = []  # error
    root = ctx.input.rot  # error
    ctx.log("x", level="loud")  # error
    RetryPolicy(on=(KeyboardInterrupt,))  # error
    if ctx.cancelled:
        return Goto("aks")  # error
    if wrong:
        return Finish(Other())  # error
    if text or root:
        return Ask(title="x", then="ask")  # error
    return Goto("ask")


@tidy.node
async def ask(ctx: Context[Input, State]) -> Ask[Literal["apply"]]:
    if ctx.cancelled:
        return Ask(then="apply")  # error
    return Ask(title="x", then="aply")  # error


@tidy.node  # error
def not_async(ctx: Context[Input, State]) -> Finish[Report]:
    return Finish(Report(count=1))


@tidy.node  # error
async def other_output(ctx: Context[Input, State]) -> Finish[Other]:
    return Finish(Other())


@tidy.node  # error
async def other_state(ctx: Context[Input, Other]) -> Finish[Report]:
    return Finish(Report(count=1))


@tidy.node  # error
async def no_outcome(ctx: Context[Input, State]) -> int:
    return 1


@tidy.node(replay_safe="yes")  # error
async def not_a_flag(ctx: Context[Input, State]) -> Finish[Report]:
    return Finish(Report(count=1))


@tidy.node  # error
async def two_arguments(ctx: Context[Input, State], more: int) -> Finish[Report]:
    return Finish(Report(count=more))
