"""The how-to for authors, followed to the letter in a project that is not ours: a Pattern, tests and our test kit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "tests" / "examples"
PAGE = REPOSITORY / "docs" / "how-to" / "write-a-pattern.md"
FILES = ("wordcount/patterns.py", "pytest.ini", "wordcount/test_words.py")
# What our own test run has set, and nobody else would.
OURS = re.compile("DATABASE_URL|DJANGO_SETTINGS_MODULE|PYTEST.*|PYTHONPATH|LYCHD_(?!TEST_POSTGRES_BIN).*")


def blocks() -> list[str]:
    """The code of the page that is a file."""
    return re.findall(r"^```(?:python|ini)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def copied(folder: Path) -> Path:
    """The project as a reader of the page would make it."""
    (folder / "wordcount").mkdir(parents=True)
    (folder / "wordcount" / "__init__.py").touch()
    for name, text in zip(FILES, blocks(), strict=True):
        (folder / name).write_text(text)
    return folder


def pytest_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not OURS.fullmatch(name)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_page_shows_the_files_that_are_run() -> None:
    for name, text in zip(FILES, blocks(), strict=True):
        assert text == (EXAMPLES / name).read_text(), f"{PAGE.name} shows another {name}"


def test_the_example_is_a_page_long() -> None:
    lines = [line for line in (EXAMPLES / FILES[0]).read_text().splitlines() if line.strip()]
    assert len(lines) <= 40


def test_the_tests_of_the_page_pass_in_a_project_of_their_own_with_a_database_that_vanishes(tmp_path: Path) -> None:
    done = pytest_in(copied(tmp_path / "project"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    (server,) = re.findall(r"^lychd database: embedded server in (.+)$", done.stdout, re.MULTILINE)
    assert not Path(server).exists()


def test_a_run_that_ends_otherwise_fails_the_test_and_tells_its_steps(tmp_path: Path) -> None:
    project = copied(tmp_path / "project")
    (project / "wordcount" / "test_words.py").write_text(
        """
from wordcount.patterns import words

async def test_nobody_is_there(vessel):
    await vessel.run(words, {"url": "http://127.0.0.1:9/"}, within=20)
"""
    )
    done = pytest_in(project)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "The Run ended as failed, not as done." in done.stdout
    assert "node_failed in node fetch: URLError: " in done.stdout
    assert '"phase": "retry", "attempt": 3' in done.stdout
