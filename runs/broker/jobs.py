"""What one hop looks like on the broker's wire, and what the rest of `runs` may know of a broker row.

A payload carries a Run id and a sequence, nothing else (CLM-1). This module opens no connection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from runs.errors import Degraded
from runs.ids import job_key
from runs.routing import wire_priority

FUNCTION = "perform_run"
# Seconds. A lane refreshes its live jobs every 30 s, so four refreshes must be lost before a job counts as stuck.
HEARTBEAT = 120
# Seconds that a terminal row stays readable; after that the key reads as absent.
TTL = 600


class MissingQueue(Degraded):
    """A queue that is needed does not exist (QUE-7, CAN-17)."""

    code, title = "missing_queue", "Missing queue"


class JobStatus(StrEnum):
    """The broker's word for a row; the last three are terminal."""

    QUEUED = "queued"
    ACTIVE = "active"
    ABORTING = "aborting"
    ABORTED = "aborted"
    FAILED = "failed"
    COMPLETE = "complete"

    @property
    def terminal(self) -> bool:
        """Whether nothing will run under this row's key any more."""
        return self in {JobStatus.ABORTED, JobStatus.FAILED, JobStatus.COMPLETE}


@dataclass(frozen=True, slots=True)
class Hop:
    """One delivery to publish; `priority` is ours (0 to 100, higher first)."""

    run_id: UUID
    seq: int
    queue: str
    priority: int

    @property
    def key(self) -> str:
        """The broker key of this hop (ADM-13)."""
        return job_key(self.run_id, self.seq)


@dataclass(frozen=True, slots=True)
class JobView:
    """A broker row as it stood when it was read.

    Attributes:
        queue: the lane that the row belongs to; keys are unique over all lanes, so compare it with the expected one.
        priority: as on the wire, lowest first.
        queued_ms, started_ms, touched_ms: milliseconds since the epoch; None where the row does not say.
        boot: the boot id of the Vessel whose worker took the row; None while nobody did (ruling 14).
        worker: the id of that worker.
        error: why it was aborted or failed.
    """

    key: str
    queue: str
    status: JobStatus
    priority: int
    queued_ms: int | None = None
    started_ms: int | None = None
    touched_ms: int | None = None
    boot: str | None = None
    worker: str | None = None
    error: str | None = None


def payload(hop: Hop) -> tuple[int, bytes]:
    """The wire priority of a hop and its job as SAQ stores it: the one place where a hop becomes a job.

    `retries` and `timeout` are 0: the ledger decides what happens again, operations keep their own deadlines (CLM-13).
    """
    priority = wire_priority(hop.priority)
    job = {
        "function": FUNCTION,
        "kwargs": {"run_id": str(hop.run_id), "seq": hop.seq},
        "queue": hop.queue,
        "key": hop.key,
        "timeout": 0,
        "heartbeat": HEARTBEAT,
        "retries": 0,
        "queued": int(time.time() * 1000),
        "status": JobStatus.QUEUED.value,
    }
    if priority:
        job["priority"] = priority
    return priority, json.dumps(job, separators=(",", ":")).encode()


def require_queue(name: str, queues: Collection[str]) -> None:
    """Raise MissingQueue unless `name` is one of `queues`."""
    if name not in queues:
        raise MissingQueue(f"There is no queue {name!r}; the queues are: {', '.join(queues) or 'none'}.", queue=name)
