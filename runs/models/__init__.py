"""The tables. Rows are read anywhere and written only by `runs.ledger` (a test holds that)."""

from runs.models.boot import Boot, VesselSlot
from runs.models.checkpoint import Checkpoint, CheckpointArchive, JournalEntry
from runs.models.delivery import RunDelivery
from runs.models.run import Run, RunTombstone
from runs.models.session import Session, SessionTurn
from runs.models.step import Step

__all__ = [
    "Boot",
    "Checkpoint",
    "CheckpointArchive",
    "JournalEntry",
    "Run",
    "RunDelivery",
    "RunTombstone",
    "Session",
    "SessionTurn",
    "Step",
    "VesselSlot",
]
