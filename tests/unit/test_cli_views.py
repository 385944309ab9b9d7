"""How events look: one harmless line each for people, exact JSON for programs, a bar where somebody watches."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from lychd.cli.output import Output
from lychd.cli.views import JsonView, TextView, show_run, view_for
from lychd.cli.wording import failure, progress, told, word
from lychd.client import End, Event, Gap, Lost, Message, Resync
from tests.support.scripted import a_resync, a_run, an_event

type Show = Callable[..., list[str]]


def event(kind: str, seq: int = 0, *, node: str | None = "walk", **data: Any) -> Event:
    return Event.read(an_event(seq, kind, node=node, **data))


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    def shown(*messages: Message, as_json: bool = False) -> list[str]:
        view = view_for(Output(as_json=as_json))
        for message in messages:
            view.show(message)
        view.close()
        return capsys.readouterr().out.splitlines()

    return shown


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (event("status", status="queued", hop=0, queue="runs", priority=50), "queued on runs, priority 50"),
        (event("status", status="running", hop=2, resume=True), "running, resumed, hop 2"),
        (event("status", status="awaiting_consent"), "waiting for a consent"),
        (event("node", phase="entered", visit=0), "entered"),
        (event("node", phase="left", to="hash", ms=12.4), "→ hash (12 ms)"),
        (event("node", phase="failed", code="boom", message="no\nway", ms=1500), "failed (1.5 s): boom: no⏎way"),
        (event("log", message="found", level="info", fields={"n": 3, "who": "a b"}), "found  n=3  who=a b"),
        (event("fragment", name="largest", data=[1, 2]), "largest: [1, 2]"),
        (event("fragment", name="large", data=None, refused="too large"), "large: too large"),
        (event("transition", step="fetch", phase="recorded", attempts=1, ms=3.2), "step fetch recorded (3 ms)"),
        (
            event("transition", step="fetch", phase="retry", attempt=1, error="OSError: x", next_in=0.5),
            "step fetch, attempt 1: OSError: x; again in 0.5 s",
        ),
        (event("transition", other=1), 'transition {"other": 1}'),
        (event("done", status="done", hop=0), "done"),
        (
            event("done", status="failed", error={"code": "boom", "message": "no", "node": "walk"}),
            "failed: boom in walk: no",
        ),
        (event("consent", title="Move\x1b 12 files", status="pending"), "asks: Move\\x1b 12 files"),
        (
            event("consent", title="Move 12 files", status="denied", decided_by="anna", comment="not\nnow"),
            "Move 12 files: denied by anna: not⏎now",
        ),
        (event("weather\x1b", sun=True), 'weather\\x1b {"sun": true}'),
    ],
)
def test_every_kind_of_event_says_its_matter(made: Event, said: str) -> None:
    assert told(made)[0] == said


@pytest.mark.parametrize("kind", ["status", "node", "log", "progress", "token", "fragment", "transition", "done"])
@pytest.mark.parametrize(
    "data",
    [
        {"status": None, "phase": "left", "message": None, "done": "x", "ms": "soon", "step": {"a": 1}, "text": None},
        {"value": ["not", "an", "object"]},
        {"status": [1], "phase": {"a": 1}, "fields": 3, "error": "flat", "done": True, "total": 0, "name": 5, "to": []},
    ],
)
def test_a_strange_payload_is_shown_somehow_and_never_breaks_the_view(
    show: Show, kind: str, data: dict[str, Any]
) -> None:
    show(event(kind, **data))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"done": 400, "total": 1000, "message": "reading"}, "400 of 1,000 (40%)  reading"),
        ({"done": 1200}, "1,200"),
        ({"done": 1234567, "total": 98765432}, "1,234,567 of 98,765,432 (1%)"),
        ({"done": 0.25, "total": 1.5}, "0.25 of 1.5 (17%)"),
        ({"done": float("inf")}, "inf"),
        ({"done": 0, "total": 0}, "0"),
        ({"message": "a\x1b[2Jb"}, "a\\x1b[2Jb"),
    ],
)
def test_progress_in_words(data: dict[str, Any], said: str) -> None:
    assert progress(data) == said


def test_a_line_has_time_subject_and_matter(show: Show) -> None:
    lines = show(event("log", 5, message="hello", level="info"), event("status", 6, node=None, status="running"))
    assert [line.split(maxsplit=1)[1].split() for line in lines] == [["walk", "hello"], ["run", "running"]]


def test_markup_and_escapes_in_events_stay_text(show: Show) -> None:
    lines = show(event("log", message="[red]x[/red] :smile: \x1b[31mred", level="info"))
    assert lines[0].endswith("[red]x[/red] :smile: \\x1b[31mred")


def test_long_lines_are_not_folded_where_a_program_reads(show: Show) -> None:
    assert len(show(event("log", message="x" * 1500, level="info"))) == 1


def test_plain_progress_is_told_once_a_second_and_when_it_is_complete(show: Show) -> None:
    steps = [event("progress", seq, done=seq, total=9) for seq in (0, 0, 0, 1, 1, 2)]
    lines = show(*steps, event("progress", 2, done=9, total=9))
    assert [line.split("  ")[-1] for line in lines] == ["0 of 9 (0%)", "1 of 9 (11%)", "2 of 9 (22%)", "9 of 9 (100%)"]


def test_flowing_text_becomes_lines_and_is_not_lost_at_the_end(show: Show) -> None:
    texts = ["one ", "two\nthree", "\n", "x" * 250, "\x1b[2J"]
    lines = show(*[event("token", seq, text=text) for seq, text in enumerate(texts)])
    assert [line.split("walk", 1)[1].strip() for line in lines] == [
        "one two",
        "three",
        "x" * 200,
        "x" * 50 + "\\x1b[2J",
    ]


def test_flowing_text_of_two_nodes_is_kept_apart(show: Show) -> None:
    lines = show(event("token", 0, text="a", node="left"), event("token", 1, text="b", node="right"))
    assert [line.split()[1:] for line in lines] == [["left", "a"], ["right", "b"]]


def test_resyncs_gaps_and_lost_connections_are_told(show: Show) -> None:
    resync = a_resync("e1-4", a_run("awaiting_consent"))
    first = event("log", 0, message="hello", level="info")
    lines = show(first, Resync("e1-4", resync["snapshot"], resync), Gap(3, 3), Gap(5, 9), Lost("cut\x1b", 0.2))
    assert [line.strip() for line in lines[1:]] == [
        "some events came by faster than they could be read; the Run is waiting for a consent",
        "event 3 is missing",
        "events 5 to 9 are missing",
        "connection lost (cut\\x1b); next try in 0.2 s",
    ]


def test_the_resync_with_which_a_late_reader_begins_is_no_news_and_an_end_is_told_once(show: Show) -> None:
    resync = a_resync("e1-4", a_run("done"))
    lines = show(Resync("e1-4", resync["snapshot"], resync), event("done", 4, status="done"), End("done", {}))
    assert len(lines) == 1
    assert [line.strip() for line in show(End("cancelled", {}))] == ["the Run is cancelled"]


def test_json_lines_are_what_the_server_sent_in_plain_ascii(show: Show) -> None:
    sent = an_event(3, "log", message="ü\x9b31m\x1b[2J", level="info")
    end = {"type": "end", "status": "done"}
    lines = show(Event.read(sent), Gap(4, 5), Lost("cut", 0.1), End("done", end), as_json=True)
    assert "".join(lines).isascii()
    assert [json.loads(line) for line in lines] == [
        sent,
        {"type": "gap", "from": 4, "to": 5},
        {"type": "lost", "reason": "cut", "pause": 0.1},
        end,
    ]


def test_on_a_terminal_progress_is_a_bar_that_is_taken_away_again() -> None:
    out = Output(as_json=False)
    screen = io.StringIO()
    out.console = Console(file=screen, force_terminal=True, width=100, markup=False, highlight=False, emoji=False)
    view = TextView(out)
    view.show(event("progress", 1, done=40, total=100, message="[b]reading"))
    view.show(event("log", 2, message="still here", level="info"))
    view.show(event("node", 3, phase="left", to="hash", ms=1.0))
    view.show(event("progress", 4, done=7, node="hash"))
    view.close()
    text = screen.getvalue()
    assert "40 of 100 (40%)  [b]reading" in text
    assert "━" in text
    assert "still here" in text
    assert "\x1b[?25h" in text.rsplit("hash", 1)[1]


def test_a_run_is_shown_with_everything_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(
        "failed",
        session="s-1",
        error={"code": "boom", "message": "no\x1b", "node": "walk"},
        output={"a": "b\u202ec"},
        quarantine={"since": None, "reason": "odd"},
    )
    show_run(Output(as_json=False), run)
    text = capsys.readouterr().out
    for part in ("tidy 1", "failed", "s-1", "boom in walk: no\\x1b", '"a": "b\\u202ec"', "odd", "runs, priority 50"):
        assert part in text


def test_a_waiting_run_says_for_what() -> None:
    assert word("awaiting_hardware") == "waiting for hardware"
    assert word("new\x1bword") == "new\\x1bword"
    assert failure({"code": "a", "message": "b", "node": None}) == "a: b"


def test_the_json_view_is_chosen_by_the_option() -> None:
    assert isinstance(view_for(Output(as_json=True)), JsonView)
    assert isinstance(view_for(Output(as_json=False)), TextView)
