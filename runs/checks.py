"""System checks of the substrate: every registered Pattern is sound, and each key has one revision for new Runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution

from runs.errors import LychdError
from runs.patterns import discover
from runs.patterns.pattern import AnyPattern

HINT = "Nothing can be admitted until this is put right: the Vessel refuses to start."


def check_patterns(**_kwargs: Any) -> list[CheckMessage]:
    """Look at the Patterns of all installed apps.

    `lychd.E001` a Pattern or a module of Patterns cannot be loaded, or its graph is not sound; `lychd.E002` a key
    has two active revisions; `lychd.E003` a revision is declared twice; `lychd.W001` a key has no active revision;
    `lychd.W002` a Pattern continues a revision that is still registered itself.
    """
    try:
        found = discover()
    except Exception as error:  # noqa: BLE001 a module of an author may raise anything; it is what the check reports
        return [_error(f"Patterns cannot be loaded: {_told(error)}", "lychd.E001")]
    return [message for key, patterns in _by_key(found).items() for message in _of_key(key, patterns)]


def _by_key(found: Sequence[AnyPattern]) -> dict[str, list[AnyPattern]]:
    by_key: dict[str, list[AnyPattern]] = defaultdict(list)
    for pattern in found:
        by_key[pattern.key].append(pattern)
    return by_key


def _of_key(key: str, patterns: list[AnyPattern]) -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    for pattern in patterns:
        try:
            pattern.compile()
        except LychdError as error:
            messages.append(_error(error.detail, "lychd.E001"))
    revisions = [pattern.revision for pattern in patterns]
    messages += [
        _error(f"Pattern {key!r} revision {revision} is declared twice.", "lychd.E003")
        for revision in dict.fromkeys(revisions)
        if revisions.count(revision) > 1
    ]
    active = list(dict.fromkeys(pattern.revision for pattern in patterns if pattern.active))
    if len(active) > 1:
        shown = ", ".join(active[:-1]) + f" and {active[-1]}"
        messages.append(
            Error(
                f"Pattern {key!r} has {len(active)} active revisions: {shown}.",
                hint="Declare all but the newest with active=False.",
                id="lychd.E002",
            )
        )
    if not active:
        messages.append(
            Caution(
                f"Pattern {key!r} has no active revision, so nobody can submit it.",
                hint="Leave active=False on old revisions only.",
                id="lychd.W001",
            )
        )
    messages += [
        Caution(
            f"Pattern {key!r} revision {pattern.revision} continues {older}, which is still registered.",
            hint="Runs of that revision stay with it; remove one of the two.",
            id="lychd.W002",
        )
        for pattern in patterns
        for older in pattern.continues
        if older in revisions
    ]
    return messages


def _error(sentence: str, number: str) -> Error:
    return Error(sentence, hint=HINT, id=number)


def _told(error: Exception) -> str:
    return error.detail if isinstance(error, LychdError) else f"{type(error).__name__}: {error}"
