"""`lychd cancel`: what it asks, what it shows, how it ends; against a script, and against a whole Vessel."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import ROOT, Lychd, environment
from tests.support.home import Home
from tests.support.scripted import RUN, Answer, Hold, Script, a_problem, a_run, an_event
from tests.support.waiting import eventually_sync

pytest_plugins = ["tests.support.cli_fixtures", "tests.support.vessel_fixtures"]

ASKED = {"by": "operator", "at": "2026-12-01T10:00:00.000000Z"}
CANCEL = f"/runs/{RUN}/cancel"
REASON = "Not contained: consent: no acknowledgement within 10 s."
EVENTS = [
    an_event(0, "status", node=None, status="running"),
    an_event(1),
    an_event(2, "status", node=None, status="cancelling", hop=0, by="operator"),
    an_event(3, "status", node=None, status="cancelling", hop=0, by="operator", containment=REASON),
    an_event(4, "done", node=None, status="cancelled"),
]


def end(status: str) -> dict[str, str]:
    return {"type": "end", "status": status}


def test_it_waits_until_the_run_is_cancelled_and_shows_what_happens_from_then_on(script: Script, lychd: Lychd) -> None:
    script.answer("POST", CANCEL, Answer(202, a_run("cancelling", cancel=ASKED, containment=None)))
    script.run = a_run("cancelled", cancel=ASKED)
    script.plays = [[*EVENTS, end("cancelled")]]
    ended = lychd("cancel", RUN)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [" ".join(line.split()[1:]) for line in ended.stdout.splitlines()] == [
        f"{RUN} of tidy 1",
        "run cancelling, asked for by operator",
        f"run cancelling, asked for by operator; not everything is stopped yet: {REASON}",
        "run cancelled",
    ]
    assert script.asked[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(("status", "code"), [("done", 1), ("failed", 1), ("cancelled", 0)])
def test_a_run_that_had_ended_is_told_as_it_was(script: Script, lychd: Lychd, status: str, code: int) -> None:
    script.answer("POST", CANCEL, Answer(200, a_run(status)))
    ended = lychd("cancel", RUN)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert ended.stdout.splitlines()[-1] == f"It was {status} before; nothing was changed."
    assert len(script.asked) == 1
    ended = lychd("cancel", RUN, "--json")
    assert (ended.returncode, json.loads(ended.stdout)) == (code, a_run(status))


def test_a_run_that_ends_otherwise_meanwhile_is_1(script: Script, lychd: Lychd) -> None:
    script.answer("POST", CANCEL, Answer(202, a_run("cancelling")))
    script.run = a_run("done")
    script.plays = [[an_event(0, "done", node=None, status="done"), end("done")]]
    assert lychd("cancel", RUN).returncode == 1


def test_without_waiting_it_says_how_to_follow(script: Script, lychd: Lychd) -> None:
    run = a_run("cancelling", cancel=ASKED, containment=REASON)
    script.answer("POST", CANCEL, Answer(202, run))
    ended = lychd("cancel", RUN, "--no-wait")
    assert (ended.returncode, ended.stderr, len(script.asked)) == (0, "", 1)
    assert f"not everything is stopped yet: {REASON}" in ended.stdout
    assert "cancelled by  operator, asked " in ended.stdout
    assert ended.stdout.splitlines()[-1] == f"Follow it with `lychd follow {RUN}`."
    assert json.loads(lychd("cancel", RUN, "--no-wait", "--json").stdout) == run


def test_json_lines_begin_with_the_run_and_end_with_it(script: Script, lychd: Lychd) -> None:
    script.answer("POST", CANCEL, Answer(202, a_run("cancelling")))
    script.run = a_run("cancelled")
    script.plays = [[*EVENTS, end("cancelled")]]
    ended = lychd("cancel", RUN, "--json")
    assert [json.loads(line) for line in ended.stdout.splitlines()] == [
        {"type": "run", "run": a_run("cancelling")},
        *EVENTS[2:],
        end("cancelled"),
        {"type": "run", "run": a_run("cancelled")},
    ]


def test_refusals_and_lost_answers_are_4_and_one_sentence(script: Script, lychd: Lychd) -> None:
    for answer, said in (
        (a_problem(404, "not_found", "There is no such Run."), "lychd: There is no such Run."),
        (a_problem(403, "forbidden", "This needs the scope runs:cancel."), "lychd: This needs the scope runs:cancel."),
        (a_problem(503, "unknown_outcome", "The outcome is not known."), "lychd: The outcome is not known."),
    ):
        script.answer("POST", CANCEL, answer)
        ended = lychd("cancel", RUN)
        assert (ended.returncode, ended.stdout, ended.stderr) == (4, "", f"{said}\n")
    script.answer("POST", CANCEL, Answer(cut=True))
    ended = lychd("cancel", RUN)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (4, "", 1)
    assert "may have been done" in ended.stderr
    assert ended.stderr.endswith(" Cancelling again is safe.\n")
    ended = lychd("cancel", "../../etc")
    assert (ended.returncode, ended.stderr) == (4, "lychd: '../../etc' is not the id of a Run.\n")


def test_ctrl_c_leaves_the_cancellation_alone(script: Script, url: str, tmp_path: Path) -> None:
    script.answer("POST", CANCEL, Answer(202, a_run("cancelling")))
    script.plays = [[*EVENTS[:3], Hold()]]
    with subprocess.Popen(
        [sys.executable, "-m", "lychd", "cancel", RUN],
        cwd=ROOT,
        env=environment(LYCHD_URL=url, LYCHD_TOKEN="secret", LYCHD_DATA=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while "asked for by" not in process.stdout.readline():
            continue
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (
        130,
        f"The cancellation goes on; follow it with `lychd follow {RUN}`.\n",
    )


def test_lists_say_what_keeps_a_run_from_its_end(script: Script, lychd: Lychd) -> None:
    items = [a_run("cancelling", containment=REASON), a_run("running", containment=REASON), a_run("cancelling")]
    script.answer("GET", "/runs", Answer(200, {"items": items, "next": None}))
    _, cancelling, failing, quiet = lychd("runs").stdout.splitlines()
    assert cancelling.endswith(f"not everything is stopped yet: {REASON}"[:120])
    assert failing.endswith(f"failing, containment uncertain: {REASON}"[:120])
    assert quiet.split()[3] == "cancelling"


def test_runs_in_quarantine_are_always_listed(script: Script, lychd: Lychd) -> None:
    aside = a_run("queued", quarantine={"since": ASKED["at"], "reason": "it kills its worker"})
    aside["id"] = RUN.replace("0001", "0002")
    script.answer(
        "GET",
        "/runs",
        lambda asked: Answer(200, {"items": [aside] if "quarantined" in asked.query else [a_run()], "next": None}),
    )
    lines = lychd("runs", "--status", "running").stdout.splitlines()
    assert lines[3] == "In quarantine, waiting for a person:"
    assert (lines[5].split()[0], lines[5].endswith("quarantined: it kills its worker")) == (aside["id"], True)
    (only,) = lychd("runs", "--quarantined").stdout.splitlines()[1:]
    assert only.split()[0] == aside["id"]


@pytest.mark.contract("CAN-4", "CAN-11")
def test_a_vessel_cancels_what_runs_and_leaves_what_has_ended(vessel_url: str, tmp_path: Path) -> None:
    home = Home(tmp_path, vessel_url)
    with home.vessel():
        never = str(tmp_path / "go")
        run = home.json("submit", "talk", "--input", json.dumps({"wait_for": never}))["id"]
        eventually_sync(lambda: home.json("show", run)["status"] == "running", within=30)
        code, out, err = home.lychd("cancel", run)
        assert (code, err) == (0, "")
        assert out.splitlines()[-1].split()[1:] == ["run", "cancelled"]
        shown = home.json("show", run)
        assert (shown["status"], shown["cancel"]["by"]) == ("cancelled", "operator")
        follow, _, _ = home.lychd("follow", run)
        assert follow == 2

        code, out, _ = home.lychd("submit", "talk", "--follow", "--json")
        done = json.loads(out.splitlines()[-1])["run"]["id"]
        code, out, err = home.lychd("cancel", done)
        assert (code, err) == (1, "")
        assert out.splitlines()[-1] == "It was done before; nothing was changed."
