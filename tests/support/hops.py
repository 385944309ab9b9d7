"""What tests of hops share: Patterns of two nodes whose entries are noted, checkpoints as the driver writes them."""

from __future__ import annotations

import json
import uuid
from typing import Any, Literal

from runs.driver.codec import before_node
from runs.patterns import Context, Finish, Goto, Pattern
from runs.patterns.pattern import AnyPattern
from tests.support.vessel_parts import Body, Note, Report, Tally, finish


def checkpoint(run_id: uuid.UUID, node: str, visit: int = 1, **state: Any) -> list[dict[str, Any]]:
    """The checkpoint of a Run about to enter `node`."""
    return json.loads(before_node(str(run_id), node, visit, 0, Tally(**state).model_dump_json()))


def pair(first_body: Body, second_body: Body, key: str = "pair", **options: Any) -> AnyPattern:
    """A Pattern of the nodes `first` and `second`, in this order; the second one's result is the output."""
    pattern = Pattern(key, input=Note, state=Tally, output=Report, **options)

    @pattern.start
    async def first(ctx: Context[Note, Tally]) -> Goto[Literal["second"]]:
        await first_body(ctx)
        return Goto("second")

    @pattern.node
    async def second(ctx: Context[Note, Tally]) -> Finish[Report]:
        return finish(await second_body(ctx))

    return pattern


class Entries:
    """Bodies that note their node; `nodes` holds the nodes that were entered, in order."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    async def __call__(self, ctx: Context[Note, Tally]) -> str:
        self.nodes.append(ctx.run.node)
        return ctx.input.text
