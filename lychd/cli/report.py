"""What `lychd doctor` found: facts, and findings with what to do about each. Asks nobody."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Named:
    """One Run of a finding with what is wrong with it and what to do; without `run` it is no single Run's matter."""

    run: str | None
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        check: which check found it; a word that never changes.
        sentence: what is wrong.
        remedy: what to do.
        count: how many Runs it concerns, where it concerns Runs.
        runs: the ids of some of them.
        named: what is to be said of single ones.
    """

    check: str
    sentence: str
    remedy: str
    count: int | None = None
    runs: tuple[str, ...] = ()
    named: tuple[Named, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        found: dict[str, Any] = {"check": self.check, "sentence": self.sentence, "remedy": self.remedy}
        if self.count is not None:
            found |= {"count": self.count, "runs": list(self.runs)}
        return {**found, "named": [asdict(one) for one in self.named]} if self.named else found


@dataclass(slots=True)
class Report:
    """Facts by check, in the order in which they were established, and the findings."""

    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def fact(self, check: str, text: str, value: Any = None) -> None:
        """Note how something stands; `value` is for programs, else they get the text."""
        self.lines.append((check, text))
        self.facts[check] = text if value is None else value

    def find(self, check: str, sentence: str, remedy: str) -> None:
        """Note that something is wrong."""
        self.findings.append(Finding(check, sentence, remedy))

    def to_json(self) -> dict[str, Any]:
        """The one JSON document of `lychd doctor --json`."""
        return {"ok": self.ok, "facts": self.facts, "findings": [finding.to_json() for finding in self.findings]}
