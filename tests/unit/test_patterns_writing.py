"""A Pattern's graph is known without running it, and whatever is wrong with it is a sentence."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn

import pytest
from pydantic import BaseModel

from runs.patterns import Finish, Goto, Pattern, PatternError, UndeclaredOutcome, Wait
from runs.patterns.manifest import ManifestEdge

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTheChecker


class Input(BaseModel):
    root: str = "."


class State(BaseModel):
    names: list[str] = []


class Report(BaseModel):
    count: int = 0


class Longer(Report):
    title: str = ""


class Needy(BaseModel):
    must: int
    also: str


@dataclass(frozen=True, kw_only=True)
class Ask[L: str](Wait[L]):
    kind: ClassVar[str] = "ask"

    title: str = ""

    def request(self) -> dict[str, Any]:
        return {"title": self.title}


@dataclass(frozen=True, kw_only=True)
class Labelled[T, L: str](Ask[L]):
    kind: ClassVar[str] = "labelled"

    label: T


@dataclass(frozen=True, kw_only=True)
class Nap(Wait[Literal["end", "begin"]]):
    kind: ClassVar[str] = "nap"

    def request(self) -> dict[str, Any]:
        return {}


class Nameless[L: str](Wait[L]):
    def request(self) -> dict[str, Any]:
        return {}


class Abstract[L: str](Wait[L]):
    kind: ClassVar[str] = "abstract"


type Target = Literal["end"]
type ToEnd = Goto[Target]
type EndOr[T, X: str] = Goto[X] | Finish[T]
type Never_Ending = Never_Ending | Goto[Literal["end"]]
type Broken = Goto[Nowhere]  # pyright: ignore[reportUndefinedVariable]  # noqa: F821


def a_pattern(**options: Any) -> Pattern[Any, Any, Any]:
    return Pattern(**{"key": "tidy", "input": Input, "state": State, "output": Report, **options})


def with_end(pattern: Pattern[Any, Any, Any]) -> Pattern[Any, Any, Any]:
    async def end(ctx: Any) -> Finish[Report]:
        return Finish(Report())

    pattern.node(end)
    return pattern


def edges_of(annotation: Any, pattern: Pattern[Any, Any, Any] | None = None) -> list[tuple[str | None, str]]:
    async def begin(ctx: Any) -> None: ...

    begin.__annotations__["return"] = annotation
    pattern = pattern or a_pattern()
    pattern.start(begin)
    return [(edge.target, edge.via) for edge in pattern.node_spec("begin").edges]


@pytest.mark.parametrize(
    ("annotation", "edges"),
    [
        (Finish[Report], [(None, "finish")]),
        (Finish[Longer], [(None, "finish")]),
        (Goto[Literal["end"]], [("end", "goto")]),
        (Goto[Literal["end", "other"]] | ToEnd, [("end", "goto"), ("other", "goto")]),
        (Goto[Literal["b"]] | Finish[Report] | Goto[Literal["a"]], [("b", "goto"), (None, "finish"), ("a", "goto")]),
        (Goto[Target | Literal["b"]], [("end", "goto"), ("b", "goto")]),
        (Annotated[Goto[Literal["end"]], "note"], [("end", "goto")]),
        (ToEnd, [("end", "goto")]),
        (EndOr[Report, Literal["other"]], [("other", "goto"), (None, "finish")]),
        (ToEnd | Finish[Report], [("end", "goto"), (None, "finish")]),
        (Ask[Literal["end"]], [("end", "ask")]),
        (Ask[Target] | Goto[Target], [("end", "ask"), ("end", "goto")]),
        (Labelled[int, Literal["end"]], [("end", "labelled")]),
        (Nap, [("end", "nap"), ("begin", "nap")]),
        ('Goto[Literal["end"]] | Finish[Report]', [("end", "goto"), (None, "finish")]),
        ("'Finish[Report]'", [(None, "finish")]),
    ],
)
def test_the_return_type_of_a_node_is_its_edges(annotation: Any, edges: list[tuple[str | None, str]]):
    assert edges_of(annotation) == edges


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (None, "may return None"),
        (Finish[Report] | None, "may return None"),
        (int, "holds int, which is no outcome"),
        (Goto[Literal["end"]] | str, "holds str, which is no outcome"),
        (Any, "holds Any, which is no outcome"),
        (NoReturn, "holds NoReturn, which is no outcome"),
        (list[Goto[Literal["end"]]], "which is no outcome"),
        (Finish, r"write Finish\[Report\]"),
        (Finish[State], "finishes with State, but the Pattern's output is Report"),
        (Finish[Any], "finishes with Any, but"),
        (Goto, "does not say which node Goto leads to"),
        (Goto[str], "does not say which node Goto leads to"),
        (Goto[Literal[1]], "leads to 1, but nodes are named by plain text"),  # pyright: ignore[reportInvalidTypeArguments]
        (Ask, "does not say which node Ask leads to"),
        (Ask[str], r'write Ask\[Literal\["name"\]\]'),
        (Wait[Literal["end"]], "Wait is no wait of its own"),
        (Abstract[Literal["end"]], "Abstract is no wait of its own"),
        (Nameless[Literal["end"]], "Nameless must set `kind`"),
        (Never_Ending, "alias of itself"),
        (Broken, "alias Broken names 'Nowhere'"),
        ("Goto[end]", r"names 'end', which does not exist .* Literal\[\"end\"\]"),
        ("Goto[", "cannot be read"),
        ("Finish[OnlyForTheChecker]", "names 'OnlyForTheChecker', which does not exist when the module is imported"),
    ],
)
def test_a_return_type_that_is_no_graph_is_refused_at_the_node(annotation: Any, words: str):
    with pytest.raises(PatternError, match=words) as caught:
        edges_of(annotation)
    assert caught.value.detail.startswith("Pattern 'tidy', node 'begin': ")
    assert caught.value.detail.endswith(".")


def test_annotations_may_be_text_that_names_what_stands_in_the_function_around():
    @dataclass(frozen=True, kw_only=True)
    class Local[L: str](Wait[L]):
        kind: ClassVar[str] = "local"

        def request(self) -> dict[str, Any]:
            return {}

    pattern = a_pattern()

    @pattern.start
    async def begin(ctx: OnlyForTheChecker) -> Local[Literal["begin"]] | Finish[Report]:
        return Finish(Report())

    assert isinstance(begin.__annotations__["return"], str)
    assert [edge.via for edge in pattern.node_spec("begin").edges] == ["local", "finish"]


def test_a_wrapped_node_is_read_like_the_node_itself():
    def logged(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(fn)
        async def inner(ctx: Any) -> Any:
            return await fn(ctx)

        return inner

    pattern = a_pattern()

    @pattern.start
    @logged
    async def begin(ctx: Any) -> Finish[Report]:
        return Finish(Report())

    assert pattern.compile().start == "begin"


def test_a_node_may_be_declared_bare_or_with_arguments():
    pattern = a_pattern()

    @pattern.start(replay_safe=True, timeout=timedelta(minutes=1))
    async def begin(ctx: Any) -> Goto[Literal["end"]]:
        """Begin here."""
        return Goto("end")

    @pattern.node(timeout=2)
    async def end(ctx: Any) -> Finish[Report]:
        return Finish(Report())

    spec = pattern.node_spec("begin")
    assert (spec.fn, spec.is_start, spec.replay_safe, spec.timeout) == (begin, True, True, 60.0)
    spec = pattern.node_spec("end")
    assert (spec.fn, spec.is_start, spec.replay_safe, spec.timeout) == (end, False, False, 2.0)
    assert pattern.manifest.edges == (ManifestEdge("begin", "end", "goto"), ManifestEdge("end", None, "finish"))
    assert pattern.manifest.node("begin").doc == "Begin here."


def _not_async(ctx: Any) -> Finish[Report]:
    return Finish(Report())


async def _generator(ctx: Any) -> AsyncIterator[Finish[Report]]:
    yield Finish(Report())


async def _no_argument() -> Finish[Report]:
    return Finish(Report())


async def _two_arguments(ctx: Any, more: int) -> Finish[Report]:
    return Finish(Report())


async def _keyword_only(*, ctx: Any) -> Finish[Report]:
    return Finish(Report())


async def _no_annotation(ctx):  # type: ignore[no-untyped-def]
    return Finish(Report())


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (_not_async, "must be an async function"),
        (_generator, "must be an async function"),
        (lambda ctx: ctx, "must be an async function"),
        (5, "must be an async function"),
        (_no_argument, "takes one argument, the context"),
        (_two_arguments, "takes one argument, the context"),
        (_keyword_only, "takes one argument, the context"),
        (_no_annotation, "has no return annotation; write it as"),
    ],
)
def test_what_cannot_be_a_node_is_refused_when_it_is_decorated(fn: Any, words: str):
    with pytest.raises(PatternError, match=words):
        a_pattern().node(fn)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), timedelta(0), "5", True, timedelta(days=800)])
def test_a_time_limit_must_make_sense(timeout: Any):
    with pytest.raises(PatternError, match="its timeout must be"):
        with_end(a_pattern()).node(timeout=timeout)(_renamed("other"))


def _renamed(name: str) -> Any:
    async def node(ctx: Any) -> Finish[Report]:
        return Finish(Report())

    node.__name__ = name
    return node


def test_names_of_nodes_are_taken_once():
    with pytest.raises(PatternError, match="node 'end': there is a node of that name already"):
        with_end(with_end(a_pattern()))
    with pytest.raises(PatternError, match="identifier of at most 100 characters"):
        a_pattern().node(_renamed("x" * 101))
    with pytest.raises(PatternError, match="replay_safe is True or False"):
        a_pattern().node(replay_safe="yes")(_renamed("x"))  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_pattern_has_exactly_one_start():
    pattern = a_pattern()
    pattern.start(_renamed("one"))
    with pytest.raises(PatternError, match="node 'two': a Pattern has one start, and that is 'one'"):
        pattern.start(_renamed("two"))
    with pytest.raises(PatternError, match="has no start"):
        with_end(a_pattern()).compile()
    with pytest.raises(PatternError, match="has no start"):
        a_pattern().compile()


def graph(start: Any, **nodes: Any) -> Pattern[Any, Any, Any]:
    pattern = a_pattern()
    for name, annotation in {"begin": start, **nodes}.items():
        node = _renamed(name)
        node.__annotations__["return"] = annotation
        (pattern.start if name == "begin" else pattern.node)(node)
    return pattern


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (graph(Goto[Literal["ned"]], end=Finish[Report]), "node 'begin' leads to 'ned', which is not a node; did you"),
        (graph(Goto[Literal["x"]] | Finish[Report]), "leads to 'x', which is not a node."),
        (graph(Ask[Literal["x"]] | Finish[Report]), "leads to 'x', which is not a node."),
        (graph(Finish[Report], lost=Finish[Report]), "no edge leads from the start 'begin' to 'lost'"),
        (graph(Finish[Report], a=Goto[Literal["b"]], b=Goto[Literal["a"]] | Finish[Report]), "to 'a', 'b'"),
        (graph(Goto[Literal["begin"]]), "never ends: no node returns Finish"),
        (graph(Ask[Literal["b"]], b=Goto[Literal["begin"]]), "never ends: no node returns Finish"),
        (
            graph(Goto[Literal["a"]] | Finish[Report], a=Goto[Literal["b"]], b=Ask[Literal["a"]]),
            "never ends once it is in 'a', 'b'",
        ),
    ],
)
def test_a_graph_that_cannot_be_walked_is_refused(pattern: Pattern[Any, Any, Any], words: str):
    for _ in range(2):
        with pytest.raises(PatternError, match=words):
            pattern.compile()


def test_a_loop_with_a_way_out_is_fine():
    pattern = graph(Goto[Literal["a"]], a=Goto[Literal["begin", "a"]] | Finish[Report])
    assert pattern.compile().start == "begin"


def test_a_compiled_graph_is_closed():
    pattern = graph(Finish[Report])
    assert pattern.compile() is pattern.manifest
    assert pattern.digest == pattern.manifest.digest
    with pytest.raises(PatternError, match="compiled already"):
        with_end(pattern)


def test_only_a_durable_pattern_can_wait():
    for durable in (True, False):
        pattern = a_pattern(durable=durable)
        edges_of(Ask[Literal["begin"]] | Finish[Report], pattern)
        if durable:
            assert pattern.compile().durable
        else:
            with pytest.raises(PatternError, match=r"node 'begin' waits \(ask\), but .* not durable"):
                pattern.compile()


@pytest.mark.parametrize("key", ["", "Tidy", "1x", "a b", "a--b", "-a", "a/", "x" * 101, "ä", "a\n", None, 5])
def test_a_key_is_plain_words(key: Any):
    with pytest.raises(PatternError, match="key is lower-case words"):
        a_pattern(key=key)


@pytest.mark.parametrize("key", ["a", "tidy", "tidy-up.files_2", "x" * 100])
def test_plain_words_are_a_key(key: str):
    assert a_pattern(key=key).title == key


@pytest.mark.parametrize("revision", ["", "-1", "a b", "x" * 51, 1, None, "1\n"])
def test_a_revision_is_a_short_word(revision: Any):
    with pytest.raises(PatternError, match="a revision is"):
        a_pattern(revision=revision)
    with pytest.raises(PatternError, match="a revision is"):
        a_pattern(revision="9", continues=[revision])


def test_a_pattern_continues_older_revisions_but_not_itself():
    assert a_pattern(revision="3", continues=["1", "2", "1"]).continues == ("1", "2")
    with pytest.raises(PatternError, match="cannot continue its own revision 3"):
        a_pattern(revision="3", continues=["3"])
    with pytest.raises(PatternError, match="`continues` is a list"):
        a_pattern(revision="3", continues="12")


@pytest.mark.parametrize("word", ["input", "state", "output"])
@pytest.mark.parametrize("model", [dict, int, None, "Input", Input()])
def test_input_state_and_output_are_pydantic_models(word: str, model: Any):
    with pytest.raises(PatternError, match=f"{word} must be a pydantic model"):
        a_pattern(**{word: model})


def test_a_state_that_needs_arguments_needs_an_initial():
    with pytest.raises(PatternError, match=r"Needy cannot be made without arguments \(must, also\)"):
        a_pattern(state=Needy)
    pattern = a_pattern(state=Needy, initial=lambda given: Needy(must=1, also=given.root))
    assert pattern.initial_state(Input(root="/x")) == Needy(must=1, also="/x")
    assert a_pattern().initial_state(Input()) == State()
    with pytest.raises(PatternError, match="`initial` made a State, not Needy"):
        a_pattern(state=Needy, initial=lambda _: State()).initial_state(Input())


async def run(declared: Any, returned: Any) -> Any:
    async def begin(ctx: Any) -> Any:
        return returned

    begin.__annotations__["return"] = declared
    pattern = a_pattern()
    pattern.start(begin)
    return await pattern.run_node("begin", object())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("declared", "returned"),
    [
        (Goto[Literal["end"]], Goto("end")),
        (Goto[Literal["end"]] | Finish[Report], Finish(Report())),
        (Ask[Literal["end"]], Ask(then="end")),
        (Nap, Nap(then="end")),
    ],
)
async def test_a_declared_outcome_is_handed_on(declared: Any, returned: Any):
    assert await run(declared, returned) is returned


@pytest.mark.parametrize(
    ("declared", "returned", "words"),
    [
        (Goto[Literal["end"]], Goto("other"), "Node 'begin' returned goto to 'other', which its return annotation"),
        (Goto[Literal["end"]], Finish(Report()), "returned finish, which its return annotation does not declare"),
        (Ask[Literal["end"]], Ask(then="other"), "returned ask to 'other', which"),
        (Ask[Literal["end"]], Nap(then="end"), "returned nap to 'end', which"),
        (Finish[Report], None, "returned None, which is not an outcome"),
        (Finish[Report], Report(), "returned a Report, which is not an outcome"),
        (Goto[Literal["end"]], "end", "returned a str, which is not an outcome"),
    ],
)
async def test_an_undeclared_outcome_fails_the_node_by_name(declared: Any, returned: Any, words: str):
    with pytest.raises(UndeclaredOutcome, match=words) as caught:
        await run(declared, returned)
    assert (caught.value.code, caught.value.facts) == ("undeclared_outcome", {"node": "begin"})


async def test_a_nodes_own_error_passes_through_and_an_unknown_node_is_named():
    async def begin(ctx: Any) -> Finish[Report]:
        raise ZeroDivisionError

    pattern = a_pattern()
    pattern.start(begin)
    with pytest.raises(ZeroDivisionError):
        await pattern.run_node("begin", object())  # pyright: ignore[reportArgumentType]
    with pytest.raises(PatternError, match="has no node 'gone'"):
        await pattern.run_node("gone", object())  # pyright: ignore[reportArgumentType]
