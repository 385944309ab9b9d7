"""The reference of the commands names every command, option, exit code and finding, and no other."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from lychd.cli.command import Exit
from lychd.glue import GUARD_LOST
from lychd.vessel import Exit as Vessel

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text()
SECTIONS = {
    **dict.fromkeys(("submit", "follow", "runs", "show", "cancel", "consents", "decide", "patterns"), "###"),
    **dict.fromkeys(("doctor", "quarantine"), "##"),
}
COMMON = {"--data", "--json", "--no-color", "--help", "-h"}
DJANGO = {"--version", "-v", "--verbosity", "--settings", "--pythonpath", "--traceback", "--force-color"}


def section(name: str, level: str) -> str:
    found = re.search(rf"^{level} lychd {name}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


@pytest.mark.parametrize("name", SECTIONS)
def test_every_option_of_a_command_is_documented_and_no_other(name: str) -> None:
    parser = import_module(f"lychd.management.commands.{name}").Command().create_parser("lychd", name)
    options = {word for action in parser._actions for word in action.option_strings} - COMMON - DJANGO
    told = set(re.findall(r"--[a-z][a-z-]*", section(name, SECTIONS[name]))) - COMMON
    # A command may speak of another's options by name.
    assert options <= told
    assert told - options <= {"--follow", "--cursor", "--no-wait", "--patience"}


def test_every_exit_code_is_documented() -> None:
    table = TEXT.partition("| exit code |")[2].partition("\n\n")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {int(code) for code in Exit}


def test_every_way_in_which_a_vessel_ends_is_documented() -> None:
    table = TEXT.partition("| ends with |")[2].partition("\n\n")[0]
    usage = 2
    known = {int(code) for code in Vessel} | {GUARD_LOST, usage}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == known


def test_every_finding_of_the_doctor_is_documented() -> None:
    sources = [import_module(f"lychd.cli.{name}").__file__ for name in ("examine", "stuck", "refusal")]
    text = "".join(Path(str(source)).read_text() for source in sources)
    checks = set(re.findall(r'report\.find\("(\w+)"', text)) | set(re.findall(r'(?:Search|Finding)\(\s*"(\w+)"', text))
    assert set(re.findall(r"^\| `(\w+)` \|", section("doctor", "##"), re.MULTILINE)) == checks
