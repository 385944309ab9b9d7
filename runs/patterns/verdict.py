"""What an owner answered, as the node that waited sees it: durable truth, read anew, never a payload (WAIT-9)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from runs import payloads
from runs.errors import NodeFailed


class NoVerdict(NodeFailed):
    """This node was not entered from a wait, so there is no verdict."""

    code, title = "no_verdict", "No verdict"


class EffectChanged(NodeFailed):
    """What would be done now is not what was approved."""

    code, title = "effect_changed", "Effect differs from what was approved"


class NotGranted(NodeFailed):
    """The operator did not grant this."""

    code, title = "not_granted", "Not granted"


def shown_digest(*, title: str, body: str, facts: Any, risk: str, effect: Any) -> str:
    """The digest of exactly what is put before an operator, effect included (ruling 28)."""
    return payloads.digest({"title": title, "body": body, "facts": facts, "risk": risk, "effect": effect})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a wait.

    Attributes:
        owner: id of the record that was asked.
        granted: True for a grant that holds; denied, expired and cancelled are no.
        status: the owner's status: granted, denied, expired, cancelled.
        by, at, comment, surface: the receipt.
        digest: of exactly what was shown.
        shown: title, body, facts and risk, as they were shown.
    """

    owner: uuid.UUID
    granted: bool
    status: str
    by: str
    at: datetime
    comment: str
    surface: str
    digest: str
    shown: Mapping[str, Any]

    def require(self, effect: BaseModel | None = None) -> None:
        """Go on only if exactly this was granted.

        Args:
            effect: what is about to be done; must be what the question carried as its effect.

        Raises:
            NotGranted: the answer was no.
            EffectChanged: the digest over what was shown and this effect is not the approved one.
        """
        if not self.granted and self.status == "granted":
            asked = self.shown.get("title", "")
            raise NotGranted(f"The question {asked!r} was granted by {self.by}, which does not hold any more.")
        if not self.granted:
            raise NotGranted(
                f"The question {self.shown.get('title', '')!r} was answered with {self.status} by {self.by}."
            )
        value = payloads.jsonable(effect, "effect") if effect is not None else None
        if (
            shown_digest(
                title=self.shown["title"],
                body=self.shown["body"],
                facts=self.shown["facts"],
                risk=self.shown["risk"],
                effect=value,
            )
            != self.digest
        ):
            raise EffectChanged("What would be done now differs from what was approved; nothing was done.")
