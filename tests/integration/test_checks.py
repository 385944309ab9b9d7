"""System checks: what is wrong is a sentence with an id before anything starts, and a production site has none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from pydantic import BaseModel

from lychd import config as configuration
from lychd.checks import check_limits, check_production, check_routes
from runs import checks as pattern_checks
from runs.checks import check_patterns
from runs.errors import PatternError
from runs.patterns import Context, Finish, Pattern

ROOT = Path(__file__).resolve().parents[2]


class Nothing(BaseModel):
    pass


def a_pattern(key: str = "walk", *, sound: bool = True, **more: Any) -> Any:
    pattern = Pattern(key, input=Nothing, state=Nothing, output=Nothing, **more)
    if sound:

        @pattern.start
        async def begin(ctx: Context[Nothing, Nothing]) -> Finish[Nothing]:
            return Finish(Nothing())

    return pattern


@dataclass
class Named:
    """As much of a module of Patterns as `discover` reads."""

    patterns: list[Any]


def ids(messages: list[Any]) -> list[str]:
    return [message.id for message in messages]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Any:
    def declare(*patterns: Any) -> list[Any]:
        monkeypatch.setattr(pattern_checks, "discover", lambda: list(patterns))
        return check_patterns()

    return declare


def test_everything_that_ships_passes_every_check() -> None:
    assert checks.run_checks() == []


def test_a_graph_that_is_not_sound_is_told_for_each_pattern(declared: Any) -> None:
    found = declared(a_pattern("one", sound=False), a_pattern("two", sound=False), a_pattern("three"))
    assert ids(found) == ["lychd.E001", "lychd.E001"]
    assert "one" in found[0].msg
    assert "two" in found[1].msg


def test_revisions_that_contradict_each_other_are_told(declared: Any) -> None:
    assert ids(declared(a_pattern(revision="1"), a_pattern(revision="2"))) == ["lychd.E002"]
    assert ids(declared(a_pattern(), a_pattern(active=False))) == ["lychd.E003"]
    assert ids(declared(a_pattern(active=False))) == ["lychd.W001"]
    assert ids(declared(a_pattern(active=False), a_pattern(revision="2", continues=["1"]))) == ["lychd.W002"]
    assert declared(a_pattern(active=False), a_pattern(revision="2")) == []


def test_a_module_of_patterns_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "broken_patterns_app"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "patterns.py").write_text("raise RuntimeError('no model is loaded')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ModuleType("broken_patterns_app")
    module.__path__ = [str(package)]
    module.__file__ = str(package / "__init__.py")
    broken = AppConfig("broken_patterns_app", module)
    monkeypatch.setattr(apps, "get_app_configs", lambda: [broken])
    assert [message.msg for message in check_patterns()] == [
        "Patterns cannot be loaded: RuntimeError: no model is loaded"
    ]


def test_a_pattern_error_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise PatternError("A node must be an async function.")

    monkeypatch.setattr(pattern_checks, "discover", refuse)
    assert [message.msg for message in check_patterns()] == [
        "Patterns cannot be loaded: A node must be an async function."
    ]


def with_config(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    monkeypatch.setattr(settings, "CONFIG", configuration.load(**values))


@pytest.mark.parametrize(
    "rule",
    [
        {"queue": "none", "priority": 50},
        {"queue": "runs", "priority": 101},
        {"queue": "runs", "priority": True},
        {"queue": "runs"},
        {"queue": "runs", "priority": 5, "colour": "red"},
    ],
)
def test_a_rule_that_cannot_route_is_told(rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with_config(monkeypatch, routes=(rule,))
    assert ids(check_routes()) == ["lychd.E101"]
    assert check_routes()[0].msg.startswith("LYCHD_ROUTES: ")


def test_a_rule_for_a_pattern_that_nobody_declares_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with_config(monkeypatch, routes=({"queue": "runs", "priority": 50, "pattern": "inventry"},))
    assert ids(check_routes()) == ["lychd.W101"]


def test_limits_that_do_not_fit_together_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_config(monkeypatch, max_body=1024, max_payload=1024)
    assert ids(check_limits()) == ["lychd.E111"]
    with_config(monkeypatch, django_pool=64, roots=(tmp_path, tmp_path / "none"))
    assert ids(check_limits()) == ["lychd.W111", "lychd.W112"]


def test_what_production_needs_is_told_by_the_names_of_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LYCHD_SECRET_KEY")
    with_config(monkeypatch, debug=True, csrf_origins=("lychd.example",))
    assert ids(check_production()) == [f"lychd.W12{number}" for number in range(1, 6)]


def deploy_check(**environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "DATABASE_URL", "LYCHD_DATA")}
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "check", "--deploy", "--fail-level", "WARNING"],
        env={**kept, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_documented_production_environment_passes_the_deployment_checks() -> None:
    found = deploy_check(
        LYCHD_SECURE="1",
        LYCHD_SECRET_KEY="0123456789abcdef" * 4,
        LYCHD_ALLOWED_HOSTS="lychd.example",
        LYCHD_PROXY_HEADERS="1",
    )
    assert found.returncode == 0, found.stderr
    assert "no issues" in found.stdout


def test_an_environment_for_one_machine_does_not() -> None:
    found = deploy_check()
    assert found.returncode == 1
    assert "LYCHD_SECURE" in found.stderr
