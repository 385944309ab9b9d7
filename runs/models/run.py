"""The Run: the canonical record of one admitted piece of work. Written only by `runs.ledger`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q

from runs import ids
from runs.models._fields import Stamped, choices
from runs.models.session import Session
from runs.states import NONTERMINAL, PARKED, TERMINAL, Road, RunStatus


def _sorted(statuses: frozenset[RunStatus]) -> list[str]:
    return sorted(status.value for status in statuses)


class Run(Stamped):
    """One admitted piece of work, from queued to terminal. The constraints repeat the law of `runs.states`."""

    id = models.UUIDField(primary_key=True, default=ids.mint, editable=False)
    tenant = models.CharField(max_length=100, default="default")
    road = models.CharField(max_length=10, choices=choices(Road), default=Road.VESSEL)

    pattern_key = models.CharField(max_length=100)
    pattern_revision = models.CharField(max_length=50)
    pattern_digest = models.CharField(max_length=64)
    manifest: models.JSONField[dict[str, Any]] = models.JSONField()

    source = models.CharField(max_length=20)
    surface = models.CharField(max_length=20)
    sigil_id: models.UUIDField[Any] = models.UUIDField(null=True)
    sigil_name = models.CharField(max_length=100)
    # The person behind the authority: the Sigil's owner, or who was logged in. No key: people may be deleted.
    user_id: models.UUIDField[Any] = models.UUIDField(null=True)
    scopes: models.JSONField[list[str]] = models.JSONField(default=list)
    intent: models.JSONField[dict[str, Any]] = models.JSONField()
    idempotency_key = models.CharField(max_length=200, null=True)
    request_digest = models.CharField(max_length=64)

    input: models.JSONField[Any] = models.JSONField()
    output: models.JSONField[Any] = models.JSONField(null=True)

    session: models.ForeignKey[Session | None] = models.ForeignKey(
        Session, null=True, on_delete=models.SET_NULL, related_name="runs"
    )
    ancestor: models.ForeignKey[Run | None] = models.ForeignKey(
        "self", null=True, on_delete=models.SET_NULL, related_name="descendants", db_index=False
    )

    status = models.CharField(max_length=20, choices=choices(RunStatus), default=RunStatus.QUEUED)
    priority = models.SmallIntegerField(default=50)
    queue_name = models.CharField(max_length=50)
    enqueue_seq = models.IntegerField(default=0)

    wait_kind = models.CharField(max_length=20, null=True)
    wait_owner = models.UUIDField(null=True)
    wait_since: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)

    error_code = models.CharField(max_length=50, null=True)
    error_message = models.TextField(null=True)
    error_node = models.CharField(max_length=100, null=True)

    # Who asked for the cancellation, and what could not be stopped yet: of a cancelling Run, or of one that is failing.
    cancelled_by = models.CharField(max_length=150, null=True)
    cancel_requested_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    containment_error = models.TextField(null=True)

    quarantined_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    quarantine_reason = models.TextField(null=True)

    started_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)
    finished_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="runs_run_in_tenant"),
            models.CheckConstraint(name="runs_run_status", condition=Q(status__in=[s.value for s in RunStatus])),
            models.CheckConstraint(name="runs_run_road", condition=Q(road__in=[r.value for r in Road])),
            models.CheckConstraint(name="runs_run_priority", condition=Q(priority__gte=0, priority__lte=100)),
            models.CheckConstraint(name="runs_run_generation", condition=Q(enqueue_seq__gte=0)),
            models.CheckConstraint(
                name="runs_run_owner_when_parked",
                condition=(
                    Q(
                        status__in=_sorted(PARKED),
                        wait_kind__isnull=False,
                        wait_owner__isnull=False,
                        wait_since__isnull=False,
                    )
                    | (
                        ~Q(status__in=_sorted(PARKED))
                        & Q(wait_kind__isnull=True, wait_owner__isnull=True, wait_since__isnull=True)
                    )
                ),
            ),
            models.CheckConstraint(
                name="runs_run_finished_when_terminal",
                condition=(
                    Q(status__in=_sorted(TERMINAL), finished_at__isnull=False)
                    | (~Q(status__in=_sorted(TERMINAL)) & Q(finished_at__isnull=True))
                ),
            ),
            models.CheckConstraint(
                name="runs_run_error_when_failed",
                condition=~Q(status=RunStatus.FAILED.value) | Q(error_code__isnull=False, error_message__isnull=False),
            ),
            models.CheckConstraint(
                name="runs_run_quarantine_has_reason",
                condition=Q(quarantined_at__isnull=True) | Q(quarantine_reason__isnull=False),
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="runs_run_newest"),
            models.Index(fields=["tenant", "status", "-created_at", "-id"], name="runs_run_by_status"),
            models.Index(fields=["tenant", "pattern_key", "-created_at", "-id"], name="runs_run_by_pattern"),
            models.Index(fields=["tenant", "updated_at", "id"], name="runs_run_changes"),
            models.Index(
                fields=["status", "updated_at", "id"],
                name="runs_run_live",
                condition=Q(status__in=_sorted(NONTERMINAL)),
            ),
            models.Index(
                fields=["tenant", "session"],
                name="runs_run_live_of_session",
                condition=Q(status__in=_sorted(NONTERMINAL), session__isnull=False),
            ),
            models.Index(
                fields=["tenant", "idempotency_key"],
                name="runs_run_by_key",
                condition=Q(idempotency_key__isnull=False),
            ),
            models.Index(
                fields=["quarantined_at"], name="runs_run_quarantined", condition=Q(quarantined_at__isnull=False)
            ),
            models.Index(fields=["ancestor"], name="runs_run_descendants", condition=Q(ancestor__isnull=False)),
        ]
        permissions: ClassVar[list[tuple[str, str]]] = [
            ("cancel_run", "Can cancel Runs"),
            ("rerun_run", "Can run Runs again"),
            ("submit_run", "Can submit Runs"),
            ("view_payload", "Can see input, state and output of Runs"),
        ]

    def __str__(self) -> str:
        return f"{self.pattern_key} {self.id}"


class RunTombstone(models.Model):
    """What is left of a pruned Run: enough to answer a replay of its key, and never to mint its id again."""

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.CharField(max_length=100)
    request_digest = models.CharField(max_length=64)
    status = models.CharField(max_length=20)
    pruned_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"pruned {self.id}"
