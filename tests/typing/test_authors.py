"""The type checker understands Patterns: silent about good ones, loud on exactly the bad lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOOD = sorted(HERE.glob("ok_*.py"))
BAD = sorted(HERE.glob("bad_*.py"))


@pytest.fixture(scope="module")
def findings() -> dict[Path, set[int]]:
    """The lines with an error, numbered from 1, by file."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson", *map(str, [*GOOD, *BAD])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, 1), done.stderr
    found: dict[Path, set[int]] = {path: set() for path in [*GOOD, *BAD]}
    for finding in json.loads(done.stdout)["generalDiagnostics"]:
        if finding["severity"] == "error":
            found[Path(finding["file"])].add(finding["range"]["start"]["line"] + 1)
    return found


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_well_written_pattern_has_no_type_errors(path: Path, findings: dict[Path, set[int]]):
    assert findings[path] == set()


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_each_marked_mistake_is_a_type_error_and_nothing_else_is(path: Path, findings: dict[Path, set[int]]):
    lines = path.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert marked
    assert findings[path] == marked
