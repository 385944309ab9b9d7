"""Which code lives where: only the ledger writes Runs, only known owners start tasks, long modules say why.

Read from the source, so that a new module is held to it without being listed anywhere.
"""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("lychd", "runs", "consents", "delegation", "servicejobs")
MOST_LINES = 300

TABLES = (
    "run|rundelivery|step|checkpoint|checkpointarchive|journalentry|session|sessionturn|boot|vesselslot|runtombstone"
)
WRITING_SQL = re.compile(
    rf'\b(?:insert\s+into|update|delete\s+from|merge\s+into|truncate(?:\s+table)?)\s+(?:only\s+)?"?runs_(?:{TABLES})\b',
    re.IGNORECASE,
)
WRITING_CALLS = {
    f"{prefix}{name}"
    for prefix in ("", "a")
    for name in (
        "save",
        "create",
        "update",
        "delete",
        "bulk_create",
        "bulk_update",
        "get_or_create",
        "update_or_create",
    )
}
RUN_FIELDS = {"status", "enqueue_seq", "wait_kind", "wait_owner", "quarantined_at", "finished_at"}

# Every task has an owner that joins it. Who starts one outside a TaskGroup says here who that is.
TASKS = {
    "lychd/cli/answering.py": "the question at the terminal; following takes it back and joins it",
    "lychd/hosting/lifespan.py": "the application's lifespan; `abandon` joins it",
    "lychd/hosting/server.py": "one task a connection and the drain of all; the server's stop joins them",
    "lychd/postgres/guard.py": "watches the guard's connection; the guard's close joins it",
    "lychd/vessel.py": "the startup, so that a signal can cancel it; the host joins it",
    "lychd/web/handlers.py": "answer and the watch for a client that leaves; both joined before the request ends",
    "lychd/wiring.py": "one look-up of authority that several claims wait for; every waiter joins it",
    "runs/broker/lanes.py": "workers and their stops; `stop` joins them",
    "runs/broker/publish.py": "the one sender of queued publications; `close` joins it",
    "runs/broker/queue.py": "SAQ's helpers of a lane; the queue's disconnect joins them",
    "runs/broker/worker.py": "upkeep of a worker; SAQ's own stop cancels and joins it",
    "runs/cancellation.py": "one cancellation a Run, nobody's child; the Vessel's stop joins them",
    "runs/events/evidence.py": "the writer of Steps; its stop drains and joins it",
    "runs/events/repair.py": "one repair a Run; its stop joins them",
    "runs/consumers.py": "sending and the watch for a client that leaves; both joined before the socket closes",
    "runs/ledger/coalescer.py": "the statement in flight of an edge; `close` joins it",
    "runs/ledger/ledger.py": "what must complete although its caller is cancelled; `close` joins it",
    "runs/relays/supervisor.py": "the loops of the relays; `stop` joins them",
    "runs/sse.py": "the watch for the Vessel's stop; cancelled when the stream is closed",
    "runs/stream/feed.py": "the follower of one tenant's changes; ends with its last reader",
    "runs/shielding.py": "what must complete despite cancellation; joined before the cancellation goes on",
}

LONG = {
    "lychd/dashboard/drawing.py": "one layout, from layers to lines",
    "lychd/dashboard/fields.py": "one rule, how a schema becomes fields and fields become a value",
    "lychd/lifespan.py": "the order of start and stop reads as one page",
    "runs/driver/drive.py": "the node loop with every way out of a node",
    "runs/engine.py": "the order of ledger, events and broker for every public act",
    "runs/events/bus.py": "one data structure under one discipline of locking",
    "runs/events/evidence.py": "one writer: its batches, latches and retries lean on each other",
    "runs/patterns/pattern.py": "the whole of what an author touches",
    "runs/ghoul.py": "every way out of a claimed hop, side by side",
    "runs/payloads.py": "one rule, what a JSON value may hold, with its fast and its careful road",
    "runs/reads.py": "all SQL that reads, to be reviewed in one place",
}


@cache
def sources() -> dict[str, str]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted(found)
        if "migrations" not in path.parts and "__pycache__" not in path.parts
    }


def outside_the_ledger() -> Iterator[tuple[str, ast.Module]]:
    for name, text in sources().items():
        if not name.startswith("runs/ledger/"):
            yield name, ast.parse(text)


def breaches(judge: Callable[[ast.Module], Iterator[ast.AST]]) -> list[str]:
    return [f"{name}:{getattr(node, 'lineno', 0)}" for name, tree in outside_the_ledger() for node in judge(tree)]


def sql_that_writes(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and WRITING_SQL.search(node.value):
            yield node


def models_of(tree: ast.Module) -> set[str]:
    """The names under which a module knows the substrate's models."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("runs.models"):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "runs":
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "models"}
        elif isinstance(node, ast.Import):
            names |= {"runs" for alias in node.names if alias.name.startswith("runs.models")}
    return names


def orm_that_writes(tree: ast.Module) -> Iterator[ast.AST]:
    knows = models_of(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "get_model" and any(
            isinstance(word, ast.Constant) and str(word.value).split(".")[0] == "runs" for word in node.args
        ):
            yield node
        if knows and node.func.attr in WRITING_CALLS:
            yield node


def fields_that_are_set(tree: ast.Module) -> Iterator[ast.AST]:
    """`something.status = …`, unless it is an object's own attribute; and the same by `setattr`."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
            if isinstance(target, ast.Attribute) and target.attr in RUN_FIELDS and not own:
                yield node
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "setattr"
            and len(node.args) == 3
            and isinstance(node.args[1], ast.Constant)
            and node.args[1].value in RUN_FIELDS
        ):
            yield node


def tasks_that_are_started(tree: ast.Module) -> Iterator[ast.AST]:
    groups = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and "TaskGroup" in ast.dump(item.context_expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        structured = isinstance(owner, ast.Name) and owner.id in groups
        if name in {"create_task", "ensure_future"} and not structured:
            yield node


@pytest.mark.parametrize("judge", [sql_that_writes, orm_that_writes, fields_that_are_set])
def test_only_the_ledger_writes_the_truth_of_a_run(judge: Callable[[ast.Module], Iterator[ast.AST]]) -> None:
    assert breaches(judge) == []


def test_tasks_outside_a_task_group_have_an_owner_that_is_named_here() -> None:
    starts = {name for name, text in sources().items() if any(tasks_that_are_started(ast.parse(text)))}
    assert sorted(starts - set(TASKS)) == [], "name the owner that joins the task, or use a TaskGroup"
    assert sorted(set(TASKS) & set(sources()) - starts) == [], "they start no task any more"


def test_the_drawn_pages_of_the_reference_are_as_the_code_is() -> None:
    drawing = runpy.run_path(str(ROOT / "docs" / "generate.py"), run_name="generate")
    for name, write in drawing["PAGES"].items():
        assert (ROOT / "docs" / name).read_text() == write(), f"run: python docs/generate.py, then commit docs/{name}"


def test_long_modules_say_why() -> None:
    lines = {name: text.count("\n") for name, text in sources().items()}
    assert sorted(name for name, count in lines.items() if count > MOST_LINES and name not in LONG) == []
    assert sorted(set(LONG) - set(lines)) == [], "they are gone"


@pytest.mark.parametrize(
    ("judge", "text"),
    [
        (sql_that_writes, 'X = """\nUpdate\n  runs_run r set status = 1"""'),
        (sql_that_writes, "X = f'insert into runs_step ({columns})'"),
        (sql_that_writes, "X = 'delete from only \"runs_run\"'"),
        (orm_that_writes, "from runs.models import Run\nRun.objects.filter(pk=1).update(status='done')"),
        (orm_that_writes, "from runs.models.run import Run\nasync def f(run):\n    await run.asave()"),
        (orm_that_writes, "from django.apps import apps\napps.get_model('runs.Run')"),
        (fields_that_are_set, "run.status = 'done'"),
        (fields_that_are_set, "setattr(run, 'status', 'done')"),
        (tasks_that_are_started, "import asyncio\nasyncio.get_running_loop().create_task(f())"),
        (tasks_that_are_started, "from asyncio import create_task\ncreate_task(f())"),
    ],
)
def test_a_breach_would_be_seen(judge: Callable[[ast.Module], Iterator[ast.AST]], text: str) -> None:
    assert len(list(judge(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    ("judge", "text"),
    [
        (sql_that_writes, "X = 'select * from runs_run for no key update'"),
        (sql_that_writes, "X = 'the update of runs is the ledger\\'s'"),
        (orm_that_writes, "facts = {}\nfacts.update(a=1)"),
        (fields_that_are_set, "class A:\n    def f(self):\n        self.status = 1"),
        (
            tasks_that_are_started,
            "async def f():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(g())",
        ),
    ],
)
def test_what_is_allowed_is_left_alone(judge: Callable[[ast.Module], Iterator[ast.AST]], text: str) -> None:
    assert list(judge(ast.parse(text))) == []
