"""Proves that a graph of nodes can be walked: every edge leads somewhere, every node is reached and can end."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from runs.errors import PatternError
from runs.patterns.manifest import FINISH, GOTO, ManifestEdge


class _Spec(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def edges(self) -> tuple[ManifestEdge, ...]: ...
    @property
    def is_start(self) -> bool: ...


def prove(where: str, specs: Iterable[_Spec], *, durable: bool) -> str:
    """The name of the start node, when the graph is sound.

    Args:
        where: how the sentence begins, such as "Pattern 'tidy'".
        specs: the nodes in the order of their declaration.
        durable: whether the Pattern has checkpoints, without which nothing can wait.

    Raises:
        PatternError: one sentence about the first thing that is wrong.
    """
    nodes = {spec.name: spec for spec in specs}
    start = next((spec.name for spec in nodes.values() if spec.is_start), None)
    if start is None:
        raise PatternError(f"{where} has no start: decorate one node with .start.")
    for spec in nodes.values():
        for edge in spec.edges:
            _prove_edge(where, edge, nodes, durable)
    ways = {name: {edge.target for edge in spec.edges if edge.target is not None} for name, spec in nodes.items()}
    reached = _closure({start}, ways)
    lost = [name for name in nodes if name not in reached]
    if lost:
        raise PatternError(f"{where}: no edge leads from the start {start!r} to {_listed(lost)}.")
    ends = {name for name, spec in nodes.items() if any(edge.via == FINISH for edge in spec.edges)}
    if not ends:
        raise PatternError(f"{where} never ends: no node returns Finish.")
    back: dict[str, set[str]] = {name: set() for name in nodes}
    for name, targets in ways.items():
        for target in targets:
            back[target].add(name)
    ending = _closure(ends, back)
    endless = [name for name in nodes if name not in ending]
    if endless:
        raise PatternError(f"{where} never ends once it is in {_listed(endless)}: no way leads from there to a Finish.")
    return start


def _prove_edge(where: str, edge: ManifestEdge, nodes: Mapping[str, object], durable: bool) -> None:
    if edge.target is not None and edge.target not in nodes:
        near = difflib.get_close_matches(edge.target, list(nodes), 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise PatternError(f"{where}: node {edge.source!r} leads to {edge.target!r}, which is not a node{hint}")
    if not durable and edge.via not in (GOTO, FINISH):
        raise PatternError(
            f"{where}: node {edge.source!r} waits ({edge.via}), but a Pattern that is not durable has no checkpoint "
            "to come back to."
        )


def _closure(begin: AbstractSet[str], ways: Mapping[str, AbstractSet[str]]) -> set[str]:
    found = set(begin)
    todo = list(begin)
    while todo:
        for target in ways[todo.pop()]:
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
