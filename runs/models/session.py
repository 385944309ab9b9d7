"""Sessions: conversations to which Runs belong, and their turns."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from runs import ids
from runs.models._fields import Stamped


class Session(Stamped):
    """A conversation. At most one unfinished Run when a submission asks for the fence (ADM-30)."""

    id = models.UUIDField(primary_key=True, default=ids.mint, editable=False)
    tenant = models.CharField(max_length=100, default="default")
    channel = models.CharField(max_length=20)
    title = models.CharField(max_length=200, blank=True, default="")
    sigil_name = models.CharField(max_length=100)
    meta: models.JSONField[dict[str, Any]] = models.JSONField(default=dict)
    last_run_id = models.UUIDField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="runs_session_in_tenant"),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="runs_session_newest"),
        ]

    def __str__(self) -> str:
        return str(self.id)


class SessionTurn(Stamped):
    """What one Run was asked in a session, and what it answered. One turn a Run."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="turns")
    run = models.OneToOneField("runs.Run", on_delete=models.CASCADE, related_name="turn")
    tenant = models.CharField(max_length=100, default="default")
    request: models.JSONField[Any] = models.JSONField()
    reply: models.JSONField[Any] = models.JSONField(null=True)
    status = models.CharField(max_length=20, default="open")

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["session", "id"], name="runs_turn_of_session"),
        ]

    def __str__(self) -> str:
        return f"turn of {self.run_id}"  # pyright: ignore[reportAttributeAccessIssue] - the column of the key
