"""The graph of a Pattern as data: what is pinned on a Run, digested, drawn and shown. Knows no code of any node."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

from runs import payloads
from runs.errors import Invalid, PatternError

GOTO, FINISH = "goto", "finish"


@dataclass(frozen=True, slots=True)
class ManifestNode:
    """One node; `timeout` in seconds."""

    name: str
    replay_safe: bool = False
    timeout: float | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ManifestEdge:
    """One way out of a node: `via` is goto, finish, or the kind of a wait; only finish leads to no node."""

    source: str
    target: str | None
    via: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A Pattern's graph with its digest (ruling 19).

    The digest covers key, revision, start, nodes, edges and flags. The schemas stand beside it: whether a stored
    state still fits is judged by validating it.
    """

    key: str
    revision: str
    start: str
    nodes: tuple[ManifestNode, ...]
    edges: tuple[ManifestEdge, ...]
    durable: bool
    continues: tuple[str, ...]
    schemas: Mapping[Literal["input", "state", "output"], Mapping[str, Any]]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", payloads.digest(self._digested()))

    def node(self, name: str) -> ManifestNode:
        """The node of that name.

        Raises:
            PatternError: there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise PatternError(f"Pattern {self.key!r} revision {self.revision} has no node {name!r}.")

    def edges_from(self, name: str) -> tuple[ManifestEdge, ...]:
        """The ways out of a node."""
        return tuple(edge for edge in self.edges if edge.source == name)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, digest included; a copy of its own."""
        return {
            "key": self.key,
            "revision": self.revision,
            "digest": self.digest,
            "start": self.start,
            "nodes": [
                {"name": node.name, "replay_safe": node.replay_safe, "timeout": node.timeout, "doc": node.doc}
                for node in self.nodes
            ],
            "edges": [{"from": edge.source, "to": edge.target, "via": edge.via} for edge in self.edges],
            "flags": {"durable": self.durable},
            "continues": list(self.continues),
            "schemas": copy.deepcopy(dict(self.schemas)),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the JSON form; the digest is computed anew, not believed.

        Raises:
            PatternError: it is not a manifest.
        """
        try:
            return cls(
                key=_text(value["key"]),
                revision=_text(value["revision"]),
                start=_text(value["start"]),
                nodes=tuple(
                    ManifestNode(
                        _text(node["name"]), _flag(node["replay_safe"]), _seconds(node["timeout"]), _text(node["doc"])
                    )
                    for node in value["nodes"]
                ),
                edges=tuple(
                    ManifestEdge(
                        _text(edge["from"]), None if edge["to"] is None else _text(edge["to"]), _text(edge["via"])
                    )
                    for edge in value["edges"]
                ),
                durable=_flag(value["flags"]["durable"]),
                continues=tuple(_text(revision) for revision in value["continues"]),
                schemas=copy.deepcopy(_schemas(value["schemas"])),
            )
        except (KeyError, TypeError, ValueError, Invalid) as error:
            raise PatternError(f"The pinned manifest cannot be read ({type(error).__name__}: {error}).") from error

    @classmethod
    def verify(cls, value: Any) -> Self:
        """Read the JSON form and prove that it carries its own digest (CLM-9).

        Raises:
            PatternError: it is not a manifest, or its parts are not those that were digested.
        """
        manifest = cls.from_json(value)
        if value.get("digest") != manifest.digest:
            raise PatternError(f"The pinned manifest of {manifest.key!r} does not match its own digest.")
        return manifest

    def draw(self) -> str:
        """The graph as text, nodes in the order of a walk from the start, one line for each way out."""
        lines = [f"{self.key} {self.revision}"]
        for name in self._walk():
            node = self.node(name)
            marks = [
                *(["start"] if name == self.start else []),
                *(["replay safe"] if node.replay_safe else []),
                *([f"at most {node.timeout:g} s"] if node.timeout is not None else []),
            ]
            lines.append(f"  {name}" + (f"  ({', '.join(marks)})" if marks else ""))
            edges = self.edges_from(name)
            for edge in edges:
                corner = "└─" if edge is edges[-1] else "├─"
                if edge.via == FINISH:
                    way = "■ finish"
                elif edge.via == GOTO:
                    way = f"→ {edge.target}"
                else:
                    way = f"⏸ {edge.via} → {edge.target}"
                lines.append(f"    {corner} {way}")
        return "\n".join(lines)

    def _walk(self) -> list[str]:
        order = [self.start]
        for name in order:
            order.extend(
                dict.fromkeys(
                    edge.target
                    for edge in self.edges_from(name)
                    if edge.target is not None and edge.target not in order
                )
            )
        return order

    def _digested(self) -> dict[str, Any]:
        # Sorted, so that moving a function within its file changes nothing.
        return {
            "key": self.key,
            "revision": self.revision,
            "start": self.start,
            "nodes": sorted([node.name, node.replay_safe, _milliseconds(node.timeout)] for node in self.nodes),
            "edges": sorted([edge.source, edge.via, edge.target or ""] for edge in self.edges),
            "flags": {"durable": self.durable},
        }


def _milliseconds(seconds: float | None) -> int | None:
    # A whole number survives jsonb unchanged, a float may come back written differently.
    return None if seconds is None else round(seconds * 1000)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number of seconds")
    return float(value)


def _schemas(value: Any) -> dict[Literal["input", "state", "output"], Mapping[str, Any]]:
    if not isinstance(value, dict) or not all(
        isinstance(part, dict) for part in cast("dict[str, Any]", value).values()
    ):
        raise TypeError("the schemas are not objects")
    return cast("dict[Literal['input', 'state', 'output'], Mapping[str, Any]]", value)
