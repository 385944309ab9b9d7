"""The shapes of the interface; OpenAPI shows them, and tests hold the answers to them."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import ConfigDict, Field

from consents.decisions import COMMENT_LIMIT
from consents.models import ConsentStatus


class Decision(Schema):
    """A person's answer."""

    model_config = ConfigDict(extra="forbid")

    verdict: Literal["grant", "deny"]
    comment: str = Field("", description=f"why; at most {COMMENT_LIMIT:,} characters")
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        None, description="`digest` of the Consent as it was shown; refused when the question is another"
    )


class Requires(Schema):
    permission: str | None
    group: str | None
    quorum: int


class You(Schema):
    """The caller, as far as this Consent is concerned."""

    may_decide: bool
    why_not: str | None


class Consent(Schema):
    """A question of a Run, and the receipt of its answer."""

    id: uuid.UUID
    run: uuid.UUID
    node: str
    pattern: str
    title: str
    body: str
    facts: Any
    risk: Literal["low", "medium", "high", "critical"]
    effect: Any = Field(description="exactly what is done on yes, as far as the Pattern says it")
    status: ConsentStatus
    requested_at: datetime
    expires_at: datetime | None
    decided_by: str | None
    decided_at: datetime | None
    comment: str
    surface: str | None
    policy: str | None
    digest: str = Field(description="SHA-256 over title, body, facts, risk and effect")
    requires: Requires
    grants: int = Field(description="how many people have said yes")
    self_approval: bool
    sigil: str
    updated_at: datetime


class OneConsent(Consent):
    """A Consent, and whether the caller may decide it."""

    you: You


class ConsentPage(Schema):
    items: list[Consent]
    next: str | None
