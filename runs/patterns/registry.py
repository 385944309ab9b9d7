"""Which Patterns there are: exact revisions, one active for each key, in a fixed order. Chooses; never runs one."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from runs.errors import PatternError, PatternNotFound
from runs.patterns.pattern import AnyPattern, Pattern


class PatternRegistry:
    """Compiled Patterns by key and revision.

    Args:
        patterns: in the order in which they shall be listed; the same object twice counts once.

    Raises:
        PatternError: a graph is not sound, a revision exists twice, or a key has two active revisions.
    """

    def __init__(self, patterns: Iterable[AnyPattern]) -> None:
        self._exact: dict[tuple[str, str], AnyPattern] = {}
        self._active: dict[str, AnyPattern] = {}
        for pattern in patterns:
            self._add(pattern)

    def select(self, key: str) -> AnyPattern:
        """The Pattern that a new Run of this key gets: the active revision (ADM-2).

        Raises:
            PatternNotFound: the key has none; names the nearest key that has.
        """
        pattern = self._active.get(key)
        if pattern is not None:
            return pattern
        near = difflib.get_close_matches(key[:200], sorted(self._active), 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        shown = key if len(key) <= 100 else key[:100] + "…"
        raise PatternNotFound(f"There is no Pattern {shown!r}{hint}")

    def exact(self, key: str, revision: str, digest: str) -> AnyPattern:
        """The Pattern that carries on a Run pinned to this revision (CLM-9, CLM-11, ruling 19).

        The very revision, active or not; else one that continues it: the active one first, then the latest declared.
        Whether the stored state fits the one that continues is for the caller to prove by parsing it.

        Raises:
            PatternError: that revision is registered with another graph than the pinned one.
            PatternNotFound: nothing carries on this revision.
        """
        pattern = self._exact.get((key, revision))
        if pattern is not None:
            if pattern.digest != digest:
                raise PatternError(
                    f"The pinned Pattern changed: {key!r} revision {revision} has another graph than when the Run "
                    "was admitted."
                )
            return pattern
        heirs = [heir for heir in self._exact.values() if heir.key == key and revision in heir.continues]
        if not heirs:
            raise PatternNotFound(f"Nothing here carries on Runs of Pattern {key!r} revision {revision}.")
        return next((heir for heir in heirs if heir.active), heirs[-1])

    def all(self) -> tuple[AnyPattern, ...]:
        """Every revision, in the order of registration."""
        return tuple(self._exact.values())

    def active(self) -> tuple[AnyPattern, ...]:
        """What can be submitted, in the order of registration."""
        return tuple(self._active.values())

    def _add(self, pattern: AnyPattern) -> None:
        pattern.compile()
        known = self._exact.setdefault((pattern.key, pattern.revision), pattern)
        if known is not pattern:
            raise PatternError(f"Pattern {pattern.key!r} revision {pattern.revision} is declared twice.")
        if not pattern.active:
            return
        active = self._active.setdefault(pattern.key, pattern)
        if active is not pattern:
            raise PatternError(
                f"Pattern {pattern.key!r} has two active revisions, {active.revision} and {pattern.revision}; "
                "declare the older one with active=False."
            )


def discover() -> list[AnyPattern]:
    """The Patterns in the module or package `patterns` of every installed app, in the order of apps and attributes.

    Raises:
        PatternError: a node or a Pattern is not written correctly.
        ImportError: a `patterns` module exists and cannot be imported; whatever else it raises passes as well.
    """
    found: dict[int, AnyPattern] = {}
    for config in apps.get_app_configs():
        if config.module is None or not module_has_submodule(config.module, "patterns"):
            continue
        for value in vars(importlib.import_module(f"{config.name}.patterns")).values():
            if isinstance(value, Pattern):
                pattern: AnyPattern = value
                found.setdefault(id(pattern), pattern)
    return list(found.values())
