"""The looks of recovery: pages of Runs, each by keyset, so that a pass over any number of Runs has bounded memory."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from runs.reads import UNFINISHED, Reads
from runs.returning import HOP_COLUMNS, DeadHop, dead_hop

FIRST = uuid.UUID(int=0)

_DEAD = f"""
select {HOP_COLUMNS}, d.state, d.boot_id, d.queue_name = r.queue_name and d.priority = r.priority
from runs_run r
left join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq
left join runs_checkpoint c on c.run_id = r.id
where r.status in ('running', 'awaiting_hardware') and r.road = 'vessel' and r.quarantined_at is null
"""  # noqa: S608 - a constant list of columns


@dataclass(frozen=True, slots=True)
class OnWorker:
    """A Run that a worker carries or carried. `hop` is None when its delivery does not say so too."""

    run_id: uuid.UUID
    seq: int
    queue: str
    boot_id: uuid.UUID | None
    hop: DeadHop | None
    fault: str | None


async def on_worker(reads: Reads, *, after: uuid.UUID, limit: int) -> list[OnWorker]:
    """Runs that are RUNNING or AWAITING_HARDWARE, by id."""
    rows = await reads.fetch_all(
        f"{_DEAD} and r.id > %(after)s::uuid order by r.id limit %(limit)s::int",
        {"after": str(after), "limit": limit},
    )
    return [_on_worker(found) for found in rows]


async def claimed_by(reads: Reads, boot_id: uuid.UUID, *, seconds: float, limit: int) -> list[OnWorker]:
    """Runs whose hop this boot claimed at least `seconds` ago, longest first."""
    rows = await reads.fetch_all(
        f"""{_DEAD} and d.state = 'claimed' and d.boot_id = %(boot)s::uuid
        and d.claimed_at < now() - make_interval(secs => %(age)s::float8)
        order by d.claimed_at, r.id limit %(limit)s::int""",
        {"boot": str(boot_id), "age": seconds, "limit": limit},
    )
    return [_on_worker(found) for found in rows]


def _on_worker(found: tuple[Any, ...]) -> OnWorker:
    run_id, seq, queue = found[0], found[3], found[4]
    state, boot_id, same = found[10:]
    fault = None
    if state is None:
        fault = f"There is no delivery for hop {seq}."
    elif state != "claimed":
        fault = f"It runs, and its hop {seq} is {state}."
    elif not same:
        fault = f"Queue or priority of hop {seq} differ from the Run's."
    return OnWorker(run_id, seq, queue, boot_id, dead_hop(found[:10]) if fault is None else None, fault)


@dataclass(frozen=True, slots=True)
class Cancelling:
    """A Run whose cancellation did not come to its end."""

    run_id: uuid.UUID
    by: str


async def cancelling(
    reads: Reads, *, after: uuid.UUID, limit: int, seconds: float = 0.0, quarantined: bool = False
) -> list[Cancelling]:
    """Runs that are CANCELLING since at least `seconds`, by id."""
    rows = await reads.fetch_all(
        """
        select r.id, coalesce(r.cancelled_by, 'recovery')
        from runs_run r
        where r.status = 'cancelling' and r.road = 'vessel' and (r.quarantined_at is null or %(quarantined)s::bool)
          and r.id > %(after)s::uuid and r.updated_at < now() - make_interval(secs => %(age)s::float8)
        order by r.id limit %(limit)s::int
        """,
        {"after": str(after), "limit": limit, "age": seconds, "quarantined": quarantined},
    )
    return [Cancelling(*found) for found in rows]


@dataclass(frozen=True, slots=True)
class Unproved:
    """A terminal Run whose terminal Step is missing, or says something else."""

    run_id: uuid.UUID
    status: str
    stored: str | None


async def unproved_ends(reads: Reads, *, after: uuid.UUID, limit: int) -> tuple[list[Unproved], uuid.UUID | None]:
    """Look at the next `limit` terminal Runs by id, over all there are (REC-25).

    Returns:
        Those without a terminal Step that says the same, and the last one looked at; None where there was none left.
    """
    rows = await reads.fetch_all(
        """
        with page as materialized (
            select r.id, r.status from runs_run r
            where r.id > %(after)s::uuid and r.status in ('done', 'failed', 'cancelled')
              and r.road = 'vessel' and r.quarantined_at is null
            order by r.id limit %(limit)s::int
        )
        select p.id, p.status, s.told, s.told is not distinct from p.status
        from page p
        left join lateral (
            select s.data->>'status' as told from runs_step s where s.run_id = p.id and s.kind = 'done' limit 1
        ) s on true
        where s.told is distinct from p.status or p.id = (select id from page order by id desc limit 1)
        order by p.id
        """,
        {"after": str(after), "limit": limit},
    )
    return [Unproved(*found[:3]) for found in rows if not found[3]], rows[-1][0] if rows else None


async def kept_checkpoints(
    reads: Reads, *, after: uuid.UUID, limit: int
) -> tuple[list[tuple[uuid.UUID, int]], uuid.UUID | None]:
    """Look at the next `limit` Runs by id that have a checkpoint or a journal.

    Returns:
        The terminal ones with their hop, and the last one looked at; None where there was none left.
    """
    rows = await reads.fetch_all(
        """
        with page as materialized (
            (select run_id from runs_checkpoint where run_id > %(after)s::uuid order by run_id limit %(limit)s::int)
            union
            (select distinct run_id from runs_journalentry where run_id > %(after)s::uuid
             order by run_id limit %(limit)s::int)
            order by run_id limit %(limit)s::int
        )
        select r.id, r.enqueue_seq, r.status in ('done', 'failed', 'cancelled')
        from page p
        join lateral (select r.id, r.enqueue_seq, r.status from runs_run r where r.id = p.run_id limit 1) r on true
        where r.status in ('done', 'failed', 'cancelled')
           or r.id = (select run_id from page order by run_id desc limit 1)
        order by r.id
        """,
        {"after": str(after), "limit": limit},
    )
    return [(found[0], found[1]) for found in rows if found[2]], rows[-1][0] if rows else None


async def foreign_waits(reads: Reads, kinds: list[str], limit: int) -> list[tuple[uuid.UUID, str]]:
    """Parked Runs whose kind of wait is not installed (DLG-14)."""
    return [
        (found[0], found[1])
        for found in await reads.fetch_all(
            f"""
            select r.id, r.wait_kind from runs_run r
            where r.wait_kind is not null and r.road = 'vessel' and r.quarantined_at is null
              and not (r.wait_kind = any(%(kinds)s::text[])) and r.status in ({UNFINISHED})
            limit %(limit)s::int
            """,  # noqa: S608 - a constant list of statuses
            {"kinds": kinds, "limit": limit},
        )
    ]


async def pinned_revisions(reads: Reads) -> list[tuple[str, str, str, int]]:
    """Key, revision, digest of the Patterns that unfinished Runs are pinned to, each with how many (ruling 19)."""
    return [
        (found[0], found[1], found[2], found[3])
        for found in await reads.fetch_all(
            f"""
            select r.pattern_key, r.pattern_revision, r.pattern_digest, count(*)
            from runs_run r
            where r.status in ({UNFINISHED}) and r.road = 'vessel' and r.quarantined_at is null
            group by 1, 2, 3 order by 1, 2
            """  # noqa: S608 - a constant list of statuses
        )
    ]
