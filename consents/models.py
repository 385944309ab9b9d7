"""Consents: a question to an operator and the receipt of the answer; votes; standing policies.

Rows are written by `consents.decisions`, `consents.wait` and `consents.policies` alone.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from runs import ids
from runs.models import Run


class ConsentStatus(StrEnum):
    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Risk(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


def _choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]


class StandingPolicy(models.Model):
    """A rule that answers certain Consents beforehand. Declared in files; operators only switch it off."""

    id = models.UUIDField(primary_key=True, default=ids.mint, editable=False)
    tenant = models.CharField(max_length=100, default="default")
    slug = models.CharField(max_length=100, unique=True)
    title = models.CharField(max_length=200, blank=True, default="")
    priority = models.SmallIntegerField(default=50)
    sigil = models.CharField(max_length=100, default="*")
    pattern = models.CharField(max_length=100, default="*")
    node = models.CharField(max_length=100, default="*")
    max_risk = models.CharField(max_length=10, choices=_choices(Risk), default=Risk.LOW)
    constraints: models.JSONField[dict[str, Any]] = models.JSONField(default=dict)
    expires_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    max_uses: models.IntegerField[int | None] = models.IntegerField(null=True)
    # May be above `max_uses`, when a file lowered that afterwards; usage is never forgotten.
    uses = models.IntegerField(default=0)
    enabled = models.BooleanField(default=True)
    source_present = models.BooleanField(default=True)
    granted_by = models.CharField(max_length=150)
    digest = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "standing policies"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(name="consents_policy_priority", condition=Q(priority__gte=0, priority__lte=100)),
            models.CheckConstraint(name="consents_policy_uses", condition=Q(uses__gte=0)),
        ]

    def __str__(self) -> str:
        return self.slug


class Consent(models.Model):
    """One question, asked once for one activation of a node; its id follows from Run and visit (ruling 25)."""

    id = models.UUIDField(primary_key=True, editable=False)
    # Deleting the Run deletes its questions; a trigger keeps the one that a parked Run waits for (ruling 24).
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="consents", db_index=False)
    tenant = models.CharField(max_length=100, default="default")
    node = models.CharField(max_length=100)
    visit = models.IntegerField()
    pattern_key = models.CharField(max_length=100)
    sigil_name = models.CharField(max_length=100)
    asked_by: models.UUIDField[Any] = models.UUIDField(null=True)

    title = models.CharField(max_length=200)
    body = models.TextField(blank=True, default="")
    facts: models.JSONField[Any] = models.JSONField(default=dict)
    risk = models.CharField(max_length=10, choices=_choices(Risk), default=Risk.LOW)
    effect: models.JSONField[Any] = models.JSONField(null=True)
    digest = models.CharField(max_length=64)

    permission = models.CharField(max_length=150, blank=True, default="")
    group = models.CharField(max_length=150, blank=True, default="")
    quorum = models.SmallIntegerField(default=1)
    self_approval = models.BooleanField(default=True)

    status = models.CharField(max_length=10, choices=_choices(ConsentStatus), default=ConsentStatus.PENDING)
    requested_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    decided_by = models.CharField(max_length=150, null=True)
    decided_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    surface = models.CharField(max_length=20, null=True)
    comment = models.TextField(blank=True, default="")
    policy: models.ForeignKey[StandingPolicy | None] = models.ForeignKey(
        StandingPolicy, null=True, on_delete=models.PROTECT, related_name="consents"
    )
    policy_digest = models.CharField(max_length=64, blank=True, default="")
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                name="consents_consent_status", condition=Q(status__in=[status.value for status in ConsentStatus])
            ),
            models.CheckConstraint(name="consents_consent_risk", condition=Q(risk__in=[risk.value for risk in Risk])),
            models.CheckConstraint(
                name="consents_consent_receipt",
                condition=(
                    Q(status="pending", decided_by__isnull=True, decided_at__isnull=True, surface__isnull=True)
                    | (
                        ~Q(status="pending")
                        & Q(decided_by__isnull=False, decided_at__isnull=False, surface__isnull=False)
                    )
                ),
            ),
            models.CheckConstraint(name="consents_consent_quorum", condition=Q(quorum__gte=1, quorum__lte=50)),
            models.UniqueConstraint(fields=["run", "visit"], name="consents_consent_once_a_visit"),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["tenant", "status", "-requested_at", "-id"], name="consents_by_status"),
            models.Index(fields=["tenant", "-requested_at", "-id"], name="consents_newest"),
            models.Index(fields=["tenant", "updated_at", "id"], name="consents_changes"),
            models.Index(
                fields=["expires_at"],
                name="consents_due",
                condition=Q(status="pending", expires_at__isnull=False),
            ),
        ]
        permissions: ClassVar[list[tuple[str, str]]] = [("decide_consent", "Can decide Consents")]

    def __str__(self) -> str:
        return self.title


class ConsentVote(models.Model):
    """One person's vote; nobody votes twice (ruling 29)."""

    consent = models.ForeignKey(Consent, on_delete=models.CASCADE, related_name="votes")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=150)
    granted = models.BooleanField()
    comment = models.TextField(blank=True, default="")
    surface = models.CharField(max_length=20)
    digest = models.CharField(max_length=64)
    at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["consent", "user"], name="consents_vote_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name}: {'grant' if self.granted else 'deny'}"
