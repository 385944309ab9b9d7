"""Identities: which are minted freely, which are derived, and from what.

An id is never authority: knowing one opens nothing.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import NewType

RunId = NewType("RunId", uuid.UUID)

# Fixed for ever: a derived id must be the same in every version of the product.
_RUNS = uuid.UUID("6f2a3f0e-7d0e-5d1c-9b52-2b3b9d1f6a01")
_EFFECTS = uuid.UUID("6f2a3f0e-7d0e-5d1c-9b52-2b3b9d1f6a02")


def mint() -> uuid.UUID:
    """A new time-ordered id (UUID 7)."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


def keyed_run_id(tenant: str, sigil: str, surface: str, key: str) -> uuid.UUID:
    """The Run id that belongs to an idempotency key (UUID 5), scoped by tenant, Sigil and surface (ADM-20)."""
    return uuid.uuid5(_RUNS, json.dumps([tenant, sigil, surface, key], ensure_ascii=True, separators=(",", ":")))


def effect_key(run_id: uuid.UUID, visit: int, name: str, occurrence: int) -> uuid.UUID:
    """The stable key of one effect: the same after every replay of the same activation of a node (BYD-4)."""
    return uuid.uuid5(_EFFECTS, json.dumps([str(run_id), visit, name, occurrence], separators=(",", ":")))


def owner_id(run_id: uuid.UUID, visit: int, kind: str) -> uuid.UUID:
    """The id of the record that one activation of a node waits for: asked again, it is the same (ruling 25)."""
    return uuid.uuid5(_EFFECTS, json.dumps([str(run_id), visit, "wait", kind], separators=(",", ":")))


def job_key(run_id: uuid.UUID, enqueue_seq: int) -> str:
    """The broker key of one hop (ADM-13)."""
    return f"run:{run_id}:{enqueue_seq}"


def run_of(key: str) -> uuid.UUID | None:
    """The Run of a broker key; None when it is not one of `job_key`."""
    parts = key.split(":")
    try:
        return uuid.UUID(parts[1]) if len(parts) == 3 else None
    except ValueError:
        return None
