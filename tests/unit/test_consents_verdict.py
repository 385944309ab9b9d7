"""A question as JSON, the digest over all that is shown, and what a verdict allows."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from consents.decisions import DECIDE, authorise
from consents.outcome import AwaitConsent
from runs.errors import Forbidden, Invalid
from runs.patterns import EffectChanged, NotGranted, Verdict
from runs.patterns.verdict import shown_digest
from tests.support.asking import a_voter


class Move(BaseModel):
    files: list[str]


SHOWN: dict[str, Any] = {"title": "Move", "body": "them", "facts": {"n": 2}, "risk": "low"}
EFFECT = {"files": ["a", "b"]}


def a_verdict(**fields: Any) -> Verdict:
    facts: dict[str, Any] = {
        "owner": uuid.uuid4(),
        "granted": True,
        "status": "granted",
        "by": "anna",
        "at": datetime.now(UTC),
        "comment": "",
        "surface": "rest",
        "digest": shown_digest(**SHOWN, effect=EFFECT),
        "shown": SHOWN,
    }
    return Verdict(**(facts | fields))


@pytest.mark.contract("BYD-8")
@pytest.mark.parametrize(
    "change", [{"title": "x"}, {"body": "x"}, {"facts": {"n": 3}}, {"risk": "high"}, {"effect": {"files": ["a"]}}]
)
def test_the_digest_covers_each_thing_that_is_shown(change: dict[str, Any]) -> None:
    asked = {**SHOWN, "effect": EFFECT}
    assert shown_digest(**asked) != shown_digest(**(asked | change))
    assert shown_digest(**asked) == shown_digest(**dict(reversed(asked.items())))


@pytest.mark.contract("WAIT-21", "BYD-8")
def test_only_exactly_what_was_granted_may_be_done() -> None:
    a_verdict().require(Move(files=["a", "b"]))
    for other in (Move(files=["b", "a"]), Move(files=[]), None):
        with pytest.raises(EffectChanged):
            a_verdict().require(other)
    with pytest.raises(EffectChanged):
        a_verdict(shown={**SHOWN, "facts": {"n": 3}}).require(Move(files=["a", "b"]))


@pytest.mark.parametrize("status", ["denied", "expired", "cancelled"])
def test_a_no_allows_nothing_and_says_whose_it_was(status: str) -> None:
    with pytest.raises(NotGranted, match=f"answered with {status} by anna"):
        a_verdict(granted=False, status=status).require(Move(files=["a", "b"]))


def test_a_grant_that_does_not_hold_any_more_says_so() -> None:
    with pytest.raises(NotGranted, match="does not hold any more"):
        a_verdict(granted=False, by="policy:small").require(Move(files=["a", "b"]))


def test_a_question_is_json_with_defaults_and_its_time_in_seconds() -> None:
    plain: AwaitConsent[Literal["next"]] = AwaitConsent(title="Go?", then="next")
    assert plain.request() == {
        "title": "Go?",
        "body": "",
        "facts": {},
        "risk": "low",
        "effect": None,
        "expires_in": None,
        "permission": "",
        "group": "",
        "quorum": 1,
        "self_approval": True,
    }
    rich: AwaitConsent[Literal["next"]] = AwaitConsent(
        title="Go?",
        facts={"at": datetime(2026, 1, 1, tzinfo=UTC), "move": Move(files=["a"])},
        effect=Move(files=["a"]),
        expires_in=timedelta(hours=1),
        then="next",
    )
    asked = rich.request()
    assert asked["facts"] == {"at": "2026-01-01T00:00:00Z", "move": {"files": ["a"]}}
    assert (asked["effect"], asked["expires_in"]) == ({"files": ["a"]}, 3600.0)


def test_a_fact_that_is_no_number_is_refused_rather_than_lost() -> None:
    broken: AwaitConsent[Literal["next"]] = AwaitConsent(title="Go?", facts={"n": float("nan")}, then="next")
    with pytest.raises(Invalid, match="/n is not a finite number"):
        broken.request()


@pytest.mark.contract("BYD-7")
@pytest.mark.parametrize(
    ("voter", "requires", "missing"),
    [
        ({}, {}, None),
        ({"permissions": frozenset()}, {}, DECIDE),
        ({}, {"permission": "shop.refund"}, "shop.refund"),
        ({"permissions": frozenset({DECIDE, "shop.refund"})}, {"permission": "shop.refund"}, None),
        ({"permissions": frozenset({"shop.refund"})}, {"permission": "shop.refund"}, DECIDE),
        ({}, {"group": "lawyers"}, "lawyers"),
        ({"groups": frozenset({"lawyers"})}, {"group": "lawyers"}, None),
        ({"superuser": True, "permissions": frozenset()}, {"permission": "shop.refund", "group": "lawyers"}, None),
        ({"superuser": True}, {"self_approval": False, "asked_by": uuid.UUID(int=7)}, "other than the person"),
        ({}, {"self_approval": True, "asked_by": uuid.UUID(int=7)}, None),
        ({}, {"self_approval": False, "asked_by": uuid.UUID(int=8)}, None),
        ({}, {"self_approval": False, "asked_by": None}, None),
    ],
)
def test_who_may_decide(voter: dict[str, Any], requires: dict[str, Any], missing: str | None) -> None:
    person = a_voter(user_id=uuid.UUID(int=7), **voter)
    asked = {"permission": "", "group": "", "self_approval": True, "asked_by": None} | requires
    if missing is None:
        authorise(person, **asked)
        return
    with pytest.raises(Forbidden, match=missing):
        authorise(person, **asked)
