"""What is stored of one Run, in the words of a test: status, output, nodes, Steps, journal."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from runs import reads as rows
from runs.reads import Reads, StoredStep
from runs.states import TERMINAL

_PAGE = 1000
_LONGEST_LINE = 500


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a Run failed: a stable code, a sentence, and the node."""

    code: str
    message: str
    node: str | None


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A `ctx.step` that was done and recorded, and how many attempts that took."""

    node: str
    name: str
    occurrence: int
    attempts: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What the journal holds of one `ctx.step`, to be returned when its node runs again."""

    visit: int
    name: str
    occurrence: int
    result: Any


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One Run as it is stored.

    Attributes:
        output: JSON value of the output; None unless it is done.
        error: why it failed; None unless it did.
        steps: its evidence in order; tokens are never stored.
        journal: what a Run under way would find when it ran again, by visit, name and occurrence; deleted with the
            checkpoint once a Run has ended, so empty then.
    """

    id: uuid.UUID
    pattern: str
    revision: str
    status: str
    input: Any
    output: Any
    error: RunError | None
    steps: tuple[StoredStep, ...]
    journal: tuple[JournalEntry, ...]

    @property
    def nodes(self) -> list[str]:
        """The nodes in the order in which they were entered; a node that was entered again appears again."""
        return [step.node or "" for step in self.steps if step.kind == "node" and step.data.get("phase") == "entered"]

    @property
    def logs(self) -> list[str]:
        """What the nodes said with `ctx.log`."""
        return [step.data["message"] for step in self.steps if step.kind == "log"]

    @property
    def progress(self) -> list[dict[str, Any]]:
        """What the nodes said with `ctx.progress`: `done`, `total`, `message`."""
        return self.told("progress")

    def fragments(self, name: str) -> list[Any]:
        """What the nodes published under a name with `ctx.fragment`."""
        return [data["data"] for data in self.told("fragment") if data["name"] == name]

    def told(self, kind: str) -> list[dict[str, Any]]:
        """The data of the Steps of one kind, in order."""
        return [step.data for step in self.steps if step.kind == kind]

    @property
    def done_steps(self) -> list[DoneStep]:
        """Every `ctx.step` that was done, in order; one whose result came from the journal is not done again."""
        return [
            DoneStep(step.node or "", step.data["step"], step.data["occurrence"], step.data["attempts"])
            for step in self.steps
            if step.kind == "transition" and step.data.get("phase") == "recorded"
        ]

    def story(self) -> str:
        """The Run and its Steps as text, for the message of a test that fails."""
        lines = [f"Run {self.id} of {self.pattern} {self.revision}: {self.status}"]
        if self.error is not None:
            lines.append(f"  {self.error.code} in node {self.error.node}: {self.error.message}")
        for step in self.steps:
            trace = step.data.get("trace")
            told = json.dumps({key: value for key, value in step.data.items() if key != "trace"}, ensure_ascii=False)
            shown = told if len(told) <= _LONGEST_LINE else told[:_LONGEST_LINE] + "…"
            lines.append(f"  {step.seq:>4}  {step.kind:<10}  {step.node or '':<16}  {shown}")
            if trace:
                lines.extend(f"        {line}" for line in trace.rstrip().splitlines())
        return "\n".join(lines)


async def recorded(reads: Reads, run_id: uuid.UUID) -> RunRecord:
    """Read one Run.

    Raises:
        AssertionError: there is no such Run.
    """
    row = await rows.run(reads, run_id)
    if row is None:
        raise AssertionError(f"There is no Run {run_id}.")
    steps: list[StoredStep] = []
    more = True
    while more:
        page = await rows.steps(reads, run_id, after=steps[-1].seq if steps else -1, limit=_PAGE)
        steps.extend(page.items)
        more = page.more
    visits = () if row.status in TERMINAL else sorted({step.data["visit"] for step in steps if step.kind == "node"})
    journal = [
        JournalEntry(visit, entry.name, entry.occurrence, entry.result)
        for visit in visits
        for entry in sorted(await rows.journal(reads, run_id, visit), key=lambda one: (one.name, one.occurrence))
    ]
    failed = row.error_code is not None
    return RunRecord(
        id=row.id,
        pattern=row.pattern_key,
        revision=row.pattern_revision,
        status=row.status,
        input=json.loads(row.input_json),
        output=None if row.output_json is None else json.loads(row.output_json),
        error=RunError(row.error_code or "", row.error_message or "", row.error_node) if failed else None,
        steps=tuple(steps),
        journal=tuple(journal),
    )
