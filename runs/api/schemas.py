"""The shapes of the interface: bodies are read with them, and OpenAPI shows them; tests hold the answers to them."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, Any

from ninja import Schema
from pydantic import ConfigDict, Field

from runs.api.request import Word
from runs.events.event import Kind
from runs.states import RunStatus


class Submit(Schema):
    """Work to be done."""

    model_config = ConfigDict(extra="forbid")

    pattern: Word = Field(description="key of the Pattern")
    input: Any = Field(description="what the Pattern's input schema asks for; at most 1 MiB as JSON")
    priority: Annotated[int, Field(strict=True, ge=0, le=100)] | None = Field(
        None, description="0 to 100; higher goes first"
    )
    session: uuid.UUID | None = Field(None, description="the conversation that the Run belongs to; made when new")
    fence_session: Annotated[bool, Field(strict=True)] = Field(
        False, description="refuse while the session has an unfinished Run"
    )
    source: Word | None = Field(None, description="where the work comes from, as far as the Sigil allows it")


class PatternRef(Schema):
    key: str
    revision: str
    digest: str


class RunError(Schema):
    code: str
    message: str | None
    node: str | None


class RunWait(Schema):
    kind: str
    owner: uuid.UUID
    since: datetime


class Quarantine(Schema):
    since: datetime
    reason: str | None


class RunCancel(Schema):
    by: str | None
    at: datetime


class Run(Schema):
    """One admitted piece of work."""

    id: uuid.UUID
    pattern: PatternRef
    status: RunStatus
    source: str
    priority: int
    queue: str
    session: uuid.UUID | None
    sigil: str
    tenant: str
    input: Any
    output: Any
    error: RunError | None
    wait: RunWait | None
    hop: int
    ancestor: uuid.UUID | None
    quarantine: Quarantine | None
    cancel: RunCancel | None = Field(description="who asked to cancel it, and when")
    containment: str | None = Field(description="what could not be stopped yet; the Run goes on to its end after that")
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class RunPage(Schema):
    items: list[Run]
    next: str | None


class Step(Schema):
    """One stored event; a live one looks the same."""

    run: uuid.UUID
    seq: int
    cursor: str
    kind: Kind
    node: str | None
    data: Any
    meta: Any
    at: datetime


class StepPage(Schema):
    items: list[Step]
    gaps: list[tuple[int, int]] = Field(description="numbers [from, to] of events that are stored nowhere")
    next_after: int | None = Field(description="`after_seq` of the next page; null when there are no more for now")


class Node(Schema):
    name: str
    replay_safe: bool
    timeout: float | None
    doc: str


class Edge(Schema):
    source: str = Field(alias="from")
    target: str | None = Field(alias="to")
    via: str


class Pattern(PatternRef):
    """What can be submitted."""

    title: str
    description: str
    start: str
    nodes: list[Node]
    edges: list[Edge]
    flags: dict[str, bool]
    continues: list[str]
    input: dict[str, Any] = Field(description="JSON schema of the input")
    output: dict[str, Any] = Field(description="JSON schema of the output")


class PatternPage(Schema):
    items: list[Pattern]
    next: None


class Turn(Schema):
    run: uuid.UUID
    status: RunStatus
    request: Any
    reply: Any
    at: datetime


class Session(Schema):
    """A conversation: its newest turns, the oldest of them first."""

    id: uuid.UUID
    channel: str
    title: str
    sigil: str
    last_run: uuid.UUID | None
    turns: list[Turn]
    created_at: datetime
    updated_at: datetime
