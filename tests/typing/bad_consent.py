"""Mistakes of an author who asks; each marked line is a type error."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from consents.outcome import AwaitConsent
from runs.patterns import Context, Pattern


class Wish(BaseModel):
    pass


tidy = Pattern("tidy", input=Wish, state=Wish, output=Wish)


@tidy.start
async def ask(ctx: Context[Wish, Wish]) -> AwaitConsent[Literal["apply"]]:
    if ctx.run.hop:
        return AwaitConsent(title="Go?", then="elsewhere")  # error
    if ctx.verdict.granted == ctx.verdict.grant:  # error
        return AwaitConsent(title="Go?", risk="huge", then="apply")  # error
    return AwaitConsent(title="Go?", expires_in=3, then="apply")  # error
