"""Which Pattern a Run gets, and which one carries it on later."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from django.apps import AppConfig, apps
from pydantic import BaseModel

from runs.errors import PatternError, PatternNotFound
from runs.patterns import AnyPattern, Finish, Goto, Pattern, PatternRegistry, discover


class Empty(BaseModel):
    pass


def a_pattern(key: str = "tidy", revision: str = "1", *, nodes: int = 1, **options: Any) -> AnyPattern:
    pattern = Pattern(key, revision=revision, input=Empty, state=Empty, output=Empty, **options)
    if nodes == 1:

        @pattern.start
        async def only(ctx: Any) -> Finish[Empty]:
            return Finish(Empty())
    else:

        @pattern.start
        async def begin(ctx: Any) -> Goto[Literal["end"]]:
            return Goto("end")

        @pattern.node
        async def end(ctx: Any) -> Finish[Empty]:
            return Finish(Empty())

    return pattern


@pytest.mark.contract("ADM-2")
def test_a_new_run_gets_the_active_revision():
    old, new = a_pattern(revision="1", active=False), a_pattern(revision="2")
    for order in ([old, new], [new, old]):
        assert PatternRegistry(order).select("tidy") is new


@pytest.mark.contract("ADM-2")
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("inventroy", "no Pattern 'inventroy'; did you mean 'inventory'?"),
        ("zzz", r"no Pattern 'zzz'\."),
        ("retired", r"no Pattern 'retired'"),
        ("x" * 100_000, "no Pattern 'x+…'"),
    ],
)
def test_an_unknown_key_is_not_found_and_the_nearest_is_named(key: str, words: str):
    registry = PatternRegistry([a_pattern("inventory"), a_pattern("retired", active=False)])
    with pytest.raises(PatternNotFound, match=words) as caught:
        registry.select(key)
    assert (caught.value.code, caught.value.status) == ("pattern_not_found", 404)
    assert len(caught.value.detail) < 300


@pytest.mark.contract("CLM-11")
def test_a_pinned_older_revision_executes_though_another_is_active():
    old, new = a_pattern(revision="1", active=False), a_pattern(revision="2", continues=["1"])
    assert PatternRegistry([new, old]).exact("tidy", "1", old.digest) is old
    assert PatternRegistry([new, old]).exact("tidy", "2", new.digest) is new


@pytest.mark.contract("CLM-9")
def test_a_pinned_revision_with_another_graph_is_refused():
    pinned = a_pattern(nodes=2)
    registry = PatternRegistry([a_pattern()])
    with pytest.raises(PatternError, match="The pinned Pattern changed: 'tidy' revision 1"):
        registry.exact("tidy", "1", pinned.digest)


@pytest.mark.contract("CLM-9")
def test_a_pinned_revision_that_is_gone_is_refused():
    registry = PatternRegistry([a_pattern(revision="2")])
    for key, revision in (("tidy", "1"), ("other", "2")):
        with pytest.raises(PatternNotFound, match="Nothing here carries on Runs of Pattern"):
            registry.exact(key, revision, "0" * 64)


def test_a_newer_pattern_adopts_the_revisions_it_continues():
    gone = a_pattern(revision="1", nodes=2)
    heir = a_pattern(revision="3", continues=["1", "2"])
    registry = PatternRegistry([a_pattern("other", continues=["0"]), heir])
    assert registry.exact("tidy", "1", gone.digest) is heir
    with pytest.raises(PatternNotFound):
        registry.exact("tidy", "0", gone.digest)


def test_the_active_heir_comes_first_then_the_latest_declared():
    second = a_pattern(revision="2", continues=["1"], active=False)
    third = a_pattern(revision="3", continues=["1", "2"])
    assert PatternRegistry([third, second]).exact("tidy", "1", "x") is third
    third_retired = a_pattern(revision="3", continues=["1"], active=False)
    assert PatternRegistry([second, third_retired]).exact("tidy", "1", "x") is third_retired


def test_two_active_revisions_are_refused():
    with pytest.raises(PatternError, match="'tidy' has two active revisions, 1 and 2"):
        PatternRegistry([a_pattern(revision="1"), a_pattern(revision="2")])


def test_a_revision_is_declared_once_but_may_be_seen_twice():
    pattern = a_pattern()
    assert PatternRegistry([pattern, pattern]).all() == (pattern,)
    with pytest.raises(PatternError, match="'tidy' revision 1 is declared twice"):
        PatternRegistry([pattern, a_pattern(active=False)])


def test_an_unsound_graph_does_not_get_in():
    with pytest.raises(PatternError, match="has no start"):
        PatternRegistry([Pattern("empty", input=Empty, state=Empty, output=Empty)])


def test_the_order_is_that_of_registration():
    patterns = [a_pattern("b"), a_pattern("a", "1", active=False), a_pattern("a", "2"), a_pattern("c")]
    registry = PatternRegistry(patterns)
    assert list(registry.all()) == patterns
    assert [pattern.key for pattern in registry.active()] == ["b", "a", "c"]


@pytest.fixture
def app(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed app with a name of its own whose files the test writes."""
    name = "app_" + request.node.name.replace("[", "_").replace("]", "")[:60]
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, name, module)
    config = AppConfig(name, module)
    monkeypatch.setattr(apps, "get_app_configs", lambda: [config])
    yield folder
    for loaded in [loaded for loaded in sys.modules if loaded.startswith(name + ".")]:
        del sys.modules[loaded]


PATTERN = """
from __future__ import annotations
from pydantic import BaseModel
from runs.patterns import Context, Finish, Pattern

class Empty(BaseModel):
    pass

def make(key):
    pattern = Pattern(key, input=Empty, state=Empty, output=Empty)
    @pattern.start
    async def only(ctx: Context[Empty, Empty]) -> Finish[Empty]:
        return Finish(Empty())
    return pattern

second = make("second")
first = make("first")
again = second
"""


def test_patterns_of_an_app_are_discovered_in_their_order_each_once(app: Path):
    (app / "patterns.py").write_text(PATTERN)
    assert [pattern.key for pattern in discover()] == ["second", "first"]
    assert [pattern.key for pattern in discover()] == ["second", "first"]


def test_a_package_of_patterns_may_reexport_them(app: Path):
    (app / "patterns").mkdir()
    (app / "patterns" / "mine.py").write_text(PATTERN)
    (app / "patterns" / "__init__.py").write_text("from .mine import first\n")
    assert [pattern.key for pattern in discover()] == ["first"]


def test_an_app_without_patterns_is_no_error(app: Path):
    assert discover() == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import no_such_module_anywhere", ModuleNotFoundError),
        ("from runs.patterns import NoSuchName", ImportError),
        ("1 / 0", ZeroDivisionError),
        (PATTERN + "\nmake('Bad Key')", PatternError),
    ],
    ids=["module", "name", "code", "pattern"],
)
def test_an_error_inside_a_patterns_module_is_not_swallowed(app: Path, text: str, error: type[Exception]):
    (app / "patterns.py").write_text(text)
    with pytest.raises(error):
        discover()
