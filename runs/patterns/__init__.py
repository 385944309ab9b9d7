"""How a Pattern is written: all that an author imports."""

from __future__ import annotations

from runs.errors import PatternError
from runs.patterns.context import Context, RunInfo
from runs.patterns.manifest import Manifest
from runs.patterns.outcomes import Finish, Goto, Outcome, UndeclaredOutcome, Wait
from runs.patterns.pattern import AnyPattern, Pattern
from runs.patterns.registry import PatternRegistry, discover
from runs.patterns.retry import RetryPolicy
from runs.patterns.verdict import EffectChanged, NotGranted, NoVerdict, Verdict

__all__ = [
    "AnyPattern",
    "Context",
    "EffectChanged",
    "Finish",
    "Goto",
    "Manifest",
    "NoVerdict",
    "NotGranted",
    "Outcome",
    "Pattern",
    "PatternError",
    "PatternRegistry",
    "RetryPolicy",
    "RunInfo",
    "UndeclaredOutcome",
    "Verdict",
    "Wait",
    "discover",
]
