"""Boots: the record of each life of a Vessel, and the single slot that says which one may write (BYD-1, ruling 13)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from runs.ledger.script import Script, Statement


@dataclass(frozen=True, slots=True)
class BootRecord:
    """What a Vessel says of itself when it starts."""

    id: uuid.UUID
    host: str
    pid: int
    profile: str
    version: str


@dataclass(frozen=True, slots=True)
class Holder:
    """The Vessel that holds the slot."""

    boot_id: uuid.UUID
    host: str
    pid: int
    since: datetime


INSERT_BOOT = """
insert into runs_boot (id, host, pid, profile, version, url, started_at, report)
values (%(id)s::uuid, %(host)s::text, %(pid)s::int, %(profile)s::text, %(version)s::text, '', now(), '{}'::jsonb)
returning started_at
"""

TAKE_SLOT = """
insert into runs_vesselslot (id, boot_id, taken_at) values (1, %(id)s::uuid, now())
on conflict (id) do update set boot_id = excluded.boot_id, taken_at = excluded.taken_at
returning boot_id
"""

HOLDER = """
select b.id, b.host, b.pid, b.started_at from runs_vesselslot v join runs_boot b on b.id = v.boot_id
"""

MARK_READY = """
update runs_boot set ready_at = now(), url = %(url)s::text, report = %(report)s::jsonb
where id = %(id)s::uuid returning id
"""

MARK_REFUSED = """
update runs_boot set report = %(report)s::jsonb, ended_at = now(), end_reason = %(reason)s::text
where id = %(id)s::uuid returning id
"""

MARK_ENDED = """
update runs_boot set ended_at = now(), end_reason = %(reason)s::text
where id = %(id)s::uuid and ended_at is null returning id
"""


def take(record: BootRecord) -> Script[datetime]:
    """Write the boot and make it the one that may write. Only for who holds the guard's lock.

    Returns:
        The start time by the database's clock.
    """
    params = {
        "id": str(record.id),
        "host": record.host,
        "pid": record.pid,
        "profile": record.profile,
        "version": record.version,
    }
    rows = yield Statement(INSERT_BOOT, params)
    yield Statement(TAKE_SLOT, params)
    return rows[0][0]


def ready(boot_id: uuid.UUID, url: str, report_json: str) -> Script[None]:
    """Note that the boot serves at `url`, with the report of its recovery."""
    yield Statement(MARK_READY, {"id": str(boot_id), "url": url, "report": report_json})


def ended(boot_id: uuid.UUID, reason: str) -> Script[None]:
    """Note the end of a boot and why."""
    yield Statement(MARK_ENDED, {"id": str(boot_id), "reason": reason})


def refused(boot_id: uuid.UUID, report_json: str, reason: str) -> Script[None]:
    """Note that the boot was ended by its own recovery, with the report (REC-19)."""
    yield Statement(MARK_REFUSED, {"id": str(boot_id), "report": report_json, "reason": reason[:500]})
