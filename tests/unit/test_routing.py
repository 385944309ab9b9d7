"""Which lane and priority a Run gets, and the one conversion for the wire."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from runs.errors import Invalid
from runs.routing import Route, Router, Rule, check_priority, rules_from, wire_priority


@pytest.mark.contract("ADM-2")
@pytest.mark.parametrize(
    ("source", "route"),
    [
        ("bridge", Route("runs", 70)),
        ("dashboard", Route("runs", 70)),
        ("cli", Route("runs", 50)),
        ("api", Route("runs", 50)),
        ("rite", Route("rites", 20)),
        ("something-new", Route("runs", 50)),
        ("", Route("runs", 50)),
    ],
)
def test_each_source_has_its_lane_and_an_unknown_one_the_default(source: str, route: Route):
    assert Router().route(source, "inventory") == route


@pytest.mark.contract("ADM-2")
def test_the_most_specific_rule_wins_whatever_the_order_of_the_rules():
    rules = (
        Rule("rites", 10, source="cli", pattern="inventory"),
        Rule("runs", 20, pattern="inventory"),
        Rule("rites", 30, source="cli"),
        Rule("runs", 40),
    )
    for order in permutations(rules):
        router = Router(order)
        assert router.route("cli", "inventory") == Route("rites", 10)
        assert router.route("api", "inventory") == Route("runs", 20)
        assert router.route("bridge", "inventory") == Route("runs", 20)
        assert router.route("cli", "tidy") == Route("rites", 30)
        assert router.route("bridge", "tidy") == Route("runs", 70)
        assert router.route("elsewhere", "tidy") == Route("runs", 40)


@pytest.mark.contract("ADM-2")
def test_two_rules_for_the_same_target_contradict_each_other():
    with pytest.raises(Invalid, match="Two routing rules speak for source cli and Pattern any"):
        Router([Rule("runs", 1, source="cli"), Rule("runs", 2, source="cli")])


@pytest.mark.contract("ADM-40")
@pytest.mark.parametrize("priority", [0, 1, 50, 99, 100])
def test_a_requested_priority_wins_over_the_rule(priority: int):
    assert Router().route("rite", "inventory", priority) == Route("rites", priority)


@pytest.mark.contract("ADM-40")
@pytest.mark.parametrize(
    "priority", [-1, 101, 10**30, pytest.param(10**5000, id="huge"), None, True, False, 50.0, "50", float("nan"), [1]]
)
def test_rules_and_requests_refuse_the_same_priorities(priority: Any):
    for refuse in (
        lambda: check_priority(priority),
        lambda: Rule("runs", priority),
        lambda: wire_priority(priority),
        lambda: rules_from([{"queue": "runs", "priority": priority}]),
    ):
        with pytest.raises(Invalid, match="whole number from 0 to 100") as caught:
            refuse()
        assert caught.value.errors == [
            {
                "pointer": "/priority",
                "detail": "must be a whole number from 0 to 100",
                "code": "priority_out_of_range",
            }
        ]


@pytest.mark.contract("ADM-40")
@pytest.mark.parametrize("priority", [-1, 101, False])
def test_a_bad_requested_priority_is_refused(priority: Any):
    with pytest.raises(Invalid, match="The priority must be"):
        Router().route("cli", "inventory", priority)


@pytest.mark.contract("ADM-41")
def test_the_wire_sorts_the_other_way_round():
    assert [wire_priority(priority) for priority in (0, 30, 50, 70, 100)] == [100, 70, 50, 30, 0]
    assert wire_priority(Router().route("bridge", "x").priority) < wire_priority(Router().route("cli", "x").priority)
    assert check_priority(70) == 70


def test_a_rule_for_a_queue_that_does_not_exist_is_a_wiring_error():
    with pytest.raises(Invalid, match="queue 'attic', but the queues are: runs, rites"):
        Router([Rule("attic", 50, source="cli")])
    with pytest.raises(Invalid, match="queue 'rites', but the queues are: runs"):
        Router(queues=["runs"])
    assert Router(queues=["only"], defaults=[Rule("only", 50)]).route("rite", "x") == Route("only", 50)


def test_routing_without_a_default_is_a_wiring_error():
    with pytest.raises(Invalid, match="no default"):
        Router([Rule("runs", 50, source="cli")], defaults=[])


def test_rules_are_read_from_their_json_form():
    assert rules_from([{"source": "cli", "pattern": "inventory", "queue": "runs", "priority": 60}]) == (
        Rule("runs", 60, source="cli", pattern="inventory"),
    )
    assert rules_from([]) == ()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"queue": "runs"}, "rule 1: The priority"),
        ({"priority": 50}, "rule 1: A routing rule needs a name as its queue"),
        ({"queue": "runs", "priority": 50, "lane": "x"}, "rule 1 has an unknown field: lane"),
        ({"queue": "runs", "priority": 50, "source": ["cli"]}, "needs a name as its source"),
        ({"queue": "runs", "priority": 50, "pattern": ""}, "needs a name as its pattern"),
        ("runs", "rule 1 must be an object"),
    ],
)
def test_a_bad_rule_is_refused_with_its_number(entry: Any, words: str):
    with pytest.raises(Invalid, match=words):
        rules_from([entry])
