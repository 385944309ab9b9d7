"""What a node may return: go on, finish, or wait. The return annotation of the node is the graph, so these are types.

A new kind of wait is a subclass of `Wait` in the app that owns it; nothing here knows any. Nothing here acts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from runs.errors import NodeFailed


@dataclass(frozen=True, slots=True)
class Goto[L: str]:
    """Go on with another node of the same Pattern; annotate as `Goto[Literal["name"]]`."""

    node: L


@dataclass(frozen=True, slots=True)
class Finish[O]:
    """The Run is done, and this is its output; annotate as `Finish[Report]`."""

    output: O


@dataclass(frozen=True, kw_only=True)
class Wait[L: str](ABC):
    """Park the Run on a durable owner and go on with the node `then` when the owner has answered.

    A subclass is a frozen dataclass that passes `L` on, sets `kind` (at most 20 characters) and says in `request`
    what its owner needs to know.
    """

    kind: ClassVar[str]

    then: L

    @abstractmethod
    def request(self) -> dict[str, Any]:
        """What is asked of the owner, as a JSON object; the same for the same wait."""


type Outcome[O] = Goto[str] | Finish[O] | Wait[str]


class UndeclaredOutcome(NodeFailed):
    """The node returned something that its return annotation does not declare."""

    code = "undeclared_outcome"
