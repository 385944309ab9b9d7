"""What lies here is a project of its own; `tests/e2e/test_foreign_project.py` runs its tests as such."""

from __future__ import annotations

collect_ignore = ["wordcount"]
