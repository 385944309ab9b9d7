"""The pages of what belongs to a Run: hops, Steps, checkpoints, archive, journal, and what is left of pruned Runs."""

# Django's admin classes take type arguments in the stubs, not at run time.
# pyright: reportMissingTypeArgument=false

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from runs.admin import shown
from runs.admin.base import ReadOnlyAdmin
from runs.admin.filters import DeliveryStateFilter, KindFilter
from runs.admin.keyset import Order
from runs.models import Checkpoint, CheckpointArchive, JournalEntry, RunDelivery, RunTombstone, Step
from runs.states import RunStatus

OF_A_RUN = "The id of a Run"


class OfRunAdmin(ReadOnlyAdmin):
    """Rows that belong to a Run and are found by its id."""

    qualifiers = {"run": "run_id"}
    bare = "run_id"
    few = frozenset({"run_id"})
    search_help_text = OF_A_RUN

    @admin.display(description="Run")
    def of_run(self, row: Any) -> SafeString:
        """A link to the Run."""
        return shown.link("run", row.run_id)

    def get_queryset(self, request: Any) -> Any:
        """With the Run's id at hand, which is all of it that the names of rows need."""
        found = super().get_queryset(request).select_related("run")
        return found.defer(*self.payloads, *(f"run__{name}" for name in _UNUSED_OF_RUN))


_UNUSED_OF_RUN = ("input", "output", "intent", "manifest", "scopes", "error_message", "quarantine_reason")


@admin.register(RunDelivery)
class RunDeliveryAdmin(OfRunAdmin):
    """The outbox."""

    list_only = ("id", "run", "tenant", "enqueue_seq", "queue_name", "state", "publish_attempts", "created_at")
    list_display = ("title", "of_run", "queue_name", "state", "publish_attempts", "made")
    list_filter = (DeliveryStateFilter,)
    fieldsets = (
        (None, {"fields": ("of_run", "tenant", "enqueue_seq", "state", "resume", "queue_name", "priority")}),
        ("Publication", {"fields": ("made", "publish_attempts", "error_shown", "published")}),
        ("Claim", {"fields": ("claim_id", "of_boot", "claimed", "settled")}),
    )

    @admin.display(description="hop")
    def title(self, row: RunDelivery) -> str:
        """The generation."""
        return f"hop {row.enqueue_seq}"

    @admin.display(description="made")
    def made(self, row: RunDelivery) -> SafeString:
        """When the hop was recorded."""
        return shown.moment(row.created_at)

    @admin.display(description="last error")
    def error_shown(self, row: RunDelivery) -> SafeString:
        """What the broker said."""
        return shown.block(row.last_error)

    @admin.display(description="published")
    def published(self, row: RunDelivery) -> SafeString:
        """When the broker had it."""
        return shown.exact_moment(row.published_at)

    @admin.display(description="boot")
    def of_boot(self, row: RunDelivery) -> SafeString:
        """Whose claim it was."""
        return shown.link("boot", row.boot_id)

    @admin.display(description="claimed")
    def claimed(self, row: RunDelivery) -> SafeString:
        """When a Ghoul took it."""
        return shown.exact_moment(row.claimed_at)

    @admin.display(description="settled")
    def settled(self, row: RunDelivery) -> SafeString:
        """When the hop was over."""
        return shown.exact_moment(row.settled_at)


@admin.register(Step)
class StepAdmin(OfRunAdmin):
    """The evidence."""

    orders = (Order(frozenset({"run_id"}), ("seq",)), Order(frozenset(), ("id",)))
    list_only = ("id", "run", "tenant", "seq", "kind", "node", "at")
    list_display = ("title", "of_run", "kind", "node", "happened")
    list_filter = (KindFilter,)
    payloads = ("data",)
    open_payloads = ("meta",)
    fieldsets = (
        (None, {"fields": ("of_run", "tenant", "seq", "epoch", "tokens_before", "kind", "node", "happened")}),
        ("Payload", {"fields": ("data_shown", "meta_shown")}),
    )
    data_shown = shown.payload("data")
    meta_shown = shown.payload("meta")

    @admin.display(description="Step")
    def title(self, row: Step) -> str:
        """Its number in the Run."""
        return f"Step {row.seq}"

    @admin.display(description="at")
    def happened(self, row: Step) -> SafeString:
        """When it was emitted."""
        return shown.moment(row.at)


@admin.register(Checkpoint)
class CheckpointAdmin(OfRunAdmin):
    """Where unfinished Runs may return to."""

    orders = (Order(frozenset(), ("run_id",)),)
    list_only = ("run", "tenant", "enqueue_seq", "updated_at")
    list_display = ("title", "tenant", "enqueue_seq", "written")
    payloads = ("snapshots",)
    fieldsets = (
        (None, {"fields": ("of_run", "tenant", "enqueue_seq", "claim_id", "written")}),
        ("Payload", {"fields": ("snapshots_shown",)}),
    )
    snapshots_shown = shown.payload("snapshots")

    @admin.display(description="Run")
    def title(self, row: Any) -> str:
        """The Run's id."""
        return str(row.run_id)

    @admin.display(description="written")
    def written(self, row: Checkpoint) -> SafeString:
        """When it was last replaced."""
        return shown.moment(row.updated_at)


@admin.register(CheckpointArchive)
class CheckpointArchiveAdmin(OfRunAdmin):
    """Where failed and cancelled Runs stood (ruling 36)."""

    orders = (Order(frozenset(), ("run_id",)),)
    list_only = ("run", "tenant", "enqueue_seq", "archived_at")
    list_display = ("title", "tenant", "enqueue_seq", "archived")
    payloads = ("snapshots",)
    fieldsets = (
        (None, {"fields": ("of_run", "tenant", "enqueue_seq", "archived")}),
        ("Payload", {"fields": ("snapshots_shown",)}),
    )
    snapshots_shown = shown.payload("snapshots")

    @admin.display(description="Run")
    def title(self, row: Any) -> str:
        """The Run's id."""
        return str(row.run_id)

    @admin.display(description="archived")
    def archived(self, row: CheckpointArchive) -> SafeString:
        """When the Run ended."""
        return shown.moment(row.archived_at)


@admin.register(JournalEntry)
class JournalEntryAdmin(OfRunAdmin):
    """The recorded results of effects (BYD-4)."""

    list_only = ("id", "run", "tenant", "name", "visit", "occurrence", "enqueue_seq", "created_at")
    list_display = ("title", "of_run", "visit", "enqueue_seq", "recorded")
    payloads = ("result",)
    fieldsets = (
        (
            None,
            {"fields": ("of_run", "tenant", "name", "visit", "occurrence", "enqueue_seq", "args_digest", "recorded")},
        ),
        ("Payload", {"fields": ("result_shown",)}),
    )
    result_shown = shown.payload("result")

    @admin.display(description="entry")
    def title(self, row: JournalEntry) -> str:
        """Name and occurrence."""
        return f"{row.name} #{row.occurrence}"

    @admin.display(description="recorded")
    def recorded(self, row: JournalEntry) -> SafeString:
        """When the effect was over."""
        return shown.moment(row.created_at)


@admin.register(RunTombstone)
class RunTombstoneAdmin(ReadOnlyAdmin):
    """Pruned Runs, so that their keys answer and their ids stay theirs (ruling 36)."""

    qualifiers = {"id": "id"}
    few = frozenset({"id"})
    search_help_text = OF_A_RUN
    list_only = ("id", "tenant", "status", "pruned_at")
    list_display = ("id", "tenant", "state", "pruned")
    fieldsets = ((None, {"fields": ("id", "tenant", "state", "request_digest", "pruned")}),)

    @admin.display(description="status")
    def state(self, row: RunTombstone) -> str | SafeString:
        """How it had ended."""
        return shown.status(row.status) if row.status in set(RunStatus) else row.status

    @admin.display(description="pruned")
    def pruned(self, row: RunTombstone) -> SafeString:
        """When it was removed."""
        return shown.moment(row.pruned_at)
