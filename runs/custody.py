"""Which hops this process carries, and outcomes that could not be written: what recovery in the same boot goes by."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from runs.ledger.settle import Settlement


@dataclass(slots=True)
class Custody:
    """The claims of one boot, by claim id. Only for the event loop's thread.

    Attributes:
        outcomes: how hops ended whose end is not in the ledger yet.
    """

    outcomes: dict[uuid.UUID, Settlement] = field(default_factory=dict[uuid.UUID, Settlement])
    _asked: dict[uuid.UUID, uuid.UUID] = field(default_factory=dict[uuid.UUID, uuid.UUID])

    def ask(self, claim_id: uuid.UUID, run_id: uuid.UUID) -> None:
        """A task is about to claim a hop of this Run with this id."""
        self._asked[claim_id] = run_id

    def leave(self, claim_id: uuid.UUID) -> None:
        """The task has ended, however it did."""
        self._asked.pop(claim_id, None)

    def keep(self, settlement: Settlement) -> None:
        """An outcome that could not be written; the custody relay tries again with exactly this."""
        self.outcomes[settlement.claim_id] = settlement

    def forget(self, claim_id: uuid.UUID) -> None:
        """The hop has come to an end."""
        self.outcomes.pop(claim_id, None)

    def carried(self, claim_id: uuid.UUID) -> bool:
        """Whether a task lives that holds this claim, or is asking for it."""
        return claim_id in self._asked

    def live(self, run_id: uuid.UUID) -> bool:
        """Whether a task carries this Run, or asks for it: the claim may be committed and its answer on the way."""
        return run_id in self._asked.values()


@dataclass(slots=True)
class Drain:
    """Whether the Vessel is going down in good order: hops then stop at the next boundary they can return from."""

    asked: bool = False
