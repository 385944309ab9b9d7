"""Checkpoints, their archive, and the journal of effects: the declared state from which a Run may return."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from runs.models._fields import Stamped
from runs.models.run import Run


class Checkpoint(Stamped):
    """The one current checkpoint of a Run, replaced whole. Holds no live handle and no secret."""

    run = models.OneToOneField(Run, primary_key=True, on_delete=models.CASCADE, related_name="checkpoint")
    tenant = models.CharField(max_length=100, default="default")
    enqueue_seq = models.IntegerField()
    claim_id = models.UUIDField()
    snapshots: models.JSONField[list[dict[str, Any]]] = models.JSONField()

    def __str__(self) -> str:
        return f"checkpoint of {self.pk}"


class CheckpointArchive(models.Model):
    """The checkpoint as it stood when its Run failed or was cancelled: what a rerun may start from (ruling 36)."""

    run = models.OneToOneField(Run, primary_key=True, on_delete=models.CASCADE, related_name="archived_checkpoint")
    tenant = models.CharField(max_length=100, default="default")
    enqueue_seq = models.IntegerField()
    snapshots: models.JSONField[list[dict[str, Any]]] = models.JSONField()
    archived_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"archived checkpoint of {self.pk}"


class JournalEntry(models.Model):
    """The recorded result of one `ctx.step` (BYD-4). Deleted with the checkpoint."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="journal", db_index=False)
    tenant = models.CharField(max_length=100, default="default")
    visit = models.IntegerField()
    name = models.CharField(max_length=100)
    occurrence = models.IntegerField()
    args_digest = models.CharField(max_length=64)
    result: models.JSONField[Any] = models.JSONField(null=True)
    enqueue_seq = models.IntegerField()
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "journal entries"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "visit", "name", "occurrence"], name="runs_journal_once_an_occurrence"
            ),
            models.CheckConstraint(
                name="runs_journal_counts", condition=models.Q(visit__gte=0, occurrence__gte=0, enqueue_seq__gte=0)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}#{self.occurrence} of {self.run_id}"  # pyright: ignore[reportAttributeAccessIssue] - the column of the key
