"""`lychd consents`, `lychd decide`, and a question that is answered where its Run is followed; a scripted server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted import RUN, Answer, Asked, Hold, Script, a_problem, a_run, an_event, scripted
from tests.support.terminal import terminal
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]
CONSENT = "01919191-0000-5000-8000-00000000000c"
DIGEST = "d" * 64


def a_consent(status: str = "pending", **fields: Any) -> dict[str, Any]:
    """A Consent as the interface has it."""
    return {
        "id": CONSENT,
        "run": RUN,
        "node": "ask",
        "pattern": "tidy",
        "title": "Move 12 files",
        "body": "They are \x1b[31mcopies\x1b[0m.\nNothing is deleted.",
        "facts": {"files": 12, "bytes": 4096},
        "risk": "high",
        "effect": {"move": 12},
        "status": status,
        "requested_at": "2026-12-01T10:00:00.000000Z",
        "expires_at": "2026-12-02T10:00:00.000000Z",
        "decided_by": None if status == "pending" else "anna",
        "decided_at": None if status == "pending" else "2026-12-01T10:01:00.000000Z",
        "comment": "",
        "surface": None if status == "pending" else "rest",
        "policy": None,
        "digest": DIGEST,
        "requires": {"permission": None, "group": None, "quorum": 1},
        "grants": 0,
        "self_approval": True,
        "sigil": "operator",
        "updated_at": "2026-12-01T10:00:00.000000Z",
        **fields,
    }


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with scripted(script) as address:
        yield address


def environment(url: str, data: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LYCHD_")}
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing", "LANG": "C.UTF-8", "TERM": "xterm"}
    return {**kept, **nowhere, "LYCHD_URL": url, "LYCHD_TOKEN": "secret", "LYCHD_DATA": str(data)}


@pytest.fixture
def lychd(url: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "lychd", *words],
            cwd=ROOT,
            env=environment(url, tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_what_waits_is_listed_and_json_is_the_page(script: Script, lychd: Any) -> None:
    page = {"items": [a_consent(title="Move\x1b[2J 12 files")], "next": "more"}
    script.answer("GET", "/consents", Answer(200, page))
    shown = lychd("consents")
    assert shown.returncode == 0, shown.stderr
    assert CONSENT in shown.stdout
    assert "Move\\x1b[2J 12 files" in shown.stdout
    assert "--cursor more" in shown.stdout
    assert json.loads(lychd("consents", "--json", "--status", "all", "--run", RUN).stdout) == page
    first, second = script.paths("/consents")
    assert first.query == {"status": "pending", "limit": "20"}
    assert second.query == {"run": RUN, "limit": "20"}
    script.answer("GET", "/consents", Answer(200, {"items": [], "next": None}))
    assert lychd("consents").stdout == "Nothing waits for an answer.\n"


def test_a_decision_is_sent_and_how_it_stands_is_told(script: Script, lychd: Any) -> None:
    path = f"/consents/{CONSENT}/decision"
    script.answer("POST", path, Answer(200, a_consent("granted", comment="fine")))
    ended = lychd("decide", CONSENT, "grant", "--comment", "fine")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Move 12 files: granted by anna: fine\n")
    assert [asked.body for asked in script.paths(path)] == [{"verdict": "grant", "comment": "fine"}]
    quorum = {"permission": None, "group": None, "quorum": 3}
    script.answer("POST", path, Answer(200, a_consent(requires=quorum, grants=1)))
    assert "1 of 3 people have said yes." in lychd("decide", CONSENT, "grant", "--digest", DIGEST).stdout
    assert script.paths(path)[-1].body == {"verdict": "grant", "comment": "", "digest": DIGEST}


def test_a_refused_decision_is_one_sentence_and_ends_with_4(script: Script, lychd: Any) -> None:
    path = f"/consents/{CONSENT}/decision"
    detail = "It was denied by ben at 2026-12-01 10:00:00 UTC; that stands."
    script.answer("POST", path, a_problem(409, "already_settled", detail, consent=a_consent("denied")))
    ended = lychd("decide", CONSENT, "grant")
    assert (ended.returncode, ended.stdout, ended.stderr) == (4, "", f"lychd: {detail}\n")
    wrong = lychd("decide", "nonsense", "deny")
    assert (wrong.returncode, wrong.stderr) == (4, "lychd: 'nonsense' is not the id of a Consent.\n")
    assert lychd("decide", CONSENT, "maybe").returncode == 64


class Decided:
    """Answers a decision, and lets the Run go on once it was taken."""

    def __init__(self, script: Script, *, refuse: bool = False) -> None:
        self.script, self.refuse = script, refuse

    def __call__(self, asked: Asked) -> Answer:
        if self.refuse:
            return a_problem(409, "already_settled", "It was denied by ben; that stands.")
        return Answer(200, a_consent("granted", comment=asked.body["comment"]))

    def wait(self) -> None:
        """In a play: until a decision was asked for."""
        eventually_sync(lambda: self.script.paths(f"/consents/{CONSENT}/decision"), 30)


def questioned(script: Script, *, refuse: bool = False, may: bool = True) -> Decided:
    """The script of a Run that asks, and goes on after the decision."""
    decided = Decided(script, refuse=refuse)
    you = {"may_decide": may, "why_not": None if may else "This needs the scope consents:decide."}
    script.answer("GET", f"/consents/{CONSENT}", lambda _: Answer(200, a_consent(you=you)))
    script.answer("POST", f"/consents/{CONSENT}/decision", decided)
    script.run = a_run("done", output={"moved": 12})
    return decided


def asking() -> list[Any]:
    return [
        an_event(0, "status", node=None, status="awaiting_consent"),
        {**an_event(1, "consent", node=None), "data": a_consent()},
    ]


def ending(status: str = "granted") -> list[Any]:
    return [
        an_event(2, "status", node=None, status="queued", resume=True),
        {**an_event(3, "consent", node="apply"), "data": a_consent(status)},
        an_event(4, "done", node=None, status="done"),
        {"type": "end", "status": "done"},
    ]


def test_a_person_at_the_terminal_answers_what_the_run_asks(script: Script, url: str, tmp_path: Path) -> None:
    decided = questioned(script)
    script.plays = [[*asking(), decided.wait, *ending()]]
    script.answer("POST", "/runs", Answer(201, a_run("queued")))
    with terminal(environment(url, tmp_path), "submit", "tidy", "--follow") as person:
        person.sees("Answer y (grant) or n (deny)")
        assert "asks: Move 12 files" in person.screen
        assert "Nothing is deleted." in person.screen
        assert "\\x1b[31mcopies" in person.screen
        assert re.search(r"files\s+12", person.screen)
        person.types("perhaps")
        person.sees("Answer y or n")
        person.types("y looks right")
        person.sees("granted by anna")
        assert person.ended() == 0
    (asked,) = script.paths(f"/consents/{CONSENT}/decision")
    assert asked.body == {"verdict": "grant", "comment": "looks right", "digest": DIGEST}


def test_a_question_that_somebody_else_answers_is_taken_back(script: Script, url: str, tmp_path: Path) -> None:
    decided = questioned(script)
    shown = {"person": False}
    script.plays = [[*asking(), lambda: eventually_sync(lambda: shown["person"], 30), *ending("denied")]]
    with terminal(environment(url, tmp_path), "follow", RUN) as person:
        person.sees("Answer y (grant) or n (deny)")
        shown["person"] = True
        assert person.ended() == 0
        assert "Move 12 files: denied by anna" in person.screen
    assert script.paths(f"/consents/{CONSENT}/decision") == []
    assert decided.refuse is False


def test_a_lost_race_is_told_and_following_goes_on(script: Script, url: str, tmp_path: Path) -> None:
    decided = questioned(script, refuse=True)
    script.plays = [[*asking(), decided.wait, *ending("denied")]]
    with terminal(environment(url, tmp_path), "follow", RUN) as person:
        person.sees("Answer y (grant) or n (deny)")
        person.types("y")
        person.sees("It was denied by ben; that stands.")
        assert person.ended() == 0


def test_whoever_may_not_decide_is_not_asked_and_sees_why(script: Script, url: str, tmp_path: Path) -> None:
    questioned(script, may=False)
    script.plays = [[*asking(), Hold()]]
    with terminal(environment(url, tmp_path), "follow", RUN) as person:
        person.sees("You cannot answer this here: This needs the scope consents:decide.")
        assert "Answer y" not in person.screen
    assert script.paths(f"/consents/{CONSENT}/decision") == []


def test_nobody_is_asked_where_no_person_sits(script: Script, lychd: Any) -> None:
    questioned(script)
    script.plays = [[*asking(), *ending()]]
    ended = lychd("follow", RUN)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "asks: Move 12 files" in ended.stdout
    assert "Answer y" not in ended.stdout
    assert script.paths(f"/consents/{CONSENT}") == []
