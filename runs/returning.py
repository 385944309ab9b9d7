"""What a dead hop may become: the one table of ways back (ruling 11). Looks, judges, and writes nothing.

Nothing is guessed: a Run returns only from what its checkpoint declares and its pinned manifest allows.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from runs import payloads
from runs.driver.codec import Ended as EndedPoint
from runs.driver.codec import resumable
from runs.errors import Degraded
from runs.reads import Reads
from runs.waits import WaitKind, WaitKinds


@dataclass(frozen=True, slots=True)
class DeadHop:
    """A claimed hop whose claimant is gone, as the ledger holds it. `manifest` is the pinned one."""

    run_id: uuid.UUID
    tenant: str
    pattern_key: str
    seq: int
    queue: str
    claim_id: uuid.UUID
    resume: bool
    manifest: dict[str, Any]
    snapshots: list[dict[str, Any]] | None
    next_step: int


# Of `runs_run r`, its delivery `d` and its checkpoint `c`, for `dead_hop`.
HOP_COLUMNS = """
    r.id, r.tenant, r.pattern_key, r.enqueue_seq, r.queue_name, d.claim_id, d.resume, r.manifest::text,
    c.snapshots::text, coalesce((select max(s.seq) + 1 from runs_step s where s.run_id = r.id), 0)
"""

_ONE = f"""
select {HOP_COLUMNS}
from runs_run r
join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq
left join runs_checkpoint c on c.run_id = r.id
where r.id = %(run)s::uuid and d.state = 'claimed' and d.claim_id = %(claim)s::uuid
  and r.status in ('running', 'awaiting_hardware')
"""  # noqa: S608 - a constant list of columns


def dead_hop(found: tuple[Any, ...]) -> DeadHop:
    """A row of `HOP_COLUMNS`."""
    run_id, tenant, pattern, seq, queue, claim_id, resume, manifest, snapshots, next_step = found
    return DeadHop(
        run_id=run_id,
        tenant=tenant,
        pattern_key=pattern,
        seq=seq,
        queue=queue,
        claim_id=claim_id,
        resume=resume,
        manifest=json.loads(manifest),
        snapshots=json.loads(snapshots) if snapshots is not None else None,
        next_step=next_step,
    )


@dataclass(frozen=True, slots=True)
class ToPark:
    """It had asked and was about to wait: park it on this owner."""

    kind: WaitKind
    owner_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class ToSettle:
    """Its checkpoint carries the end: settle it with that."""

    output_json: str


@dataclass(frozen=True, slots=True)
class ToReturn:
    """It stood at a node that may run again: the next hop goes on there, or starts anew."""

    resume: bool


@dataclass(frozen=True, slots=True)
class ToFail:
    """There is no declared way back."""


type Way = ToPark | ToSettle | ToReturn | ToFail


@dataclass(frozen=True, slots=True)
class Ways:
    """Judges dead hops."""

    reads: Reads
    waits: WaitKinds

    async def hop(self, run_id: uuid.UUID, claim_id: uuid.UUID) -> DeadHop | None:
        """A claimed hop as it stands; None when the claim does not hold any more."""
        found = await self.reads.fetch_one(_ONE, {"run": str(run_id), "claim": str(claim_id)})
        return dead_hop(found) if found else None

    async def of(self, hop: DeadHop) -> Way:
        """The way of one hop; the first rule that matches.

        Raises:
            Degraded: it names a kind of wait that is not installed, or the database could not be asked.
        """
        if hop.snapshots is None:
            fresh = not hop.resume and _replay_safe(hop.manifest, str(hop.manifest.get("start")))
            return ToReturn(resume=False) if fresh else ToFail()
        point = resumable(hop.snapshots)
        if point is None:
            return ToFail()
        if isinstance(point, EndedPoint):
            return ToSettle(payloads.canonical(point.output))
        wait = point.wait
        if wait is not None and _written_by(hop):
            kind = self.waits.get(str(wait["kind"]))
            if kind is None:
                raise Degraded(f"It waits for a {wait['kind']}, and that kind of wait is not installed.")
            owner = uuid.UUID(str(wait["owner"]))
            latest = await kind.is_latest(self.reads, hop.run_id, owner)
            # The node that follows must not be entered without the answer, whatever it declares.
            return ToPark(kind, owner) if latest else ToFail()
        return ToReturn(resume=True) if _replay_safe(hop.manifest, point.node) else ToFail()


def _written_by(hop: DeadHop) -> bool:
    """Whether this very hop wrote the checkpoint; one that returned from the wait only read it."""
    return any(snapshot.get("hop") == hop.seq for snapshot in hop.snapshots or [])


def _replay_safe(manifest: dict[str, Any], name: str) -> bool:
    return any(node.get("name") == name and node.get("replay_safe") is True for node in manifest.get("nodes", []))
