"""The Pattern `reclaim` as a Run: inventory, question, answer, and files that move or stay; and back again."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from consents.decisions import DECIDE, Decided, Vote, Voter, decide
from consents.wait import ConsentWait
from lychd.patterns import reclaim
from runs.ids import owner_id
from runs.ledger.ledger import ScriptFactory
from tests.support.reclaiming import Job, contents
from tests.support.reclaiming import files as everything
from tests.support.vessel_parts import Build, Parts

pytest_plugins = ["tests.support.vessel_parts_fixtures"]

KIND = ConsentWait()
INSERT_USER = (
    "insert into sigils_user (id, username, password, is_superuser, is_staff, is_active, first_name, last_name,"
    " email, date_joined) values (%s, 'anna', '!', false, true, true, '', '', '', now()) on conflict do nothing"
)
ANNA = uuid.UUID("0197a000-0000-7000-8000-000000000001")


@pytest.fixture
def tree(tmp_path: Path, settings: Any) -> Path:
    """An allowed folder with two groups of duplicates and a file without a copy."""
    root = tmp_path / "tree"
    (root / "sub" / "deep").mkdir(parents=True)
    settings.CONFIG = django_settings.CONFIG.model_copy(update={"roots": (root,)})
    settings.DATA = tmp_path / "data"
    _write(root / "a.bin", b"A" * 50_000, 1)
    _write(root / "sub" / "a copy.bin", b"A" * 50_000, 2)
    _write(root / "sub" / "deep" / "a.bin", b"A" * 50_000, 3)
    _write(root / "note.txt", b"note", 1)
    _write(root / "sub" / "note.txt", b"note", 2)
    _write(root / "alone", b"alone", 1)
    return root


@pytest.fixture
async def parts(build: Build) -> Parts:
    return await build(reclaim, waits=(KIND,))


async def test_on_yes_all_copies_but_one_move_and_the_question_has_shown_them(parts: Parts, tree: Path) -> None:
    before = everything(tree)
    run_id = await asked(parts)
    question = await the_question(parts, run_id)
    assert everything(tree) == before, "something moved before anybody said yes"
    assert question["title"] == "Move 3 files (100.0 kB) into a quarantine"
    facts = question["facts"]
    assert (facts["folder"], facts["files"], facts["bytes"], facts["groups"]) == (str(tree), 3, 100_004, 2)
    assert facts["largest"] == [
        {"file": "sub/a copy.bin", "bytes": 50_000, "stays": "a.bin"},
        {"file": "sub/deep/a.bin", "bytes": 50_000, "stays": "a.bin"},
        {"file": "sub/note.txt", "bytes": 4, "stays": "note.txt"},
    ]
    assert facts["not_shown"] == 0
    assert question["effect"]["plan"] == facts["plan_sha256"]
    report = await answered(parts, run_id)
    assert (report["ending"], report["moved"], report["bytes"]) == ("moved", 3, 100_004)
    assert (report["left_alone"], report["decided_by"], report["comment"]) == ([], "anna", "go on")
    assert report["quarantine"] == str(quarantine(tree, run_id))
    assert everything(tree) == {"a.bin": b"A" * 50_000, "note.txt": b"note", "alone": b"alone"}
    kept = everything(quarantine(tree, run_id) / "files")
    assert kept == {name: before[name] for name in ("sub/a copy.bin", "sub/deep/a.bin", "sub/note.txt")}


async def test_on_no_nothing_is_touched_and_no_quarantine_is_left(parts: Parts, tree: Path) -> None:
    before = everything(tree)
    run_id = await asked(parts)
    report = await answered(parts, run_id, grant=False)
    assert (report["ending"], report["moved"], report["proposed"], report["quarantine"]) == ("denied", 0, 3, None)
    assert everything(tree) == before
    assert not quarantine(tree, run_id).exists()


async def test_no_answer_in_time_is_a_no(parts: Parts, tree: Path) -> None:
    before = everything(tree)
    run_id = await asked(parts, answer_within=5)
    await parts.rows("update consents_consent set expires_at = now() - interval '1 second' where run_id = %s", run_id)
    for pending in await KIND.tick(parts.ledger, parts.reads, 10):
        await parts.engine.resume(KIND, pending.run_id, pending.owner_id)
    await parts.perform(run_id, 1)
    report = (await parts.run(run_id))["output"]
    assert (report["ending"], report["moved"]) == ("expired", 0)
    assert everything(tree) == before


async def test_a_run_goes_on_where_a_process_died_in_the_middle_of_its_moves(parts: Parts, tree: Path) -> None:
    before = contents(tree)
    run_id = await asked(parts)
    await decided(parts, run_id)
    # What processes did of the node that died in it, until the first file had moved.
    deaths = 0
    while not everything(quarantine(tree, run_id) / "files"):
        assert Job(tree, tree.parent / "data", run_id).until(deaths := deaths + 1)
    assert len(everything(quarantine(tree, run_id) / "files")) < 3
    await parts.perform(run_id, 1)
    report = (await parts.run(run_id))["output"]
    assert (report["ending"], report["moved"], report["bytes"]) == ("moved", 3, 100_004)
    assert contents(tree, quarantine(tree, run_id) / "files") == before


async def test_a_file_that_changed_since_the_question_is_left_alone_and_named(parts: Parts, tree: Path) -> None:
    run_id = await asked(parts)
    (tree / "sub" / "a copy.bin").write_bytes(b"B" * 50_000)
    report = await answered(parts, run_id)
    assert (report["moved"], report["left_alone_total"]) == (2, 1)
    assert report["left_alone"] == [
        {"path": "sub/a copy.bin", "reason": "it changed since the question was asked"},
    ]
    assert (tree / "sub" / "a copy.bin").read_bytes() == b"B" * 50_000


async def test_a_plan_that_is_not_the_approved_one_is_not_carried_out(parts: Parts, tree: Path) -> None:
    run_id = await asked(parts)
    plan = quarantine(tree, run_id) / "plan.jsonl"
    lines = plan.read_text().splitlines()
    last = json.loads(lines[-1])
    last["keep"], last["move"][0][0] = last["move"][0][0], last["keep"]
    plan.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    before = everything(tree)
    await answered(parts, run_id)
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"]) == ("failed", "effect_changed")
    assert everything(tree) == before


async def test_restore_asks_and_puts_back_without_overwriting(parts: Parts, tree: Path) -> None:
    before = everything(tree)
    moved = await asked(parts)
    await answered(parts, moved)
    (tree / "sub" / "note.txt").write_bytes(b"new")
    run_id = await parts.submit("reclaim", input={"restore": str(moved)})
    assert (await parts.perform(run_id))["outcome"] == "awaiting_consent"
    question = await the_question(parts, run_id)
    assert question["title"] == "Put 3 files (100.0 kB) back from a quarantine"
    report = await answered(parts, run_id)
    assert (report["ending"], report["moved"], report["bytes"]) == ("put_back", 2, 100_000)
    assert [one["path"] for one in report["left_alone"]] == ["sub/note.txt"]
    assert everything(tree) == before | {"sub/note.txt": b"new"}
    assert everything(quarantine(tree, moved) / "files") == {"sub/note.txt": b"note"}


async def test_restore_of_another_tenant_or_of_nothing_finds_no_quarantine(parts: Parts, tree: Path) -> None:
    moved = await asked(parts)
    await answered(parts, moved)
    plan = quarantine(tree, moved) / "plan.jsonl"
    plan.write_text(plan.read_text().replace('"tenant":"default"', '"tenant":"other"'))
    for wanted in (moved, uuid.uuid4()):
        run_id = await parts.carried("reclaim", input={"restore": str(wanted)})
        run = await parts.run(run_id)
        assert (run["status"], run["error_code"]) == ("failed", "quarantine_missing")


async def test_without_duplicates_nobody_is_asked(parts: Parts, tree: Path) -> None:
    run_id = await parts.carried("reclaim", input={"root": ".", "smallest": 1_000_000})
    run = await parts.run(run_id)
    assert (run["status"], run["output"]["ending"]) == ("done", "nothing_to_do")
    assert run["output"]["surveyed"]["groups"] == 2
    assert not quarantine(tree, run_id).exists()


async def test_the_vessels_own_data_is_never_a_folder_to_reclaim(parts: Parts, tree: Path, settings: Any) -> None:
    settings.DATA = tree
    run_id = await parts.carried("reclaim", input={"root": "sub"})
    run = await parts.run(run_id)
    assert (run["status"], run["error_code"]) == ("failed", "own_data")


async def test_progress_is_told_while_files_move(parts: Parts, tree: Path) -> None:
    run_id = await asked(parts)
    await answered(parts, run_id)
    await parts.evidence.drain()
    told = [data for _, kind, data in await parts.steps(run_id) if kind == "progress"]
    assert told[-1] == {"done": 3, "total": 3, "message": "3 files, 100,004 bytes moved"}


async def asked(parts: Parts, **given: Any) -> uuid.UUID:
    """A Run that waits for an answer."""
    run_id = await parts.submit("reclaim", input={"root": "."} | given)
    assert (await parts.perform(run_id))["outcome"] == "awaiting_consent", (await parts.run(run_id))["error_message"]
    return run_id


async def the_question(parts: Parts, run_id: uuid.UUID) -> Any:
    (found,) = await parts.rows("select * from consents_consent where run_id = %s", run_id)
    return found


async def decided(parts: Parts, run_id: uuid.UUID, *, grant: bool = True) -> None:
    """Anna answers, and the Run is brought back."""
    question = await the_question(parts, run_id)
    await parts.rows(INSERT_USER, ANNA)
    anna = Voter(ANNA, "anna", frozenset({"default"}), frozenset({DECIDE}), frozenset())
    outcome = await parts.ledger.script(
        ScriptFactory(decide, anna, Vote(question["id"], grant, "rest", comment="go on"))
    )
    assert isinstance(outcome, Decided)
    assert question["id"] == owner_id(run_id, question["visit"], "consent")
    assert await parts.engine.resume(KIND, run_id, question["id"])


async def answered(parts: Parts, run_id: uuid.UUID, *, grant: bool = True) -> Any:
    """Anna answers, the Run returns and ends; its output."""
    await decided(parts, run_id, grant=grant)
    await parts.perform(run_id, 1)
    return (await parts.run(run_id))["output"]


def quarantine(tree: Path, run_id: uuid.UUID) -> Path:
    return tree.parent / "data" / "quarantine" / str(run_id)


def _write(path: Path, content: bytes, age: int) -> None:
    path.write_bytes(content)
    os.utime(path, (age, age))
