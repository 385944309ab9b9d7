"""`gate` of `tests.support.asking`."""

from __future__ import annotations

from tests.support.asking import effects

gate, _ = effects()
