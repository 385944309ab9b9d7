"""Standing policies: files are read as a whole, a rule answers a matching question once, its yes must still hold."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from consents.policies import BadPolicy, Policy, load, sync
from lychd.config import BadSetting
from runs.ids import owner_id
from runs.ledger.ledger import ScriptFactory
from tests.support.asking import KIND, effects
from tests.support.vessel_parts import Build, Parts
from tests.support.vessels import living, watching

pytest_plugins = ["tests.support.vessel_parts_fixtures", "tests.support.vessel_fixtures"]
BOTH = """
[[policy]]
slug = "small-moves"
granted_by = "anna"
title = "Small moves need nobody"
priority = 80
pattern = "gat*"
max_risk = "medium"
max_uses = 2
expires_at = 2099-01-01T00:00:00Z
constraints = { files = { max = 20 }, kind = "copy" }

[[policy]]
slug = "by-night"
granted_by = "ben"
"""


def written(folder: Path, text: str, name: str = "policies.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_says_everything_of_its_rules(tmp_path: Path) -> None:
    small, night = load([written(tmp_path, BOTH)])
    assert (small.slug, small.granted_by, small.priority, small.max_uses) == ("small-moves", "anna", 80, 2)
    assert small.constraints == {"files": {"max": 20}, "kind": "copy"}
    assert (night.pattern, night.max_risk, night.constraints) == ("*", "low", {})
    assert small.digest != small.model_copy(update={"max_uses": 3}).digest
    assert small.digest == small.model_copy(update={"title": "other words", "priority": 1}).digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy = [", "policies.toml: "),
        ("[[policies]]\nslug = 'a'", "only [[policy]] tables stand here, not policies"),
        ("[policy]\nslug = 'a'", "not one [policy]"),
        ("[[policy]]\nslug = 'a'", "policy 1: granted_by: Field required"),
        ("[[policy]]\nslug = 'a'\ngranted_by = 'x'\nmax_usess = 3", "max_usess: Extra inputs are not permitted"),
        ("[[policy]]\nslug = 'a'\ngranted_by = 'x'\nmax_uses = '3'", "max_uses: Input should be a valid integer"),
        ("[[policy]]\nslug = 'a'\ngranted_by = 'x'\npriority = 101", "priority: Input should be less than"),
        ("[[policy]]\nslug = 'a'\ngranted_by = 'x'\nmax_risk = 'any'", "max_risk: "),
        ("[[policy]]\nslug = 'a'\ngranted_by = 'x'\nexpires_at = 2026-01-01T00:00:00", "expires_at: "),
        ("[[policy]]\nslug = 'a'\ngranted_by = 'x'\nconstraints = { n = { most = 3 } }", "min, max or in"),
        ("[[policy]]\nslug = 'a'\ngranted_by = 'x'\nconstraints = { n = { max = 'x' } }", "min and max are numbers"),
        ("[[policy]]\nslug = 'a'\ngranted_by = 'x'\nconstraints = { n = nan }", "not a finite number"),
        ("[[policy]]\nslug = ''\ngranted_by = 'x'", "slug: "),
    ],
)
def test_a_rule_that_is_not_valid_is_a_sentence_that_names_file_and_rule(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        load([written(tmp_path, text)])
    assert said in caught.value.detail
    assert "policies.toml" in caught.value.detail


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match=r"nowhere\.toml"):
        load([tmp_path / "nowhere.toml"])


async def stored(parts: Parts) -> dict[str, Any]:
    return {row["slug"]: row for row in await parts.rows("select * from consents_standingpolicy")}


async def synced(parts: Parts, *policies: Policy) -> int:
    return await parts.ledger.script(ScriptFactory[int](sync, policies))


def rule(slug: str = "any", **fields: Any) -> Policy:
    return Policy(**({"slug": slug, "granted_by": "anna", "max_risk": "critical"} | fields))


@pytest.fixture
async def gated(build: Build) -> Parts:
    return await build(effects()[0], waits=(KIND,))


@pytest.mark.django_db(transaction=True)
async def test_removal_keeps_usage_and_the_switch_and_a_return_finds_both(gated: Parts) -> None:
    await synced(gated, rule("a"), rule("b"))
    await gated.rows("update consents_standingpolicy set uses = 3, enabled = false where slug = 'a'")
    await synced(gated, rule("b", title="renamed"))
    kept = await stored(gated)
    assert (kept["a"]["source_present"], kept["a"]["uses"], kept["a"]["enabled"]) == (False, 3, False)
    assert (kept["b"]["source_present"], kept["b"]["title"]) == (True, "renamed")
    await synced(gated, rule("a", max_uses=1), rule("b"))
    back = (await stored(gated))["a"]
    assert (back["source_present"], back["uses"], back["enabled"], back["max_uses"]) == (True, 3, False, 1)
    assert back["id"] == kept["a"]["id"]


@pytest.mark.django_db(transaction=True)
async def test_a_slug_that_occurs_twice_or_is_anothers_refuses_the_whole_generation(gated: Parts) -> None:
    await synced(gated, rule("a"), rule("foreign", tenant="lab"))
    before = await stored(gated)
    with pytest.raises(BadPolicy, match="declared twice: a"):
        await synced(gated, rule("new"), rule("a"), rule("a"))
    with pytest.raises(BadPolicy, match="'foreign' belongs to another tenant"):
        await synced(gated, rule("new"), rule("foreign"))
    assert await stored(gated) == before


async def asked(parts: Parts, **wish: Any) -> Any:
    """The Consent of a Run that asked, as it stands after the park."""
    run_id = await parts.submit("gate", input=wish)
    assert (await parts.perform(run_id))["outcome"] == "awaiting_consent"
    (found,) = await parts.rows("select * from consents_consent where id = %s", owner_id(run_id, 0, "consent"))
    return found


@pytest.mark.django_db(transaction=True)
async def test_a_matching_rule_answers_in_the_transaction_of_the_question_and_the_run_goes_on(gated: Parts) -> None:
    await synced(gated, rule("broad", priority=10), rule("narrow", priority=90, pattern="gat?", max_uses=1))
    found = await asked(gated)
    assert (found["status"], found["decided_by"], found["surface"]) == ("granted", "policy:narrow", "policy")
    narrow = (await stored(gated))["narrow"]
    assert (found["policy_id"], found["policy_digest"], narrow["uses"]) == (narrow["id"], narrow["digest"], 1)
    assert await gated.standing(found["run_id"], 1) == ("queued", "published")
    assert await gated.perform(found["run_id"], 1) == {"outcome": "done"}
    assert (await gated.run(found["run_id"]))["output"]["did"] == ["a"]
    assert (await asked(gated))["decided_by"] == "policy:broad"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("policy", "wish", "answers"),
    [
        ({}, {}, True),
        ({"max_risk": "medium"}, {"risk": "medium"}, True),
        ({"max_risk": "medium"}, {"risk": "high"}, False),
        ({"pattern": "gat"}, {}, False),
        ({"node": "ask"}, {}, True),
        ({"node": "other"}, {}, False),
        ({"sigil": "test*"}, {}, True),
        ({"sigil": "prod*"}, {}, False),
        ({"tenant": "lab"}, {}, False),
        ({"max_uses": 0}, {}, False),
        ({"constraints": {"n": {"max": 5}}}, {"facts": {"n": 5}}, True),
        ({"constraints": {"n": {"max": 5}}}, {"facts": {"n": 5.5}}, False),
        ({"constraints": {"n": {"max": 5}}}, {"facts": {"n": True}}, False),
        ({"constraints": {"n": {"min": 2, "max": 5}}}, {"facts": {"n": 1}}, False),
        ({"constraints": {"n": {"in": ["a", "b"]}}}, {"facts": {"n": "b"}}, True),
        ({"constraints": {"n": {"in": [1]}}}, {"facts": {"n": True}}, False),
        ({"constraints": {"n": 1}}, {"facts": {"n": True}}, False),
        ({"constraints": {"n": 1}}, {"facts": {"n": 1.0}}, True),
        ({"constraints": {"n": 1}}, {"facts": {}}, False),
        ({}, {"quorum": 2}, False),
        ({}, {"group": "lawyers"}, False),
        ({}, {"permission": "consents.decide_consent"}, False),
    ],
)
async def test_what_a_rule_answers(gated: Parts, policy: dict[str, Any], wish: dict[str, Any], answers: bool) -> None:
    await synced(gated, rule(**policy))
    assert ((await asked(gated, **wish))["status"] == "granted") is answers


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", ["enabled = false", "source_present = false", "expires_at = now()"])
async def test_a_rule_that_is_off_gone_or_over_answers_nothing(gated: Parts, change: str) -> None:
    await synced(gated, rule())
    await gated.rows(f"update consents_standingpolicy set {change}")
    assert (await asked(gated))["status"] == "pending"


@pytest.mark.django_db(transaction=True)
async def test_many_who_ask_at_once_use_a_rule_no_more_often_than_it_says(gated: Parts) -> None:
    await synced(gated, rule(max_uses=3))
    found = await asyncio.gather(*(asked(gated) for _ in range(8)))
    assert sorted(one["status"] for one in found) == ["granted"] * 3 + ["pending"] * 5
    assert (await stored(gated))["any"]["uses"] == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ("uses = 100", True),
        ("enabled = false", False),
        ("source_present = false", False),
        ("expires_at = now()", False),
        ("digest = 'another'", False),
    ],
)
async def test_a_yes_of_a_rule_is_read_as_no_once_the_rule_does_not_hold(
    gated: Parts, change: str, holds: bool
) -> None:
    await synced(gated, rule())
    found = await asked(gated)
    await gated.rows(f"update consents_standingpolicy set {change}")
    assert await gated.perform(found["run_id"], 1) == {"outcome": "done"}
    output = (await gated.run(found["run_id"]))["output"]
    assert output["receipts"][0]["granted"] is holds
    assert output["did"] == (["a"] if holds else [])


async def test_a_vessel_reads_its_rules_at_start_and_refuses_bad_ones(
    vessel_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, BOTH)
    async with watching(vessel_url) as eyes:
        async with living(vessel_url, monkeypatch=monkeypatch, policies=str(path)):
            assert await eyes.rows("select slug, source_present from consents_standingpolicy order by 1") == [
                ("by-night", True),
                ("small-moves", True),
            ]
        path.write_text(BOTH.replace('granted_by = "ben"', ""))
        with pytest.raises((BadPolicy, BadSetting), match="policy 2: granted_by"):
            async with living(vessel_url, monkeypatch=monkeypatch, policies=str(path)):
                pass
        assert await eyes.one("select count(*) from consents_standingpolicy where source_present") == 2


def test_ids_of_owners_follow_from_run_and_visit() -> None:
    run_id = uuid.uuid4()
    assert owner_id(run_id, 1, "consent") == owner_id(run_id, 1, "consent")
    assert len({owner_id(run_id, 1, "consent"), owner_id(run_id, 2, "consent"), owner_id(run_id, 1, "other")}) == 3
