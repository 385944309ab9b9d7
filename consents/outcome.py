"""`AwaitConsent`: what a node returns to ask an operator. The question is complete here; nothing is looked up later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from runs import payloads
from runs.patterns import Wait

type RiskWord = Literal["low", "medium", "high", "critical"]


@dataclass(frozen=True, kw_only=True)
class AwaitConsent[L: str](Wait[L]):
    """Ask, park, and go on with the node `then` when the answer is there: yes, no, or expired, which is no.

    Args:
        title: what is asked, one line, at most 200 characters.
        body: plain text that explains it.
        facts: JSON object; shown as a table, part of the digest.
        risk: low, medium, high or critical.
        effect: exactly what will be done on yes; `ctx.verdict.require(effect)` compares (ruling 28).
        expires_in: after this time the answer is no.
        permission: a Django permission that a decider must have besides `consents.decide_consent`.
        group: a group that a decider must be in.
        quorum: how many different people must say yes; one no decides.
        self_approval: whether the person in whose name the Run was submitted may decide.
    """

    kind: ClassVar[str] = "consent"

    title: str
    body: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    risk: RiskWord = "low"
    effect: BaseModel | None = None
    expires_in: timedelta | None = None
    permission: str = ""
    group: str = ""
    quorum: int = 1
    self_approval: bool = True

    def request(self) -> dict[str, Any]:
        """The question as JSON."""
        return {
            "title": self.title,
            "body": self.body,
            "facts": payloads.jsonable(dict(self.facts), "facts"),
            "risk": self.risk,
            "effect": payloads.jsonable(self.effect, "effect") if self.effect is not None else None,
            "expires_in": self.expires_in.total_seconds() if self.expires_in is not None else None,
            "permission": self.permission,
            "group": self.group,
            "quorum": self.quorum,
            "self_approval": self.self_approval,
        }
