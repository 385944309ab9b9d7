"""The admin's pages of the substrate. They show and never write: only `runs.ledger` does."""

from runs.admin.boot import BootAdmin, VesselSlotAdmin
from runs.admin.evidence import (
    CheckpointAdmin,
    CheckpointArchiveAdmin,
    JournalEntryAdmin,
    RunDeliveryAdmin,
    RunTombstoneAdmin,
    StepAdmin,
)
from runs.admin.run import RunAdmin
from runs.admin.session import SessionAdmin, SessionTurnAdmin

__all__ = [
    "BootAdmin",
    "CheckpointAdmin",
    "CheckpointArchiveAdmin",
    "JournalEntryAdmin",
    "RunAdmin",
    "RunDeliveryAdmin",
    "RunTombstoneAdmin",
    "SessionAdmin",
    "SessionTurnAdmin",
    "StepAdmin",
    "VesselSlotAdmin",
]
