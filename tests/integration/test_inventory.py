"""The Pattern `inventory` as a Run: admitted, carried node by node, told live, settled with its report."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from lychd.patterns import folder_inventory, inventory
from runs.errors import Invalid
from tests.support.vessel_parts import Build, cancelled
from tests.support.waiting import eventually

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
    assert scratch_files(tree) == [], "the listing is left behind"


async def test_a_root_outside_fails_the_run_with_a_sentence_that_names_what_is_allowed(
    build: Build, tree: Path
) -> None:
    parts = await build(inventory)
    run_id = await parts.carried("inventory", input={"root": ".."})
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"], run["error_node"]) == ("failed", "root_not_allowed", "scan")
    assert str(tree) in run["error_message"]


@pytest.mark.parametrize(
    "value",
    [
        {"root": ""},
        {"root": "a\0b"},
        {"root": "x" * 5000},
        {"root": 3},
        {"largest": 101},
        {"duplicates": -1},
        {"r": "."},
    ],
)
async def test_input_that_makes_no_sense_is_refused_at_admission(build: Build, tree: Path, value: Any) -> None:
    parts = await build(inventory)
    with pytest.raises(Invalid):
        await parts.submit("inventory", input=value)
    assert await parts.runs_stored() == 0


async def test_a_cancelled_run_stops_in_the_middle_of_a_large_file_and_leaves_nothing(build: Build, tree: Path) -> None:
    for name in ("a", "b"):
        (tree / name).touch()
        os.truncate(tree / name, 1 << 40)
    parts = await build(inventory)
    run_id = await parts.submit("inventory", input={})
    task = asyncio.create_task(parts.perform(run_id))

    async def comparing() -> bool:
        return any(
            kind == "progress" and "whole files" in data["message"] for _, kind, data in await parts.steps(run_id)
        )

    await eventually(comparing, 20)
    task.cancel()
    await cancelled(task)
    assert parts.threads.live == 0
    assert scratch_files(tree) == []


async def test_the_loop_is_free_while_the_threads_work(build: Build, tree: Path) -> None:
    for name in ("a", "b"):
        (tree / name).touch()
        os.truncate(tree / name, 1 << 40)
    parts = await build(inventory)
    large = asyncio.create_task(parts.carried("inventory", input={}))
    (tree / "small").mkdir()
    await eventually(lambda: parts.threads.live == 1)
    run_id = await parts.carried("inventory", input={"root": "small"})
    assert (await parts.run(run_id))["status"] == "done"
    assert not large.done()
    large.cancel()
    await cancelled(large)


@pytest.mark.parametrize("half", ["_survey", "_compare_listed"])
async def test_each_half_of_the_work_waits_in_a_thread_for_what_the_loop_does(
    build: Build, tree: Path, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    real = getattr(folder_inventory, half)
    reached, released = threading.Event(), threading.Event()

    def waiting(*args: Any) -> Any:
        reached.set()
        assert released.wait(10), "the loop does not turn"
        return real(*args)

    monkeypatch.setattr(folder_inventory, half, waiting)
    parts = await build(inventory)
    task = asyncio.create_task(parts.carried("inventory", input={}))
    await eventually(reached.is_set)
    released.set()
    assert (await parts.run(await task))["status"] == "done"


async def test_a_run_that_lost_its_listing_between_the_nodes_takes_the_walk_again(
    build: Build, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "a").write_bytes(b"same")
    (tree / "b").write_bytes(b"same")
    parts = await build(inventory)

    async def lose(place: str) -> None:
        if place == "drive.checkpointed":
            for listing in scratch_folder(tree).iterdir():
                listing.unlink()

    monkeypatch.setattr("runs.driver.drive.seam", lose)
    run_id = await parts.carried("inventory", input={})
    run = await parts.run(run_id)
    assert run["status"] == "done", run["error_message"]
    assert run["output"]["duplicates"]["groups"] == 1


async def test_a_report_of_the_longest_names_fits_into_a_run(build: Build, tree: Path) -> None:
    for group in range(110):
        for copy in range(9):
            # Line ends are told by escapes, which take more room than any other name.
            (tree / ("\n" * 240 + f"{group:03}.{copy}")).write_bytes(b"%03d" % group)
    parts = await build(inventory)
    run_id = await parts.carried("inventory", input={"largest": 100, "duplicates": 100})
    run = await parts.run(run_id)
    assert run["status"] == "done", run["error_message"]
    assert len(run["output"]["duplicates"]["shown"]) == 100
    assert run["output"]["duplicates"]["groups"] == 110


def scratch_folder(tree: Path) -> Path:
    return tree.parent / "data" / "scratch" / "inventory"


def scratch_files(tree: Path) -> list[str]:
    return [path.name for path in scratch_folder(tree).iterdir()]
