"""Steps: the durable, append-only evidence of a Run. Never updated, never a reason for a status."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q

from runs.models.run import Run


class Step(models.Model):
    """One stored event. Its id is the event's id, its `seq` the channel's, verbatim (EVT-7)."""

    id = models.UUIDField(primary_key=True, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps", db_index=False)
    tenant = models.CharField(max_length=100, default="default")
    epoch = models.CharField(max_length=16)
    seq = models.IntegerField()
    tokens_before = models.IntegerField(default=0)
    kind = models.CharField(max_length=20)
    node = models.CharField(max_length=100, null=True)
    data: models.JSONField[dict[str, Any]] = models.JSONField(default=dict)
    meta: models.JSONField[dict[str, Any]] = models.JSONField(default=dict)
    at = models.DateTimeField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run", "seq"], name="runs_step_once_a_seq"),
            models.UniqueConstraint(fields=["run"], name="runs_step_one_terminal", condition=Q(kind="done")),
            models.CheckConstraint(name="runs_step_seq", condition=Q(seq__gte=0, tokens_before__gte=0)),
            models.CheckConstraint(name="runs_step_no_token", condition=~Q(kind="token")),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.seq} of {self.run_id}"  # pyright: ignore[reportAttributeAccessIssue] - the column of the key
