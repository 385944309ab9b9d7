"""The digest of a manifest as it is stored on a Run, computed once for each text that occurs."""

from __future__ import annotations

from functools import lru_cache

from runs import payloads
from runs.errors import LychdError
from runs.patterns import Manifest


@lru_cache(maxsize=256)
def pinned_digest(manifest_json: str) -> str | None:
    """The digest over the stored manifest; None when it is no manifest at all."""
    try:
        return Manifest.from_json(payloads.parse(manifest_json)).digest
    except LychdError:
        return None
