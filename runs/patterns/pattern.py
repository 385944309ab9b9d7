"""How a Pattern is written: a name, three models, and nodes whose return types are the graph.

Whatever is wrong with one node is said when it is decorated; whatever is wrong with the graph when it is compiled.
Runs one node when asked; never decides about a Run and stores nothing.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, overload

from pydantic import BaseModel, ValidationError

from runs.errors import PatternError
from runs.patterns import codec, graph
from runs.patterns.annotations import Unreadable, read_edges
from runs.patterns.context import Context, Span
from runs.patterns.manifest import FINISH, GOTO, Manifest, ManifestEdge, ManifestNode
from runs.patterns.outcomes import Finish, Goto, Outcome, UndeclaredOutcome, Wait

type Node[I: BaseModel, S: BaseModel, O: BaseModel] = Callable[[Context[I, S]], Coroutine[Any, Any, Outcome[O]]]
type AnyPattern = Pattern[Any, Any, Any]

_KEY = re.compile(r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_MOST_KEY, _MOST_REVISION, _MOST_NODE = 100, 50, 100
_MOST_SECONDS = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node as it was declared; `timeout` in seconds."""

    name: str
    fn: Callable[[Any], Coroutine[Any, Any, Any]]
    edges: tuple[ManifestEdge, ...]
    is_start: bool
    replay_safe: bool
    timeout: float | None


class Pattern[I: BaseModel, S: BaseModel, O: BaseModel]:
    """A named, revisioned graph of nodes.

    Args:
        key: name under which it is submitted: lower-case words joined by `-`, `_` or `.`.
        revision: changes whenever Runs that are under way could not go on with the new code.
        input: what a Run is submitted with.
        state: what is kept between nodes.
        output: what a Run finishes with.
        continues: older revisions whose Runs this one may carry on (ruling 19).
        initial: makes the first state from the input; default: the state without arguments.
        durable: checkpoint after every node (BYD-4); without it a Run cannot wait.
        active: new Runs get this revision; others only serve the Runs that are pinned to them.
        title: what people read; default: the key.
        description: what it does, for people.

    Raises:
        PatternError: one sentence that says what is wrong.
    """

    def __init__(
        self,
        key: str,
        *,
        revision: str = "1",
        input: type[I],  # noqa: A002 the word authors know from the Run
        state: type[S],
        output: type[O],
        continues: Sequence[str] = (),
        initial: Callable[[I], S] | None = None,
        durable: bool = True,
        active: bool = True,
        title: str = "",
        description: str = "",
    ) -> None:
        if not isinstance(key, str) or len(key) > _MOST_KEY or not _KEY.fullmatch(key):
            raise PatternError(
                f"A Pattern's key is lower-case words joined by '-', '_' or '.', at most {_MOST_KEY} characters, "
                f"not {key!r}."
            )
        self.key = key
        self.revision = self._proved_revision(revision)
        if isinstance(continues, str):
            raise PatternError(f"Pattern {key!r}: `continues` is a list of revisions, not one text.")
        self.continues = tuple(dict.fromkeys(self._proved_revision(older) for older in continues))
        if self.revision in self.continues:
            raise PatternError(f"Pattern {key!r} cannot continue its own revision {self.revision}.")
        for word, model in (("input", input), ("state", state), ("output", output)):
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                raise PatternError(f"Pattern {key!r}: {word} must be a pydantic model, not {model!r}.")
        self.input = input
        self.state = state
        self.output = output
        self.durable = durable
        self.active = active
        self.title = title or key
        self.description = description
        self._initial = initial
        self._nodes: dict[str, NodeSpec] = {}
        self._manifest: Manifest | None = None
        if initial is None:
            self._prove_empty_state()

    def __repr__(self) -> str:
        return f"<Pattern {self.key} {self.revision}>"

    @overload
    def start(self, fn: Node[I, S, O], /) -> Node[I, S, O]: ...

    @overload
    def start(
        self, /, *, replay_safe: bool = ..., timeout: Span | None = ...
    ) -> Callable[[Node[I, S, O]], Node[I, S, O]]: ...

    def start(
        self, fn: Node[I, S, O] | None = None, /, *, replay_safe: bool = False, timeout: Span | None = None
    ) -> Node[I, S, O] | Callable[[Node[I, S, O]], Node[I, S, O]]:
        """Declare the node where a Run begins; see `node`."""
        return self._decorate(fn, _names_around(inspect.currentframe()), True, replay_safe, timeout)

    @overload
    def node(self, fn: Node[I, S, O], /) -> Node[I, S, O]: ...

    @overload
    def node(
        self, /, *, replay_safe: bool = ..., timeout: Span | None = ...
    ) -> Callable[[Node[I, S, O]], Node[I, S, O]]: ...

    def node(
        self, fn: Node[I, S, O] | None = None, /, *, replay_safe: bool = False, timeout: Span | None = None
    ) -> Node[I, S, O] | Callable[[Node[I, S, O]], Node[I, S, O]]:
        """Declare a node: an async function of the context, named by its function, whose return type is its edges.

        Args:
            fn: the function, when used without arguments.
            replay_safe: it may run again after a death of the process: it has no effect outside, or only effects
                that carry a stable key (BYD-3).
            timeout: the longest that one activation may take; a bare number means seconds.

        Raises:
            PatternError: the function cannot be a node.
        """
        return self._decorate(fn, _names_around(inspect.currentframe()), False, replay_safe, timeout)

    def compile(self) -> Manifest:
        """Prove the graph and freeze it; the same manifest ever after.

        Raises:
            PatternError: no start, an edge to a node that does not exist, a node that is never reached or never
                leads to an end, a wait in a Pattern without checkpoints, a model without a schema.
        """
        if self._manifest is None:
            where = f"Pattern {self.key!r}"
            start = graph.prove(where, self._nodes.values(), durable=self.durable)
            self._manifest = Manifest(
                key=self.key,
                revision=self.revision,
                start=start,
                nodes=tuple(
                    ManifestNode(spec.name, spec.replay_safe, spec.timeout, inspect.getdoc(spec.fn) or "")
                    for spec in self._nodes.values()
                ),
                edges=tuple(edge for spec in self._nodes.values() for edge in spec.edges),
                durable=self.durable,
                continues=self.continues,
                schemas={
                    "input": codec.schema(where, self.input, "input"),
                    "state": codec.schema(where, self.state, "state"),
                    "output": codec.schema(where, self.output, "output"),
                },
            )
        return self._manifest

    @property
    def manifest(self) -> Manifest:
        """The graph as data; compiles it first."""
        return self.compile()

    @property
    def digest(self) -> str:
        """The manifest's digest; compiles it first."""
        return self.compile().digest

    def node_spec(self, name: str) -> NodeSpec:
        """The node of that name.

        Raises:
            PatternError: there is none.
        """
        spec = self._nodes.get(name)
        if spec is None:
            raise PatternError(f"Pattern {self.key!r} revision {self.revision} has no node {name!r}.")
        return spec

    async def run_node(self, name: str, ctx: Context[I, S]) -> Outcome[O]:
        """Run one node and prove that its outcome is one that it declares.

        Cancellation and the node's own errors pass through; its time limit is the driver's.

        Raises:
            PatternError: there is no such node.
            UndeclaredOutcome: it returned something else.
        """
        spec = self.node_spec(name)
        outcome: object = await spec.fn(ctx)
        if isinstance(outcome, Goto):
            edge = ManifestEdge(name, outcome.node, GOTO)
        elif isinstance(outcome, Finish):
            edge = ManifestEdge(name, None, FINISH)
        elif isinstance(outcome, Wait):
            edge = ManifestEdge(name, outcome.then, outcome.kind)
        else:
            raise UndeclaredOutcome(
                f"Node {name!r} returned {codec.kind_of(outcome)}, which is not an outcome.", node=name
            )
        if edge not in spec.edges:
            way = edge.via if edge.target is None else f"{edge.via} to {edge.target!r}"
            raise UndeclaredOutcome(
                f"Node {name!r} returned {way}, which its return annotation does not declare.", node=name
            )
        return outcome

    def initial_state(self, value: I) -> S:
        """The state with which a Run begins.

        Raises:
            PatternError: `initial` made something else than a state.
        """
        made: object = self.state() if self._initial is None else self._initial(value)
        if not isinstance(made, self.state):
            raise PatternError(
                f"Pattern {self.key!r}: `initial` made {codec.kind_of(made)}, not {self.state.__name__}."
            )
        return made

    def parse_input(self, value: Any) -> I:
        """The input from its JSON value, validated strictly.

        Raises:
            Invalid: it does not fit; `errors` holds `{pointer, detail, code}` for each place.
        """
        return codec.parse(self.input, value, "input")

    def parse_state(self, value: Any) -> S:
        """The state from its stored JSON value, validated strictly.

        Raises:
            Invalid: it does not fit; `errors` says where.
        """
        return codec.parse(self.state, value, "state")

    def parse_output(self, value: Any) -> O:
        """The output from its JSON value, validated strictly; computed fields do not belong in it.

        Raises:
            Invalid: it does not fit; `errors` says where.
        """
        return codec.parse(self.output, value, "output")

    def dump_state(self, state: S) -> Any:
        """The JSON value of a state, proved to read back: fields may have been assigned without validation.

        Raises:
            Invalid: it is no state of this Pattern, cannot be stored, or would not validate when it is read.
        """
        return codec.dump_exact(self.state, state, "state")

    def dump_output(self, output: O) -> Any:
        """The JSON value of an output, computed fields included, proved valid.

        Raises:
            Invalid: it is no output of this Pattern, cannot be stored, or is not valid.
        """
        return codec.dump_public(self.output, output, "output")

    def _decorate(
        self,
        fn: Node[I, S, O] | None,
        local_names: Mapping[str, Any],
        is_start: bool,
        replay_safe: bool,
        timeout: Span | None,
    ) -> Node[I, S, O] | Callable[[Node[I, S, O]], Node[I, S, O]]:
        def add(function: Node[I, S, O]) -> Node[I, S, O]:
            self._add(function, local_names, is_start, replay_safe, timeout)
            return function

        if fn is None:
            return add
        return add(fn)

    def _add(
        self,
        fn: Callable[[Any], Coroutine[Any, Any, Any]],
        local_names: Mapping[str, Any],
        is_start: bool,
        replay_safe: bool,
        timeout: Span | None,
    ) -> None:
        name = getattr(fn, "__name__", repr(fn))
        where = f"Pattern {self.key!r}, node {name!r}: "
        if self._manifest is not None:
            raise PatternError(where + "the graph is compiled already, so no node can be added.")
        if not inspect.iscoroutinefunction(fn):
            raise PatternError(where + "a node must be an async function (async def).")
        if not name.isidentifier() or len(name) > _MOST_NODE:
            raise PatternError(where + f"a node's name is an identifier of at most {_MOST_NODE} characters.")
        if name in self._nodes:
            raise PatternError(where + "there is a node of that name already.")
        try:
            inspect.signature(fn).bind(None)
        except TypeError:
            raise PatternError(where + "a node takes one argument, the context.") from None
        first = next((spec.name for spec in self._nodes.values() if spec.is_start), None)
        if is_start and first is not None:
            raise PatternError(where + f"a Pattern has one start, and that is {first!r}.")
        if not isinstance(replay_safe, bool):
            raise PatternError(where + "replay_safe is True or False.")
        try:
            edges = read_edges(fn, self.output, local_names)
            seconds = _seconds(timeout)
        except Unreadable as error:
            raise PatternError(where + error.detail + ".") from error
        self._nodes[name] = NodeSpec(name, fn, edges, is_start, replay_safe, seconds)

    def _proved_revision(self, revision: Any) -> str:
        if not isinstance(revision, str) or len(revision) > _MOST_REVISION or not _REVISION.fullmatch(revision):
            raise PatternError(
                f"Pattern {self.key!r}: a revision is letters, digits and . _ + -, at most {_MOST_REVISION} "
                f"characters of text, not {revision!r}."
            )
        return revision

    def _prove_empty_state(self) -> None:
        try:
            self.state()
        except ValidationError as error:
            fields = ", ".join(str(problem["loc"][0]) for problem in error.errors() if problem["loc"]) or str(error)
            raise PatternError(
                f"Pattern {self.key!r}: {self.state.__name__} cannot be made without arguments ({fields}); "
                "give its fields defaults, or the Pattern an `initial`."
            ) from error


def _names_around(frame: FrameType | None) -> Mapping[str, Any]:
    """What the author sees where a decorator is written; serves Patterns that stand inside a function."""
    return {} if frame is None or frame.f_back is None else frame.f_back.f_locals


def _seconds(timeout: Span | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, timedelta | int | float):
        raise Unreadable(f"its timeout must be a timedelta or a number of seconds, not {timeout!r}")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not math.isfinite(seconds) or not 0.001 <= seconds <= _MOST_SECONDS:
        raise Unreadable(f"its timeout must be between a millisecond and a year, not {seconds:g} seconds")
    return seconds
