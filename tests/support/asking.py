"""Patterns that ask, people who answer, and the eyes for it: what the tests of Consents share."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel, Field

from consents.decisions import DECIDE, Decided, Vote, Voter, decide
from consents.outcome import AwaitConsent
from consents.wait import ConsentWait
from runs.errors import Conflict
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.patterns import Context, Finish, Goto, Pattern
from runs.patterns.pattern import AnyPattern

KIND = ConsentWait()


class Wish(BaseModel):
    """What to ask, how often, and what is done afterwards."""

    title: str = "Do it?"
    body: str = ""
    facts: dict[str, Any] = Field(default_factory=dict)
    risk: Literal["low", "medium", "high", "critical"] = "low"
    gates: int = 1
    expires_in: float | None = None
    permission: str = ""
    group: str = ""
    quorum: int = 1
    self_approval: bool = True
    target: str = "a"
    """What the question is about."""
    does: str | None = None
    """What is done in the end, when it is not the target."""


class Seen(BaseModel):
    """The verdicts in their order."""

    verdicts: list[str] = Field(default_factory=list)
    receipts: list[dict[str, Any]] = Field(default_factory=list)
    did: list[str] = Field(default_factory=list)


class Effect(BaseModel):
    """What is to be done."""

    target: str


def effects() -> tuple[AnyPattern, list[str]]:
    """`gate` asks `gates` times and then does its effect if the last answer was yes; the effects so far."""
    done: list[str] = []
    gate = Pattern("gate", input=Wish, state=Seen, output=Seen)

    def question(ctx: Context[Wish, Seen]) -> AwaitConsent[Literal["answered"]]:
        wish = ctx.input
        number = len(ctx.state.verdicts) + 1
        return AwaitConsent(
            title=wish.title if wish.gates == 1 else f"{wish.title} ({number} of {wish.gates})",
            body=wish.body,
            facts=wish.facts,
            risk=wish.risk,
            effect=Effect(target=wish.target),
            expires_in=timedelta(seconds=wish.expires_in) if wish.expires_in is not None else None,
            permission=wish.permission,
            group=wish.group,
            quorum=wish.quorum,
            self_approval=wish.self_approval,
            then="answered",
        )

    @gate.start
    async def ask(ctx: Context[Wish, Seen]) -> AwaitConsent[Literal["answered"]]:
        return question(ctx)

    @gate.node
    async def answered(
        ctx: Context[Wish, Seen],
    ) -> AwaitConsent[Literal["answered"]] | Goto[Literal["act", "leave"]]:
        verdict = ctx.verdict
        ctx.state.verdicts.append(verdict.status)
        ctx.state.receipts.append(
            {
                "by": verdict.by,
                "comment": verdict.comment,
                "surface": verdict.surface,
                "digest": verdict.digest,
                "granted": verdict.granted,
            }
        )
        if verdict.granted and len(ctx.state.verdicts) < ctx.input.gates:
            return question(ctx)
        if not verdict.granted:
            return Goto("leave")
        verdict.require(Effect(target=ctx.input.does or ctx.input.target))
        return Goto("act")

    @gate.node
    async def act(ctx: Context[Wish, Seen]) -> Finish[Seen]:
        done.append(ctx.input.target)
        ctx.state.did.append(ctx.input.target)
        return Finish(ctx.state)

    @gate.node
    async def leave(ctx: Context[Wish, Seen]) -> Finish[Seen]:
        return Finish(ctx.state)

    return gate, done


def a_voter(name: str = "anna", **changes: Any) -> Voter:
    """A person who may decide; the row of a user with that id must exist for the vote."""
    facts: dict[str, Any] = {
        "user_id": uuid.uuid4(),
        "name": name,
        "tenants": frozenset({"default"}),
        "permissions": frozenset({DECIDE}),
        "groups": frozenset(),
    }
    return Voter(**(facts | changes))


INSERT_USER = (
    "insert into sigils_user (id, username, password, is_superuser, is_staff, is_active, first_name, last_name,"
    " email, date_joined) values (%s, %s, '!', false, true, true, '', '', '', now())"
)


async def a_person(rows: Callable[..., Any], name: str | None = None, **changes: Any) -> Voter:
    """A voter whose user exists; `rows` runs SQL."""
    name = name or f"person {uuid.uuid4().hex[:8]}"
    voter = a_voter(name, **changes)
    await rows(INSERT_USER, voter.user_id, name)
    return voter


async def decided(ledger: Ledger, voter: Voter, consent_id: uuid.UUID, *, grant: bool = True, **how: Any) -> Decided:
    """Record a vote and nothing more: the Run stays where it is.

    Raises:
        Conflict: as the surfaces raise it.
    """
    outcome = await ledger.script(
        ScriptFactory[Decided | Conflict](decide, voter, Vote(consent_id, grant, "rest", **how))
    )
    if isinstance(outcome, Conflict):
        raise outcome
    return outcome
