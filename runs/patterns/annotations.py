"""Reads the ways out of a node from its return annotation; the only place that knows how types are spelled.

Never runs a node. Says in a sentence what it does not understand instead of guessing.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeAliasType, TypeVar, Union, get_args, get_origin

from runs.errors import PatternError
from runs.patterns.manifest import FINISH, GOTO, ManifestEdge
from runs.patterns.outcomes import Finish, Goto, Wait

_HINT = 'write it as Goto[Literal["name"]], Finish[Output] or a wait'
_MOST_ALIASES = 50
_MOST_KIND = 20


class Unreadable(PatternError):
    """The return annotation of a node says nothing about the graph."""


@dataclass(frozen=True, slots=True)
class _Reader:
    node: str
    output: type[Any]

    def edges(self, hint: Any, depth: int = 0) -> Iterator[ManifestEdge]:
        if depth > _MOST_ALIASES:
            raise Unreadable("its return annotation is an alias of itself")
        origin, args = get_origin(hint), get_args(hint)
        if isinstance(hint, TypeAliasType):
            yield from self.edges(_alias_value(hint), depth + 1)
        elif isinstance(origin, TypeAliasType):
            yield from self.edges(_substituted(_alias_value(origin), origin.__type_params__, args), depth + 1)
        elif origin is Annotated:
            yield from self.edges(args[0], depth + 1)
        elif origin is Union or origin is types.UnionType:
            for arg in args:
                yield from self.edges(arg, depth + 1)
        else:
            yield from self._edge(hint, origin or hint, args)

    def _edge(self, hint: Any, kind: Any, args: tuple[Any, ...]) -> Iterator[ManifestEdge]:
        if kind is Finish:
            self._prove_output(args)
            yield ManifestEdge(self.node, None, FINISH)
        elif kind is Goto:
            for target in _targets(args[0] if args else None, "Goto"):
                yield ManifestEdge(self.node, target, GOTO)
        elif isinstance(kind, type) and issubclass(kind, Wait):
            word = _wait_kind(kind)
            for target in _targets(_wait_target(kind, args), kind.__name__):
                yield ManifestEdge(self.node, target, word)
        elif hint is type(None) or hint is None:
            raise Unreadable(f"it may return None, which is no outcome; {_HINT}")
        else:
            raise Unreadable(f"its return annotation holds {_shown(hint)}, which is no outcome; {_HINT}")

    def _prove_output(self, args: tuple[Any, ...]) -> None:
        if not args:
            raise Unreadable(f"it finishes without saying with what; write Finish[{self.output.__name__}]")
        given = get_origin(args[0]) or args[0]
        if not (isinstance(given, type) and issubclass(given, self.output)):
            raise Unreadable(f"it finishes with {_shown(args[0])}, but the Pattern's output is {self.output.__name__}")


def read_edges(
    fn: Callable[..., Any], output: type[Any], local_names: Mapping[str, Any] | None = None
) -> tuple[ManifestEdge, ...]:
    """The edges that the return annotation of a node declares, in its order, each once.

    Args:
        fn: the node.
        output: the Pattern's output model.
        local_names: what the author could see where the node was written, besides its module.

    Raises:
        Unreadable: half a sentence that goes on from "node X: ".
    """
    hint = _resolved(fn, local_names or {})
    if hint is Any or hint in (NoReturn, typing.Never):
        raise Unreadable(f"its return annotation holds {_shown(hint)}, which is no outcome; {_HINT}")
    return tuple(dict.fromkeys(_Reader(fn.__name__, output).edges(hint)))


def _resolved(fn: Callable[..., Any], local_names: Mapping[str, Any]) -> Any:
    try:
        annotations = inspect.get_annotations(fn)
        if "return" not in annotations:
            raise Unreadable(f"it has no return annotation; {_HINT}")
        # Only the return counts: the other names may exist for the type checker alone.
        holder = types.FunctionType(_nothing.__code__, {})
        holder.__annotations__ = {"return": annotations["return"]}
        code = inspect.unwrap(fn)
        closure = dict(zip(code.__code__.co_freevars, code.__closure__ or (), strict=False))
        names = {**local_names, **{name: cell.cell_contents for name, cell in closure.items() if _is_filled(cell)}}
        return typing.get_type_hints(holder, code.__globals__, names, include_extras=True)["return"]
    except NameError as error:
        raise Unreadable(
            f"its return annotation names {error.name!r}, which does not exist when the module is imported "
            f'(node names are written as Literal["{error.name}"])'
        ) from error
    except (TypeError, SyntaxError, AttributeError) as error:
        raise Unreadable(f"its return annotation cannot be read: {error}") from error


def _nothing() -> None: ...


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _alias_value(alias: TypeAliasType) -> Any:
    try:
        return alias.__value__
    except NameError as error:
        raise Unreadable(f"the alias {alias.__name__} names {error.name!r}, which does not exist") from error


def _substituted(hint: Any, parameters: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """`hint` with its type parameters replaced; parameters it does not mention are dropped."""
    given = dict(zip(parameters, args, strict=False))
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    mentioned: tuple[Any, ...] = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(name, name) for name in mentioned)] if mentioned else hint


def _targets(hint: Any, word: str) -> Iterator[str]:
    for _ in range(_MOST_ALIASES):
        if not isinstance(hint, TypeAliasType):
            break
        hint = _alias_value(hint)
    if get_origin(hint) is Union or get_origin(hint) is types.UnionType:
        for arg in get_args(hint):
            yield from _targets(arg, word)
        return
    if get_origin(hint) is not Literal:
        raise Unreadable(f'it does not say which node {word} leads to; write {word}[Literal["name"]]')
    for target in get_args(hint):
        if type(target) is not str:
            raise Unreadable(f"{word} leads to {target!r}, but nodes are named by plain text")
        yield target


def _wait_kind(kind: type[Wait[Any]]) -> str:
    if inspect.isabstract(kind):
        raise Unreadable(f"{kind.__name__} is no wait of its own; name the kind of wait that the node returns")
    word = getattr(kind, "kind", None)
    if not isinstance(word, str) or not word or len(word) > _MOST_KIND or word in (GOTO, FINISH):
        raise Unreadable(f"{kind.__name__} must set `kind` to a word of at most {_MOST_KIND} characters of its own")
    return word


def _wait_target(kind: Any, args: tuple[Any, ...]) -> Any:
    """What `Wait`'s own parameter is, followed through the bases of a subclass."""
    if kind is Wait:
        return args[0] if args else None
    parameters: tuple[Any, ...] = getattr(kind, "__parameters__", ())
    for base in types.get_original_bases(kind):
        origin = get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, Wait):
            inner = tuple(_substituted(arg, parameters, args) for arg in get_args(base))
            return _wait_target(origin, inner)
    return None


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
