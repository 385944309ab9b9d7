"""How Runs and events look: lines for people, JSON lines for programs, a bar for progress where somebody watches.

Whatever comes from a Run is made harmless before it is shown.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from lychd.cli.output import Output, Piece, status_style
from lychd.cli.texts import block, block_of_text, clock, harmless, moment, one_line
from lychd.cli.wording import failure, number, progress, told, unsettled, word
from lychd.client import End, Event, Gap, Lost, Message, Resync

type Json = dict[str, Any]

SUBJECT_WIDTH = 12
# Plain text has no bar: between two lines of progress of one node lie at least so many seconds.
PROGRESS_SECONDS = 1.0
TOKEN_LINE = 200
FACTS = 40


def show_run(out: Output, run: Json, *, payloads: bool = True) -> None:
    """A Run with everything that is known of it."""
    pattern = run.get("pattern") or {}
    status = str(run.get("status"))
    rows: list[tuple[str, Piece]] = [
        ("pattern", one_line(f"{pattern.get('key')} {pattern.get('revision')}")),
        ("status", (word(status), status_style(status))),
        ("lane", one_line(f"{run.get('queue')}, priority {run.get('priority')}, hop {run.get('hop')}")),
        ("from", one_line(f"{run.get('sigil')} ({run.get('source')}), tenant {run.get('tenant')}")),
        ("created", moment(run.get("created_at"))),
        ("started", moment(run.get("started_at"))),
        ("finished", moment(run.get("finished_at"))),
    ]
    if run.get("session"):
        rows.append(("session", one_line(run["session"])))
    if wait := run.get("wait"):
        rows.append(
            ("waits for", one_line(f"{wait.get('kind')} {wait.get('owner')} since {moment(wait.get('since'))}"))
        )
    if quarantine := run.get("quarantine"):
        rows.append(("quarantined", (one_line(quarantine.get("reason")), "red")))
    if cancel := run.get("cancel"):
        rows.append(("cancelled by", one_line(f"{cancel.get('by')}, asked {moment(cancel.get('at'))}")))
    if reason := unsettled(run):
        rows.append(("unsettled", (reason, "yellow")))
    if error := run.get("error"):
        rows.append(("error", (failure(error), "red")))
    out.line(("Run ", "bold"), (one_line(run.get("id")), "bold"))
    out.facts(rows)
    if payloads:
        for name in ("input", "output"):
            if run.get(name) is not None:
                out.line((f"  {name}", "dim"))
                out.text("\n".join(f"    {line}" for line in block(run[name]).split("\n")))


def show_question(out: Output, consent: Json) -> None:
    """What a Consent asks, below a line that names it: everything that its digest covers."""
    if consent.get("body"):
        out.text("\n".join(f"    {line}" for line in block_of_text(str(consent["body"])).split("\n")))
    facts = consent.get("facts")
    shown: list[tuple[str, Piece]] = [
        (f"  {one_line(name, 40)}", one_line(value))
        for name, value in list(facts.items() if isinstance(facts, dict) else [])[:FACTS]
    ]
    if isinstance(facts, dict) and len(facts) > FACTS:
        shown.append(("  …", f"{len(facts) - FACTS:,} more"))
    if consent.get("effect") is not None:
        shown.append(("  on yes", one_line(consent["effect"])))
    shown.append(("  risk", one_line(consent.get("risk"), 20)))
    needs = consent.get("requires") or {}
    if isinstance(needs, dict):
        if number(needs.get("quorum", 1)) not in {None, 1}:
            given = f"{one_line(consent.get('grants'), 10)} of {one_line(needs['quorum'], 10)} people have said yes"
            shown.append(("  quorum", given))
        shown += [(f"  {name}", one_line(needs[name], 150)) for name in ("permission", "group") if needs.get(name)]
    if consent.get("expires_at"):
        shown.append(("  expires", moment(consent["expires_at"])))
    shown.append(("  id", one_line(consent.get("id"), 40)))
    out.facts(shown)


class View(Protocol):
    """Shows what a follower is told."""

    def show(self, message: Message) -> None:
        """Show one message."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def view_for(out: Output) -> View:
    """JSON lines, or text."""
    return JsonView(out) if out.as_json else TextView(out)


class JsonView:
    """Every message as one JSON line."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def show(self, message: Message) -> None:
        """Show one message."""
        self._out.record(message.raw)

    def close(self) -> None:
        """Nothing is open."""


class TextView:
    """A line for each message; flowing text is gathered into lines, progress becomes a bar where somebody watches."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._bars = Bars(out) if out.interactive else None
        self._progress_at: dict[str, datetime] = {}
        self._begun = self._ended = False
        self._flowing: tuple[str, datetime] | None = None
        self._flow = ""

    def show(self, message: Message) -> None:
        """Show one message."""
        if isinstance(message, Event) and message.kind == "token":
            self._begun = True
            self._token(message)
            return
        self._flush()
        match message:
            case Event():
                self._begun = True
                self._event(message)
            case Gap(first, last):
                which = f"event {first} is" if first == last else f"events {first} to {last} are"
                self._note(f"{which} missing", "yellow")
            case Resync() if not self._begun:
                # How every late reader begins: the stored events that follow are what matters.
                return
            case Resync():
                run = message.snapshot.get("run") or {}
                self._note(
                    f"some events came by faster than they could be read; the Run is {word(run.get('status'))}",
                    "yellow",
                )
            case Lost(reason, pause):
                self._note(f"connection lost ({harmless(reason)}); next try in {pause:g} s", "yellow")
            case End(status):
                if not self._ended:
                    self._note(f"the Run is {word(status)}", status_style(status))

    def close(self) -> None:
        """Finish what is half said."""
        self._flush()
        if self._bars:
            self._bars.close()

    def _event(self, event: Event) -> None:
        self._ended = event.kind == "done"
        if event.kind == "progress":
            self._progress(event)
            return
        if self._bars and (event.kind == "done" or (event.kind == "node" and event.data.get("phase") != "entered")):
            self._bars.end(event.node)
        text, style = told(event)
        self._line(event.at, event.node, (text, style))
        if event.kind == "consent" and event.data.get("status") == "pending":
            show_question(self._out, event.data)

    def _progress(self, event: Event) -> None:
        if self._bars:
            self._bars.move(event)
            return
        last = self._progress_at.get(event.node or "")
        complete = event.data.get("done") == event.data.get("total")
        if last is None or complete or (event.at - last).total_seconds() >= PROGRESS_SECONDS:
            self._progress_at[event.node or ""] = event.at
            self._line(event.at, event.node, progress(event.data))

    def _token(self, event: Event) -> None:
        subject = event.node or "run"
        if self._flowing and self._flowing[0] != subject:
            self._flush()
        self._flowing = self._flowing or (subject, event.at)
        *lines, self._flow = (self._flow + str(event.data.get("text", ""))).split("\n")
        for line in lines:
            self._line(self._flowing[1], subject, harmless(line, TOKEN_LINE * 10))
        while len(self._flow) > TOKEN_LINE:
            self._line(self._flowing[1], subject, harmless(self._flow[:TOKEN_LINE]))
            self._flow = self._flow[TOKEN_LINE:]

    def _flush(self) -> None:
        if self._flowing and self._flow:
            self._line(self._flowing[1], self._flowing[0], harmless(self._flow, TOKEN_LINE))
        self._flowing, self._flow = None, ""

    def _line(self, at: datetime, subject: str | None, piece: Piece) -> None:
        self._out.line(
            (f"{clock(at)}  ", "dim"), (f"{harmless(subject or 'run', 40):<{SUBJECT_WIDTH}}  ", "bold"), piece
        )

    def _note(self, text: str, style: str) -> None:
        self._out.line((f"{'':8}  {text}", style))


class Bars:
    """A bar for each node that tells its progress, drawn below the lines."""

    def __init__(self, out: Output) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            console=out.console,
            transient=True,
            auto_refresh=False,
        )
        self._tasks: dict[str | None, TaskID] = {}

    def move(self, event: Event) -> None:
        """Show where a node stands."""
        done, total = number(event.data.get("done")), number(event.data.get("total"))
        if not self._tasks:
            self._progress.start()
        if event.node not in self._tasks:
            self._tasks[event.node] = self._progress.add_task(harmless(event.node or "run", 40), total=None, told="")
        self._progress.update(
            self._tasks[event.node], completed=done or 0, total=total or None, told=progress(event.data), refresh=True
        )

    def end(self, node: str | None) -> None:
        """Take the bar of a node away; without a node, all."""
        for name in list(self._tasks) if node is None else [node]:
            task = self._tasks.pop(name, None)
            if task is not None:
                self._progress.remove_task(task)
        if not self._tasks:
            self._progress.stop()

    def close(self) -> None:
        """Take all bars away."""
        self.end(None)
