"""Boots: each life of a Vessel, and the single row that names the one that may write now."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q

from runs import ids


class Boot(models.Model):
    """One life of a Vessel. Times are for people; what is pre-boot is judged by id (BYD-2)."""

    id = models.UUIDField(primary_key=True, default=ids.mint, editable=False)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    profile = models.CharField(max_length=10)
    version = models.CharField(max_length=50)
    url = models.CharField(max_length=255, blank=True, default="")
    started_at = models.DateTimeField()
    ready_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    ended_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    end_reason = models.TextField(null=True)
    report: models.JSONField[dict[str, Any]] = models.JSONField(default=dict)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["-started_at"], name="runs_boot_newest")]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid} since {self.started_at:%Y-%m-%d %H:%M:%S}"


class VesselSlot(models.Model):
    """The only row: which boot holds the database. Edges of a Vessel require that it still names theirs (ruling 13)."""

    id = models.SmallIntegerField(primary_key=True, default=1, editable=False)
    boot = models.ForeignKey(Boot, on_delete=models.PROTECT, related_name="+")
    taken_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(name="runs_vesselslot_single", condition=Q(id=1)),
        ]

    def __str__(self) -> str:
        return str(self.boot_id)  # pyright: ignore[reportAttributeAccessIssue] - Django's column of the foreign key
