"""The outbox: one row for each hop of a Run, and the claim that carries it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q

from runs.models._fields import Stamped, choices
from runs.models.run import Run
from runs.states import DeliveryState


class RunDelivery(Stamped):
    """One hop: held, pending, published, claimed, settled. At most one unsettled a Run."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    tenant = models.CharField(max_length=100, default="default")
    enqueue_seq = models.IntegerField()
    queue_name = models.CharField(max_length=50)
    priority = models.SmallIntegerField()
    resume = models.BooleanField(default=False)
    state = models.CharField(max_length=10, choices=choices(DeliveryState))
    claim_id: models.UUIDField[Any] = models.UUIDField(null=True)
    boot_id: models.UUIDField[Any] = models.UUIDField(null=True)
    publish_attempts = models.IntegerField(default=0)
    last_error = models.TextField(null=True)
    published_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    claimed_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    settled_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "run deliveries"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run", "enqueue_seq"], name="runs_delivery_once_a_hop"),
            models.UniqueConstraint(
                fields=["run"], name="runs_delivery_one_unsettled", condition=~Q(state=DeliveryState.SETTLED.value)
            ),
            models.CheckConstraint(name="runs_delivery_state", condition=Q(state__in=[s.value for s in DeliveryState])),
            models.CheckConstraint(name="runs_delivery_priority", condition=Q(priority__gte=0, priority__lte=100)),
            models.CheckConstraint(name="runs_delivery_generation", condition=Q(enqueue_seq__gte=0)),
            models.CheckConstraint(name="runs_delivery_attempts", condition=Q(publish_attempts__gte=0)),
            models.CheckConstraint(
                name="runs_delivery_claim_has_owner",
                condition=~Q(state=DeliveryState.CLAIMED.value)
                | Q(claim_id__isnull=False, boot_id__isnull=False, claimed_at__isnull=False),
            ),
            models.CheckConstraint(
                name="runs_delivery_settled_has_time",
                condition=(
                    Q(state=DeliveryState.SETTLED.value, settled_at__isnull=False)
                    | (~Q(state=DeliveryState.SETTLED.value) & Q(settled_at__isnull=True))
                ),
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(
                fields=["state", "queue_name"],
                name="runs_delivery_unsettled",
                condition=~Q(state=DeliveryState.SETTLED.value),
            ),
        ]

    def __str__(self) -> str:
        return f"hop {self.enqueue_seq} of {self.run_id}"  # pyright: ignore[reportAttributeAccessIssue] - the column of the key
