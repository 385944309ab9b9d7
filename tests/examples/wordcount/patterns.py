from collections import Counter
from typing import Literal
from urllib.error import URLError
from urllib.request import urlopen

from pydantic import BaseModel

from runs.patterns import Context, Finish, Goto, Pattern, RetryPolicy


class Page(BaseModel):
    url: str


class Kept(BaseModel):
    text: str = ""


class Words(BaseModel):
    total: int
    most: dict[str, int]


words = Pattern("words", input=Page, state=Kept, output=Words, title="Words of a page")


@words.start(timeout=60)
async def fetch(ctx: Context[Page, Kept]) -> Goto[Literal["count"]]:
    """Read the page, patiently, and keep it."""
    patient = RetryPolicy(attempts=4, first_delay=0.2, on=[URLError])
    ctx.state.text = await ctx.step("read", read, ctx.input.url, retry=patient)
    ctx.log("read", characters=len(ctx.state.text))
    return Goto("count")


@words.node(replay_safe=True)
async def count(ctx: Context[Page, Kept]) -> Finish[Words]:
    """Count in a worker thread, so that everything else goes on meanwhile."""
    return Finish(await ctx.run_sync(counted, ctx.state.text))


def read(url: str) -> str:
    with urlopen(url, timeout=10) as page:
        return page.read().decode()


def counted(text: str) -> Words:
    found = Counter(text.lower().split())
    return Words(total=found.total(), most=dict(found.most_common(3)))
