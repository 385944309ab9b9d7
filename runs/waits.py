"""The port for waits: how an app lets Runs park on its own durable records, without `runs` knowing the app (ruling 24).

A kind is declared on its AppConfig (`wait_kind = "consents.wait.ConsentWait"`) and collected at composition. It brings
statements, not decisions: whether a Run may park or return is proved on the owner's row, on the same connection and in
the same transaction as the change of the Run. Lock order is always Run before owner (ruling 5).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from runs.errors import Corrupt
from runs.states import PARKED, RunStatus

if TYPE_CHECKING:
    from runs.ledger.ledger import Ledger
    from runs.ledger.script import Script
    from runs.patterns import Verdict
    from runs.reads import Reads


@dataclass(frozen=True, slots=True)
class Ask:
    """What a node asked of an owner that is to be opened; the same for the same activation of the node.

    `seq` and `claim_id` are of the hop that asks: only while they hold may the owner be written (ruling 6).
    """

    owner_id: uuid.UUID
    run_id: uuid.UUID
    tenant: str
    node: str
    visit: int
    request: Mapping[str, Any]
    pattern_key: str
    asked_by: uuid.UUID | None
    sigil_name: str
    source: str
    seq: int
    claim_id: uuid.UUID


# Where a page of answered owners begins: when the owner answered, and its id.
type Place = tuple[datetime, uuid.UUID]


@dataclass(frozen=True, slots=True)
class Pending:
    """A Run that is still parked although its owner has answered: to be resumed by the relay.

    `place` is its key in the order of `WaitKind.tick`.
    """

    run_id: uuid.UUID
    owner_id: uuid.UUID
    place: Place | None = None


class WaitKind(Protocol):
    """One way to wait.

    Attributes:
        name: the `kind` of the outcome and of `Run.wait_kind`.
        status: the parked status of its Runs.
        shown_in: the list of a snapshot in which its owners are told: consents or jobs.
        park_proof: a query with `%(owner)s` and `%(run)s` that locks the owner `for share` and returns a row exactly
            if it belongs to the Run and may still be waited for (WAIT-2, WAIT-4).
        resume_proof: likewise, exactly if the owner has answered with a whole receipt and was not cancelled (WAIT-6).
    """

    name: str
    status: RunStatus
    shown_in: str
    park_proof: str
    resume_proof: str

    def prove(self, request: Mapping[str, Any]) -> None:
        """Check what a node asks before anything is written.

        Raises:
            LychdError: it cannot be asked; the node fails with this sentence.
        """
        ...

    def open(self, ask: Ask) -> Script[bool]:
        """Write the owner, once: asked again with the same id it changes nothing (ruling 25).

        Returns:
            Whether the owner has answered already (a standing policy).

        Raises:
            LychdError: the activation asked something else before; the node fails with this sentence.
        """
        ...

    async def answer(self, reads: Reads, owner_id: uuid.UUID) -> Verdict | None:
        """What the owner says, from durable truth; None when it has not answered."""
        ...

    async def describe(self, reads: Reads, owner_id: uuid.UUID) -> dict[str, Any] | None:
        """The owner in the words of the interface, for events and snapshots."""
        ...

    async def tick(self, ledger: Ledger, reads: Reads, limit: int, after: Place | None = None) -> Iterable[Pending]:
        """One bounded look for Runs whose owner has answered; also what is due by the clock (expiry).

        Args:
            limit: most owners of the page.
            after: the place of the last owner of the page before; None: from the first.
        """
        ...

    async def is_latest(self, reads: Reads, run_id: uuid.UUID, owner_id: uuid.UUID) -> bool:
        """Whether this owner is the Run's newest of this kind and was not cancelled (REC-6, REC-8)."""
        ...

    async def strays(self, reads: Reads, limit: int) -> list[uuid.UUID]:
        """Parked Runs of this kind whose stored owner does not exist or belongs to another Run (REC-18)."""
        ...

    def contain(self, run_id: uuid.UUID, principal: str) -> Script[int]:
        """Withdraw every open owner of a Run so that none can act for it any more; returns how many (CAN-3)."""
        ...

    async def halt(self, run_id: uuid.UUID, principal: str) -> None:
        """Prove that nothing acts outside for the withdrawn owners of a Run any more; called after `contain`.

        Raises:
            Anything: it is not proved; the Run then stays unfinished and this is tried again.
        """
        ...


class WaitKinds:
    """All kinds, by name and by status.

    Raises:
        Corrupt: two kinds have one name or one status, or a kind's status is not a parked one.
    """

    def __init__(self, kinds: Iterable[WaitKind] = ()) -> None:
        self._kinds: dict[str, WaitKind] = {}
        for kind in kinds:
            if kind.status not in PARKED:
                raise Corrupt(f"The wait kind {kind.name!r} parks Runs as {kind.status!r}, which is no parked status.")
            if kind.name in self._kinds or any(kind.status == other.status for other in self._kinds.values()):
                raise Corrupt(f"Two wait kinds claim {kind.name!r} or {kind.status!r}.")
            self._kinds[kind.name] = kind

    def get(self, name: str) -> WaitKind | None:
        """The kind of that name, if it is installed."""
        return self._kinds.get(name)

    def __iter__(self) -> Any:
        return iter(self._kinds.values())

    def __len__(self) -> int:
        return len(self._kinds)
