"""The client commands as processes against a scripted server: output, exit codes, one sentence for each failure."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lychd.cli.texts import moment
from tests.support.commands import Ended, lychd_here
from tests.support.scripted import RUN, Answer, Hold, Script, a_problem, a_resync, a_run, an_event, scripted, step

ROOT = Path(__file__).parents[2]
DONE = {"type": "end", "status": "done"}
EVENTS = [
    an_event(0, "status", node=None, status="running"),
    an_event(1),
    an_event(2, "done", node=None, status="done"),
]

type Lychd = Callable[..., Ended]


def environment(**more: str) -> dict[str, str]:
    """That of a client: no database could be reached, and nothing but the Vessel is known."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LYCHD_")}
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing", "LANG": "C.UTF-8"}
    return {**kept, **nowhere, **more}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with scripted(script) as address:
        yield address


@pytest.fixture
def lychd(url: str, tmp_path: Path) -> Lychd:
    """The console script's function, in this process."""

    def run(*words: str, env: dict[str, str] | None = None, given: str = "") -> Ended:
        known = {"LYCHD_URL": url, "LYCHD_TOKEN": "secret"} if env is None else env
        return lychd_here(*words, env={"LYCHD_DATA": str(tmp_path), **known}, given=given)

    return run


@pytest.fixture
def process(url: str, tmp_path: Path) -> Lychd:
    """The console script as a process of its own, with warnings as errors."""

    def run(*words: str) -> Ended:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-m", "lychd", *words],
            cwd=ROOT,
            env=environment(LYCHD_URL=url, LYCHD_TOKEN="secret", LYCHD_DATA=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return run


def test_submit_prints_the_run_and_how_to_follow_it(script: Script, lychd: Lychd) -> None:
    script.answer("POST", "/runs", Answer(201, a_run("queued")))
    ended = lychd("submit", "tidy", "--input", '{"root": "."}', "--priority", "7", "--key", "k", "--source", "ci")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"Run {RUN}" in ended.stdout
    assert f"lychd follow {RUN}" in ended.stdout
    (asked,) = script.asked
    assert asked.body == {"pattern": "tidy", "input": {"root": "."}, "priority": 7, "source": "ci"}
    assert asked.headers["idempotency-key"] == "k"


def test_submit_takes_its_input_from_a_file_or_from_standard_input(
    script: Script, lychd: Lychd, tmp_path: Path
) -> None:
    script.answer("POST", "/runs", Answer(200, a_run("queued")))
    (tmp_path / "in.json").write_text('{"n": 1}')
    ended = lychd("submit", "tidy", "--input", f"@{tmp_path}/in.json")
    assert "submitted before under this key" in ended.stdout
    ended = lychd("submit", "tidy", "--input", "@-", "--json", given='{"n": 2}')
    assert json.loads(ended.stdout) == a_run("queued")
    assert [asked.body["input"] for asked in script.asked] == [{"n": 1}, {"n": 2}]


def test_the_local_token_submits_as_the_command_line_and_a_foreign_one_names_no_source(
    script: Script, url: str, lychd: Lychd, tmp_path: Path
) -> None:
    script.answer("POST", "/runs", Answer(201, a_run("queued")))
    (tmp_path / "vessel.json").write_text(json.dumps({"url": url, "pid": os.getpid(), "boot": "b"}))
    (tmp_path / "operator.token").write_text("local\n")
    assert lychd("submit", "tidy", "--data", str(tmp_path), env={}).returncode == 0
    assert lychd("submit", "tidy").returncode == 0
    local, foreign = script.asked
    assert (local.headers["authorization"], local.body.get("source")) == ("Bearer local", "cli")
    assert (foreign.headers["authorization"], foreign.body.get("source")) == ("Bearer secret", None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"a":', "lychd: The input is not JSON: "),
        ('{"a": NaN}', "lychd: NaN is not a JSON number."),
        ("[" * 10_000, "lychd: The input is nested deeper than 200 levels."),
        ("@/nowhere/at/all", "lychd: The input file /nowhere/at/all cannot be read: No such file or directory."),
    ],
)
def test_input_that_is_none_is_one_sentence_and_nothing_is_sent(
    script: Script, lychd: Lychd, given: str, said: str
) -> None:
    ended = lychd("submit", "tidy", "--input", given)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1
    assert script.asked == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (a_problem(401, "unauthenticated", "A valid token is needed."), ["does not accept the token in LYCHD_TOKEN"]),
        (a_problem(403, "forbidden", "ci may not submit with the source 'x'."), ["ci may not submit"]),
        (
            a_problem(404, "pattern_not_found", "There is no Pattern 'tidi'; did you mean 'tidy'?"),
            ["did you mean 'tidy'?"],
        ),
        (a_problem(409, "session_fenced", "The session has a live Run.", run=RUN), [f"(Run {RUN})"]),
        (a_problem(413, "body_too_large", "The body is larger than 2 MiB."), ["larger than 2 MiB"]),
        (
            a_problem(422, "invalid", "Not valid.", errors=[{"pointer": p, "detail": "odd"} for p in ("/a", "/b")]),
            ["Not valid.", "/a: odd", "/b: odd"],
        ),
        (a_problem(429, "too_many", "100,000 Runs are queued."), ["100,000 Runs are queued"]),
        (a_problem(503, "not_admitting", "The Vessel starts."), ["The Vessel starts"]),
        (Answer(500, raw=b"<h1>oops</h1>", kind="text/html"), ["no Vessel of this version"]),
        (Answer(cut=True), ["may have been done", "lychd runs"]),
    ],
)
def test_every_refusal_is_told_and_ends_with_4(script: Script, lychd: Lychd, answer: Answer, said: list[str]) -> None:
    script.answer("POST", "/runs", answer)
    ended = lychd("submit", "tidy", "--json")
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr.startswith("lychd: ")
    assert "Traceback" not in ended.stderr
    for part in said:
        assert part in ended.stderr


def test_without_a_vessel_the_command_that_starts_one_is_named(lychd: Lychd, tmp_path: Path) -> None:
    ended = lychd("runs", "--data", str(tmp_path / "none"), env={})
    assert ended.returncode == 4
    assert ended.stderr.startswith(f"lychd: No Vessel is running on the data folder {tmp_path}/none: start one")
    (tmp_path / "operator.token").write_text("t")
    (tmp_path / "vessel.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": 2**22 + 1}))
    ended = lychd("runs", "--data", str(tmp_path), env={})
    assert ended.returncode == 4
    assert f"(pid {2**22 + 1}) is gone" in ended.stderr


def test_a_command_line_that_makes_no_sense_is_one_sentence_and_64(lychd: Lychd) -> None:
    for words in (["submit"], ["runs", "--status", "odd"], ["show", RUN, "more"], ["submit", "a", "--priority", "x"]):
        ended = lychd(*words)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (64, "", 1)
        assert ended.stderr.startswith(f"lychd {words[0]}: ")


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("failed", 1), ("cancelled", 2)])
def test_following_ends_as_the_run_does(script: Script, lychd: Lychd, status: str, code: int) -> None:
    error = {"code": "boom", "message": "no", "node": "walk"} if status == "failed" else None
    script.run = a_run(status, error=error, output={"files": 3} if status == "done" else None)
    script.plays = [[*EVENTS[:2], {"type": "end", "status": status}]]
    ended = lychd("follow", RUN)
    assert (ended.returncode, ended.stderr) == (code, "")
    lines = ended.stdout.splitlines()
    assert lines[0] == f"Run {RUN} of tidy 1"
    assert [line.split()[1:] for line in lines[1:3]] == [["run", "running"], ["walk", "event", "1"]]
    assert lines[3].strip() == f"the Run is {status}"
    assert ('"files": 3' in ended.stdout) == (status == "done")


def test_submit_can_follow_and_speak_json_lines(script: Script, process: Lychd) -> None:
    script.answer("POST", "/runs", Answer(201, a_run("queued")))
    script.run = a_run("done", output=[1])
    script.plays = [[*EVENTS, DONE]]
    ended = process("submit", "tidy", "--follow", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [json.loads(line) for line in ended.stdout.splitlines()] == [
        {"type": "run", "run": a_run("queued")},
        *EVENTS,
        DONE,
        {"type": "run", "run": a_run("done", output=[1])},
    ]


@pytest.mark.contract("BYD-12")
def test_a_lost_connection_and_a_resync_are_lines_and_no_event_is_missing(script: Script, lychd: Lychd) -> None:
    script.run = a_run("done")
    script.steps = [step(one) for one in (*EVENTS[:2], an_event(2), an_event(3))]
    last = an_event(4, "done", node=None, status="done")
    script.plays = [[EVENTS[0]], [a_resync("e1-3", a_run()), last, DONE]]
    ended = lychd("follow", RUN)
    assert ended.returncode == 0
    said = [" ".join(line.split()[1:]) for line in ended.stdout.splitlines()[1:]]
    assert said[0] == "run running"
    assert said[1].startswith("lost (")
    assert said[2].startswith("events came by faster")
    assert said[3:7] == ["walk event 1", "walk event 2", "walk event 3", "run done"]


def test_a_vessel_that_comes_back_at_another_address_is_followed_there(
    script: Script, url: str, lychd: Lychd, tmp_path: Path
) -> None:
    note = tmp_path / "vessel.json"
    note.write_text(json.dumps({"url": url, "pid": os.getpid(), "boot": "1"}))
    (tmp_path / "operator.token").write_text("local")
    second = Script(run=a_run("done"), plays=[[EVENTS[2], DONE]])
    with scripted(second) as elsewhere:
        script.plays = [[*EVENTS[:2], lambda: note.write_text(json.dumps({"url": elsewhere, "pid": os.getpid()}))]]
        ended = lychd("follow", RUN, "--data", str(tmp_path), "--json", env={})
    assert ended.returncode == 0
    assert second.asked[0].headers["last-event-id"] == "e1-1"
    assert [json.loads(line)["type"] for line in ended.stdout.splitlines()] == [
        "run",
        "event",
        "event",
        "lost",
        "event",
        "end",
        "run",
    ]


def test_following_gives_up_with_a_sentence(script: Script, lychd: Lychd) -> None:
    ended = lychd("follow", RUN, "--patience", "0.2")
    assert ended.returncode == 4
    assert ended.stderr.startswith("lychd: The connection was lost and did not come back in 0.2 s: ")


def test_no_wait_ends_with_3_where_a_consent_is_needed_now(script: Script, lychd: Lychd) -> None:
    script.run = a_run("awaiting_consent")
    script.plays = [[EVENTS[0], an_event(1, "status", node=None, status="awaiting_consent"), Hold()]]
    ended = lychd("follow", RUN, "--no-wait")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (3, "waiting for a consent")


def test_no_wait_goes_on_where_a_question_was_answered_long_ago(script: Script, lychd: Lychd) -> None:
    script.run = a_run("done")
    script.plays = [[EVENTS[0], an_event(1, "consent"), EVENTS[2], DONE]]
    assert lychd("follow", RUN, "--no-wait").returncode == 0


def test_ctrl_c_leaves_the_run_alone_and_says_how_to_come_back(script: Script, url: str, tmp_path: Path) -> None:
    script.plays = [[*EVENTS[:2], Hold()]]
    command = [sys.executable, "-m", "lychd", "follow", RUN]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(LYCHD_URL=url, LYCHD_TOKEN="secret", LYCHD_DATA=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while "event 1" not in process.stdout.readline():
            continue
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == f"The Run goes on; follow it again with `lychd follow {RUN}`.\n"


def test_nothing_that_a_run_says_acts_on_the_terminal(script: Script, lychd: Lychd) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e[red]x"
    script.run = a_run("failed", error={"code": evil, "message": evil, "node": evil}, input={evil: evil})
    script.plays = [
        [
            an_event(0, "log", node=evil, message=evil, level=evil, fields={evil: evil}),
            an_event(1, "token", text=evil),
            an_event(2, "fragment", name=evil, data={evil: evil}),
            an_event(3, evil, any=evil),
            {"type": "end", "status": "failed"},
        ]
    ]
    script.answer("GET", "/runs", Answer(200, {"items": [script.run], "next": evil}))
    script.answer("GET", "/patterns", Answer(200, {"items": [{"key": evil, "revision": evil, "nodes": []}]}))
    for words in (["follow", RUN], ["show", RUN], ["runs"], ["patterns"], ["follow", RUN, "--json"]):
        if words[0] == "follow" and not script.plays:
            script.plays = [[an_event(0, "log", message=evil), {"type": "end", "status": "failed"}]]
        ended = lychd(*words)
        assert not set("\x1b\x07\x9b\u202e") & set(ended.stdout + ended.stderr), words
        assert "owned" in ended.stdout


def test_runs_are_listed_and_filtered(script: Script, lychd: Lychd) -> None:
    failed = a_run("failed", error={"code": "boom", "message": "no", "node": None})
    script.answer("GET", "/runs", Answer(200, {"items": [a_run(), failed], "next": "abc"}))
    ended = lychd("runs", "--status", "failed", "--pattern", "tidy", "--limit", "2")
    assert script.asked[0].query == {"status": "failed", "pattern": "tidy", "limit": "2"}
    head, first, second, more = ended.stdout.splitlines()
    assert head.split() == ["ID", "PATTERN", "STATUS", "CREATED", "NOTE"]
    assert first.split() == [RUN, "tidy", "1", "running", *moment(a_run()["created_at"]).split()]
    assert second.endswith("boom: no")
    assert more == "There are more: --cursor abc"
    ended = lychd("runs", "--json")
    assert json.loads(ended.stdout) == {"items": [a_run(), failed], "next": "abc"}


def test_show_tells_everything_and_its_steps_with_gaps(script: Script, lychd: Lychd) -> None:
    script.run = a_run("done", output={"n": 1})
    script.steps = [step(an_event(seq)) for seq in (0, 1, 2, 5, 6)]
    ended = lychd("show", RUN, "--steps")
    assert '"n": 1' in ended.stdout
    assert "events 3 to 4 are missing" in ended.stdout
    assert "event 6" in ended.stdout
    shown = json.loads(lychd("show", RUN, "--steps", "--json").stdout)
    assert (shown["gaps"], [one["seq"] for one in shown["steps"]]) == ([[3, 4]], [0, 1, 2, 5, 6])
    assert shown["steps"] == script.steps
    assert json.loads(lychd("show", RUN, "--json").stdout) == script.run


def test_an_id_that_is_none_is_a_sentence(script: Script, lychd: Lychd) -> None:
    for command in ("show", "follow"):
        ended = lychd(command, "../../etc")
        assert (ended.returncode, ended.stderr) == (4, "lychd: '../../etc' is not the id of a Run.\n")
    assert script.asked == []


def test_whoever_stops_reading_our_output_is_no_error(script: Script, url: str, tmp_path: Path) -> None:
    script.plays = [[*[an_event(seq) for seq in range(2000)], an_event(2000, "done"), DONE]]
    script.run = a_run("done")
    env = environment(LYCHD_URL=url, LYCHD_TOKEN="secret", LYCHD_DATA=str(tmp_path))
    command = f"{sys.executable} -m lychd follow {RUN} | head -1"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stderr, ended.stdout) == ("", f"Run {RUN} of tidy 1\n")


def test_a_person_at_a_terminal_sees_a_bar(script: Script, url: str, tmp_path: Path) -> None:
    progress = [an_event(seq, "progress", done=seq * 10, total=100, message="reading") for seq in range(1, 4)]
    script.plays = [[EVENTS[0], *progress, an_event(4, "done", node=None, status="done"), DONE]]
    script.run = a_run("done")
    master, slave = pty.openpty()
    env = environment(LYCHD_URL=url, LYCHD_TOKEN="secret", LYCHD_DATA=str(tmp_path), TERM="xterm")
    with ExitStack() as stack:
        stack.callback(os.close, master)
        process = subprocess.Popen(
            [sys.executable, "-m", "lychd", "follow", RUN], cwd=ROOT, env=env, stdout=slave, stderr=slave, stdin=slave
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        os.close(slave)
        screen = b"".join(_read(master, within=30.0))
        assert process.wait(30) == 0
    text = screen.decode()
    assert "30 of 100 (30%)  reading" in text
    assert "━" in text
    assert text.rstrip().endswith("done\x1b[0m")


def _read(terminal: int, within: float) -> Iterator[bytes]:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                yield os.read(terminal, 65536)
            except OSError:  # the other end is closed
                return


def test_a_pattern_is_drawn_with_its_input(script: Script, lychd: Lychd) -> None:
    pattern = {
        "key": "tidy",
        "revision": "1",
        "digest": "d" * 64,
        "start": "scan",
        "nodes": [
            {"name": "scan", "replay_safe": False, "timeout": None, "doc": ""},
            {"name": "apply", "replay_safe": True, "timeout": 5.0, "doc": ""},
        ],
        "edges": [
            {"from": "scan", "to": "apply", "via": "consent"},
            {"from": "apply", "to": None, "via": "finish"},
        ],
        "description": "Tidies a folder.",
        "input": {"properties": {"root": {"type": "string"}}},
    }
    script.answer("GET", "/patterns/tidy", Answer(200, pattern))
    script.answer("GET", "/patterns", Answer(200, {"items": [pattern]}))
    ended = lychd("patterns", "tidy")
    assert "⏸ consent → apply" in ended.stdout
    assert "apply  (replay safe, at most 5 s)" in ended.stdout
    assert '"type": "string"' in ended.stdout
    assert lychd("patterns").stdout.splitlines()[1].split() == ["tidy", "1", "Tidies", "a", "folder."]
    assert json.loads(lychd("patterns", "tidy", "--json").stdout) == pattern
    assert json.loads(lychd("patterns", "--json").stdout) == {"items": [pattern], "next": None}


def test_a_client_needs_no_database_and_says_nothing_of_its_own(script: Script, process: Lychd) -> None:
    script.answer("GET", "/runs", Answer(200, {"items": [], "next": None}))
    ended = process("runs")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "There are no such Runs.\n", "")
    assert len(script.asked) == 1
