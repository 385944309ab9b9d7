# ruff: noqa: INP001 - a script, no package
"""Writes the pages of the reference that are drawn from the code: `python docs/generate.py`.

A test compares each page with what this would write, so none can go stale.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from pydantic import AliasChoices  # noqa: E402

from lychd.config import Config  # noqa: E402
from runs.errors import LychdError  # noqa: E402
from runs.states import (  # noqa: E402 - runnable from a clone without installing it
    EDGES,
    ON_WORKER,
    PARKED,
    TERMINAL,
    WAITS,
    WORDS,
    DeliveryState,
    Edge,
    RunStatus,
)

MARK = "<!-- Written by docs/generate.py from the code; changes made here are lost. -->"

_DELIVERY = {
    DeliveryState.HELD: "recorded, but the session's turn is not; nothing publishes it",
    DeliveryState.PENDING: "to be published",
    DeliveryState.PUBLISHED: "the broker has it",
    DeliveryState.CLAIMED: "one claim carries it; only that claim may write",
    DeliveryState.SETTLED: "over",
}


def states() -> str:
    """The state machine of Runs and deliveries."""
    return "\n".join(
        [
            MARK,
            "",
            "# States of a Run",
            "",
            "The canonical status stands on the Run; the delivery is the outbox row of its current hop. Each edge is",
            "one conditional statement of the ledger: it happens from exactly these states or not at all.",
            "",
            "## Statuses",
            "",
            *_table(
                ("status", "in words", "where its work is"),
                ((f"`{one}`", WORDS[one], _place(one)) for one in RunStatus),
            ),
            "",
            "## States of a delivery",
            "",
            *_table(("state", "meaning"), ((f"`{one}`", _DELIVERY[one]) for one in DeliveryState)),
            "",
            "At most one delivery of a Run is unsettled.",
            "",
            "## Edges",
            "",
            *_table(
                ("edge", "Run from", "Run to", "delivery from", "delivery to", "guard"),
                (
                    (
                        f"`{edge.name}`",
                        _names(edge.from_status),
                        f"`{edge.to_status}`" if edge.to_status else "stays",
                        _names(edge.from_delivery),
                        f"`{edge.to_delivery}`" if edge.to_delivery else "stays",
                        _guard(edge),
                    )
                    for edge in (*EDGES.values(), *WAITS)
                ),
            ),
            "",
            "## Drawing",
            "",
            "```mermaid",
            *_drawing(),
            "```",
            "",
        ]
    )


def _place(status: RunStatus) -> str:
    if status in TERMINAL:
        return "nowhere: no edge leaves it"
    if status in PARKED:
        return "with the owner of its wait, no worker holds it"
    if status in ON_WORKER:
        return "on a worker"
    return "in a lane" if status is RunStatus.QUEUED else "being contained"


def _guard(edge: Edge) -> str:
    parts = [
        *(["the exact hop"] if edge.generation else []),
        *(["the exact claim"] if edge.claimant else []),
        *(["the exact owner of the wait"] if edge.owner else []),
    ]
    return ", ".join(parts) or "none"


def _names(values: Iterable[RunStatus | DeliveryState] | None) -> str:
    if values is None:
        return "any"
    order = [*RunStatus, *DeliveryState]
    return ", ".join(f"`{value}`" for value in sorted(values, key=order.index))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, tuple("---" for _ in head), *rows)]


def _drawing() -> list[str]:
    """Only edges that change the status; the others are in the table."""
    drawn: dict[tuple[str, str], list[str]] = {}
    for edge in (*EDGES.values(), *WAITS):
        if edge.to_status is not None:
            for status in sorted(edge.from_status, key=list(RunStatus).index):
                drawn.setdefault((status.value, edge.to_status.value), []).append(edge.name)
    return [
        "stateDiagram-v2",
        "    [*] --> queued: admit",
        *(f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in drawn.items()),
        *(f"    {status} --> [*]" for status in RunStatus if status in TERMINAL & {target for _, target in drawn}),
    ]


def settings() -> str:
    """Every environment variable that the product reads."""
    rows: list[tuple[str, ...]] = []
    for field in Config.model_fields.values():
        alias = field.validation_alias
        name = str(alias.choices[0]) if isinstance(alias, AliasChoices) else ""
        default = field.default
        shown = "none" if default in {None, ()} else f"`{','.join(default) if isinstance(default, tuple) else default}`"
        rows.append((f"`{name}`", shown, (field.description or "").replace("|", "or")))
    return "\n".join(
        [
            MARK,
            "",
            "# Settings",
            "",
            "All settings come from the environment and are checked at start: a bad one is a sentence that names it.",
            "`LYCHD_SECRET_KEY_FILE` and `DATABASE_URL_FILE` may name a file that holds the value instead.",
            "",
            *_table(("variable", "default", "what it says"), rows),
            "",
            "## In production",
            "",
            "Set `LYCHD_SECURE=1` behind HTTPS, `LYCHD_SECRET_KEY`, `LYCHD_ALLOWED_HOSTS` and `DATABASE_URL`;",
            "`lychd check --deploy` is clean with these. `LYCHD_PROXY_HEADERS=1` trusts the proxy's",
            "`X-Forwarded-Proto`.",
            "The embedded server compares text by code point (`C.UTF-8`); do not rely on other collations.",
            "",
        ]
    )


def errors() -> str:
    """The words that reach problem details, commands and logs."""
    for module in MODULES_WITH_ERRORS:
        import_module(module)
    kinds: set[type[LychdError]] = set()
    todo: list[type[LychdError]] = [LychdError]
    while todo:
        kind = todo.pop()
        kinds.add(kind)
        todo.extend(kind.__subclasses__())
    found: dict[str, tuple[str, ...]] = {}
    for kind in sorted(kinds, key=lambda one: (one.__module__, one.__qualname__)):
        # Others may be imported already, by tests say; the page must not depend on that.
        if kind.__module__ in MODULES_WITH_ERRORS:
            words = (kind.__doc__ or "").strip().splitlines()[0]
            found.setdefault(kind.code, (f"`{kind.code}`", str(kind.status), kind.title, words))
    return "\n".join(
        [
            MARK,
            "",
            "# Errors",
            "",
            "Each has a stable code, the same in problem details (`code`), on the command line and in logs.",
            "",
            *_table(("code", "HTTP", "title", "meaning"), [found[code] for code in sorted(found)]),
            "",
        ]
    )


MODULES_WITH_ERRORS = (
    "runs.errors",
    "runs.payloads",
    "runs.paging",
    "runs.events.cursor",
    "runs.patterns.outcomes",
    "runs.driver.drive",
    "runs.driver.steps",
    "runs.ghoul",
    "runs.containment",
    "runs.recovery.report",
    "runs.ledger.sessions",
    "runs.broker.jobs",
    "lychd.config",
    "lychd.patterns.listing",
    "lychd.patterns.pace",
    "lychd.patterns.plan",
    "lychd.patterns.quarantine",
    "lychd.patterns.reclaiming",
    "lychd.patterns.roots",
    "lychd.postgres.errors",
    "lychd.postgres.guard",
)

PAGES: dict[str, Callable[[], str]] = {
    "reference/states.md": states,
    "reference/settings.md": settings,
    "reference/errors.md": errors,
}


def main() -> int:
    """Write every page."""
    for name, write in PAGES.items():
        path = HERE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(write())
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
