"""The Pattern `inventory` as a Run: admitted, carried node by node, told live, settled with its report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from lychd.patterns import inventory
from tests.support.vessel_parts import Build

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


@pytest.fixture
def tree(tmp_path: Path, settings: Any) -> Path:
    """An allowed folder."""
    root = tmp_path / "tree"
    root.mkdir()
    settings.CONFIG = django_settings.CONFIG.model_copy(update={"roots": (root,)})
    settings.DATA = tmp_path / "data"
    return root


async def test_a_run_ends_with_the_report_of_its_folder_and_tells_its_way(build: Build, tree: Path) -> None:
    (tree / "a.txt").write_bytes(b"same")
    (tree / "sub").mkdir()
    (tree / "sub" / "b.txt").write_bytes(b"same")
    (tree / "c.bin").write_bytes(b"12345678")
    os.symlink("a.txt", tree / "link")
    parts = await build(inventory)
    run_id = await parts.carried("inventory", input={"root": "."})
    run = await parts.run(run_id)
    assert run["status"] == "done", run["error_message"]
    report = run["output"]
    assert report["root"] == str(tree)
    assert (report["files"], report["folders"], report["bytes"], report["symlinks"]) == (3, 2, 16, 1)
    assert [(one["kind"], one["files"], one["bytes"]) for one in report["by_kind"]] == [("txt", 2, 8), ("bin", 1, 8)]
    assert [one["path"] for one in report["largest"]] == ["c.bin", "a.txt", "sub/b.txt"]
    (group,) = report["duplicates"]["shown"]
    assert group["paths"] == ["a.txt", "sub/b.txt"]
    await parts.evidence.drain()
    steps = await parts.steps(run_id)
    entered = [data["phase"] for _, kind, data in steps if kind == "node"]
    assert entered == ["entered", "left"] * 3
    progress = [data for _, kind, data in steps if kind == "progress"]
    assert progress[0] == {"done": 3, "total": 3, "message": "3 files in 2 folders"}
    assert not list((tree.parent / "data" / "scratch" / "inventory").iterdir()), "the listing is left behind"
