"""The fixtures of the product's own test kit; loaded with `pytest_plugins`. The database is chosen by `plugin`."""

from __future__ import annotations

from lychd.testing.plugin import eventually, submit, vessel, vessel_patterns, vessel_settings

__all__ = ["eventually", "submit", "vessel", "vessel_patterns", "vessel_settings"]
