"""The page of the law and the code name the same edges."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import runs.ledger
from runs.ledger.edge import Edge
from runs.ledger.ledger import HOT
from runs.states import EDGES, GENERIC
from tests.support.ledger import CASES

# One statement in the code, several edges of the law, by what the request asks for.
TOGETHER = {"move": {"enter_hardware", "leave_hardware"}, "settle": {"settle_done", "settle_failed"}}
# It leads from no state, so it is no edge of the table.
BIRTH = {"admit"}
# Several statements in one transaction; `test_ending` puts it against every state.
SCRIPTS = {"elect"}


def edges_of_the_code() -> list[Edge[Any, Any]]:
    found: dict[int, Edge[Any, Any]] = {}
    for module in pkgutil.iter_modules(runs.ledger.__path__, "runs.ledger."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Edge):
                found[id(value)] = value
    return list(found.values())


def test_every_edge_of_the_code_is_in_the_table_and_every_edge_of_the_table_in_the_code() -> None:
    names = [edge.name for edge in edges_of_the_code()]
    assert len(names) == len(set(names))
    law: set[str] = set()
    for name in set(names) - BIRTH:
        law |= TOGETHER.get(name, {name})
    assert law == set(EDGES) - SCRIPTS


def test_every_edge_of_the_table_is_put_to_the_matrix_under_its_own_name() -> None:
    assert set(CASES) == set(EDGES) - SCRIPTS
    for name, case in CASES.items():
        assert name in TOGETHER.get(case.edge.name, {case.edge.name})


def test_the_generic_writer_has_the_two_ways_of_hardware_and_no_other() -> None:
    ways = {(status, EDGES[name].to_status) for name in TOGETHER["move"] for status in EDGES[name].from_status}
    assert ways == GENERIC


def test_exactly_the_edges_marked_hot_have_a_coalescer() -> None:
    assert {edge.name for edge in edges_of_the_code() if edge.hot} == {edge.name for edge in HOT}
