"""A folder for `inventory` to look at; loaded with `pytest_plugins`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from tests.support.inventory import Place


@pytest.fixture
def place(settings: Any) -> Iterator[Place]:
    """An empty allowed folder that other users may enter, unlike pytest's own."""
    base = Path(tempfile.mkdtemp(prefix="lychd-inventory-")).resolve()
    try:
        for folder in (base, base / "tree", base / "data"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        settings.CONFIG = django_settings.CONFIG.model_copy(update={"roots": (base / "tree",)})
        settings.DATA = base / "data"
        yield Place(base / "tree", base / "data")
    finally:
        shutil.rmtree(base)
