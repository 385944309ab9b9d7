"""What a returning Run needs before its node is entered: its place, what was recorded, what was answered.

Read from durable truth alone. A database that is away is asked again, as the ledger does: that nobody answered for a
while says nothing about the Run.
"""

from __future__ import annotations

import uuid
from typing import Any

from runs import reads as rows
from runs.connections import patiently
from runs.driver.codec import Ended, Resumable, resumable
from runs.driver.steps import Entry, Hop
from runs.errors import NodeFailed
from runs.ledger.claim import Claimed
from runs.patterns import Verdict
from runs.waits import WaitKinds


class StasisLost(NodeFailed):
    """The Run was to return from a checkpoint, and there is none that can be used."""

    code, title = "stasis_lost", "Stasis lost"


def place_of(claimed: Claimed) -> Resumable | Ended:
    """Where the checkpoint says that the Run goes on.

    Raises:
        StasisLost: there is no checkpoint, or it says nothing that can be done (CLM-10).
    """
    if claimed.snapshots is None:
        raise StasisLost("The Run was to return from a checkpoint, and there is none.")
    point = resumable(claimed.snapshots)
    if point is None:
        raise StasisLost("The Run was to return from a checkpoint, and it names no node to return to.")
    return point


async def journal(reads: rows.Reads, hop: Hop, visit: int) -> dict[tuple[str, int], Entry]:
    """The steps that were recorded in an earlier activation of the same visit.

    Raises:
        Unknown: the database stayed away.
    """
    found = await patiently(lambda: rows.journal(reads, hop.run_id, visit))
    return {(row.name, row.occurrence): Entry(row.args_digest, row.result) for row in found}


async def answer(reads: rows.Reads, waits: WaitKinds, point: Resumable) -> tuple[Verdict | None, dict[str, Any] | None]:
    """The durable answer to the wait that the checkpoint names; never what a message said of it (WAIT-9).

    Returns:
        The verdict, and for those who follow the `kind` and the `owner` in the words of the interface; None, None when
        the Run did not wait.

    Raises:
        StasisLost: the kind is not installed, or the owner has not answered.
        Unknown: the database stayed away.
    """
    if point.wait is None:
        return None, None
    kind = waits.get(point.wait["kind"])
    if kind is None:
        raise StasisLost(f"The Run waited for a {point.wait['kind']}, and that kind of wait is not installed.")
    owner = uuid.UUID(point.wait["owner"])
    found = await patiently(lambda: kind.answer(reads, owner))
    if found is None:
        raise StasisLost("The Run returned from a wait whose owner has not answered.")
    told = await patiently(lambda: kind.describe(reads, owner))
    return found, {"kind": kind.name, "owner": told or {"id": str(owner)}}
