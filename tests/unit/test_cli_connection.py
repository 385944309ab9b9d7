"""Where commands find the Vessel and its token, and what they say when they do not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lychd.cli.command import sentences
from lychd.cli.connection import Connection, NoToken, NoVessel, find
from lychd.client import ConnectionLost, NotLychd, OutcomeUnknown, Problem, Unreachable
from runs.errors import Refused

URL = "http://127.0.0.1:8123"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "vessel.json").write_text(json.dumps({"url": URL, "pid": os.getpid(), "boot": "b"}))
    (tmp_path / "operator.token").write_text("local\n")
    return tmp_path


def test_the_data_folder_knows_address_and_token(data: Path) -> None:
    found = find(data, {})
    assert (found.url, found.token, found.source, found.pid) == (URL, "local", "cli", os.getpid())


def test_the_environment_wins(data: Path) -> None:
    found = find(data, {"LYCHD_URL": "https://there", "LYCHD_TOKEN": "theirs"})
    assert (found.url, found.token, found.source) == ("https://there", "theirs", None)


def test_each_half_may_come_from_the_environment_alone(data: Path) -> None:
    assert find(data, {"LYCHD_TOKEN": "mine"}).url == URL
    assert find(data, {"LYCHD_URL": "http://localhost:1"}).token == "local"
    assert find(data, {"LYCHD_URL": "unix:/run/lychd"}).token == "local"


@pytest.mark.parametrize("url", ["https://there", "http://127.0.0.1.evil.example", "http://[", "http://10.0.0.1:8000"])
def test_the_local_token_never_goes_to_another_machine(data: Path, url: str) -> None:
    with pytest.raises(NoToken, match="set LYCHD_TOKEN"):
        find(data, {"LYCHD_URL": url})


def test_no_vessel_is_a_sentence_with_the_command_that_helps(tmp_path: Path) -> None:
    with pytest.raises(NoVessel, match="start one with `lychd up`"):
        find(tmp_path, {})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url"', "\x00"])
def test_a_damaged_note_is_a_sentence(data: Path, text: str) -> None:
    (data / "vessel.json").write_text(text)
    with pytest.raises(NoVessel, match="is damaged"):
        find(data, {})


def test_no_token_is_a_sentence(data: Path) -> None:
    (data / "operator.token").unlink()
    with pytest.raises(NoToken, match=r"There is no token in .*operator\.token"):
        find(data, {})
    (data / "operator.token").write_bytes(b"\xff\xfe")
    with pytest.raises(NoToken, match="holds no token"):
        find(data, {})


def test_a_vessel_that_came_back_elsewhere_is_found_again(data: Path) -> None:
    found = find(data, {})
    (data / "vessel.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": 1}))
    assert found.where_now() == "http://127.0.0.1:9"
    (data / "vessel.json").unlink()
    assert found.where_now() == URL


def test_silence_says_whether_the_process_is_gone(data: Path) -> None:
    assert "does not answer" in find(data, {}).silence()
    (data / "vessel.json").write_text(json.dumps({"url": URL, "pid": 2**22 + 1}))
    assert "is gone" in find(data, {}).silence()
    assert "LYCHD_URL" in find(data, {"LYCHD_URL": URL}).silence()


def problem(status: int, detail: str, **facts: object) -> Problem:
    return Problem(detail, status=status, code="c", facts=dict(facts))


def test_every_failure_is_one_sentence() -> None:
    here = Connection(URL, "t", "/d/operator.token", note=None)
    assert sentences(Unreachable("refused."), here) == [f"lychd: No Vessel answers at {URL} (LYCHD_URL)."]
    assert sentences(ConnectionLost("gone."), here) == ["lychd: gone."]
    assert sentences(NotLychd("odd\x1b[2J"), here) == ["lychd: odd\\x1b[2J."]
    assert sentences(OutcomeUnknown("lost."), here) == ["lychd: lost. Look with `lychd runs` before you repeat it."]
    assert sentences(Refused("no."), None) == ["lychd: no."]
    assert sentences(Refused("Did you mean 'x'?"), None) == ["lychd: Did you mean 'x'?"]
    assert sentences(problem(404, "There is no such Run."), here) == ["lychd: There is no such Run."]


def test_a_token_that_is_not_accepted_is_named_by_its_origin() -> None:
    told = sentences(problem(401, "Unauthenticated."), Connection(URL, "t", "/d/operator.token"))
    origin = "the token in /d/operator.token"
    assert told == [f"lychd: The Vessel at {URL} does not accept {origin}: start the Vessel again, or set LYCHD_TOKEN."]
    assert "set another one" in sentences(problem(401, ""), Connection(URL, "t", "LYCHD_TOKEN"))[0]


def test_a_conflict_names_the_run_it_is_about() -> None:
    assert sentences(problem(409, "The session has a live Run.", run="r-1")) == [
        "lychd: The session has a live Run (Run r-1)."
    ]
    assert sentences(problem(409, "Run r-1 lives.", run="r-1")) == ["lychd: Run r-1 lives."]


def test_invalid_input_lists_each_error_with_its_pointer() -> None:
    errors = [{"pointer": "/input/root", "detail": "Field required"}, {"pointer": "", "detail": "odd\n"}]
    assert sentences(problem(422, "The input is not valid.", errors=errors)) == [
        "lychd: The input is not valid.",
        "  /input/root: Field required",
        "  the whole: odd⏎",
    ]
    single = "The request is not valid: /priority: must be 0 to 100."
    errors = [{"pointer": "/priority", "detail": "must be 0 to 100"}]
    assert sentences(problem(422, single, errors=errors)) == [f"lychd: {single}"]
