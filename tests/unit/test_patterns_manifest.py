"""The pinned graph: its digest covers what must not change, and a tampered one is found out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from runs.errors import PatternError
from runs.patterns import Finish, Goto, Manifest, Pattern
from runs.patterns.manifest import ManifestEdge, ManifestNode


def a_manifest(**changes: Any) -> Manifest:
    return Manifest(
        **{
            "key": "tidy",
            "revision": "2",
            "start": "scan",
            "nodes": (
                ManifestNode("scan", True, 60.0, "Look around."),
                ManifestNode("ask"),
                ManifestNode("apply", timeout=0.25),
            ),
            "edges": (
                ManifestEdge("scan", "ask", "goto"),
                ManifestEdge("scan", None, "finish"),
                ManifestEdge("ask", "apply", "consent"),
                ManifestEdge("apply", "scan", "goto"),
                ManifestEdge("apply", None, "finish"),
            ),
            "durable": True,
            "continues": ("1",),
            "schemas": {"input": {"type": "object"}, "state": {}, "output": {}},
            **changes,
        }
    )


def stored(manifest: Manifest) -> dict[str, Any]:
    return json.loads(json.dumps(manifest.to_json()))


@pytest.mark.contract("CLM-9")
def test_a_manifest_survives_json_and_proves_itself():
    manifest = a_manifest()
    again = Manifest.verify(stored(manifest))
    assert again == manifest
    assert again.digest == manifest.digest
    assert len(manifest.digest) == 64


def test_the_json_form_is_the_documented_one():
    value = a_manifest().to_json()
    assert list(value) == [
        "key", "revision", "digest", "start", "nodes", "edges", "flags", "continues", "schemas",
    ]  # fmt: skip
    assert value["nodes"][0] == {"name": "scan", "replay_safe": True, "timeout": 60.0, "doc": "Look around."}
    assert value["edges"][1:3] == [
        {"from": "scan", "to": None, "via": "finish"},
        {"from": "ask", "to": "apply", "via": "consent"},
    ]
    assert value["flags"] == {"durable": True}


def test_the_json_form_is_a_copy():
    manifest = a_manifest()
    manifest.to_json()["schemas"]["input"]["type"] = "array"
    assert manifest.schemas["input"]["type"] == "object"


NODES = a_manifest().nodes
EDGES = a_manifest().edges


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "tidier"},
        {"revision": "3"},
        {"start": "ask"},
        {"durable": False},
        {"nodes": (*NODES[:2], ManifestNode("apply", True, 0.25))},
        {"nodes": (*NODES[:2], ManifestNode("apply", False, 0.5))},
        {"nodes": (*NODES, ManifestNode("more"))},
        {"edges": EDGES[:-1]},
        {"edges": (*EDGES[:2], ManifestEdge("ask", "apply", "goto"), *EDGES[3:])},
        {"edges": (*EDGES[:2], ManifestEdge("ask", "scan", "consent"), *EDGES[3:])},
    ],
)
@pytest.mark.contract("CLM-9")
def test_the_digest_covers_key_revision_nodes_edges_and_flags(changes: dict[str, Any]):
    assert a_manifest(**changes).digest != a_manifest().digest


@pytest.mark.parametrize(
    "changes",
    [
        {"schemas": {"input": {}, "state": {}, "output": {}}},
        {"continues": ()},
        {"nodes": NODES[::-1], "edges": EDGES[::-1]},
        {"nodes": (ManifestNode("scan", True, 60.0, "Other words."), *NODES[1:])},
    ],
)
def test_the_digest_leaves_out_schemas_words_and_order(changes: dict[str, Any]):
    assert a_manifest(**changes).digest == a_manifest().digest


def _set(path: list[Any], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        part: Any = manifest
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value

    return change


@pytest.mark.contract("CLM-9")
@pytest.mark.parametrize(
    "tamper",
    [
        _set(["digest"], "0" * 64),
        _set(["digest"], None),
        _set(["revision"], "1"),
        _set(["start"], "apply"),
        _set(["nodes", 2, "replay_safe"], True),
        _set(["nodes", 0, "timeout"], 61),
        _set(["nodes", 1, "name"], "asking"),
        _set(["edges", 0, "to"], "apply"),
        _set(["edges", 2, "via"], "goto"),
        _set(["flags", "durable"], False),
        lambda manifest: manifest["edges"].pop(),
        lambda manifest: manifest["nodes"].append({**manifest["nodes"][0], "timeout": None}),
        lambda manifest: manifest.pop("digest"),
    ],
)
def test_a_tampered_manifest_is_found_out(tamper: Callable[[dict[str, Any]], None]):
    value = stored(a_manifest())
    tamper(value)
    with pytest.raises(PatternError, match=r"does not match its own digest|cannot be read"):
        Manifest.verify(value)


@pytest.mark.contract("CLM-9")
@pytest.mark.parametrize(
    "value",
    [None, [], {}, "x", 5, *({**stored(a_manifest()), key: 5} for key in a_manifest().to_json() if key != "digest")],
)
def test_what_is_no_manifest_is_refused_with_a_sentence(value: Any):
    with pytest.raises(PatternError, match="The pinned manifest cannot be read"):
        Manifest.verify(value)


def test_reading_does_not_hold_on_to_what_it_read():
    value = stored(a_manifest())
    manifest = Manifest.from_json(value)
    value["schemas"]["input"]["type"] = "array"
    assert manifest.schemas["input"]["type"] == "object"


def test_nodes_and_edges_are_found_by_name():
    manifest = a_manifest()
    assert manifest.node("ask") == ManifestNode("ask")
    assert manifest.edges_from("ask") == (ManifestEdge("ask", "apply", "consent"),)
    with pytest.raises(PatternError, match="'tidy' revision 2 has no node 'gone'"):
        manifest.node("gone")


def test_the_drawing_shows_every_node_and_every_way_out():
    assert a_manifest().draw().splitlines() == [
        "tidy 2",
        "  scan  (start, replay safe, at most 60 s)",
        "    ├─ → ask",
        "    └─ ■ finish",
        "  ask",
        "    └─ ⏸ consent → apply",
        "  apply  (at most 0.25 s)",
        "    ├─ → scan",
        "    └─ ■ finish",
    ]


class Empty(BaseModel):
    pass


def _declared(order: list[str]) -> Pattern[Empty, Empty, Empty]:
    pattern = Pattern("two", input=Empty, state=Empty, output=Empty)

    def begin() -> None:
        @pattern.start
        async def begin(ctx: Any) -> Goto[Literal["end"]] | Finish[Empty]:
            return Goto("end")

    def end() -> None:
        @pattern.node(replay_safe=True)
        async def end(ctx: Any) -> Finish[Empty]:
            return Finish(Empty())

    for name in order:
        {"begin": begin, "end": end}[name]()
    return pattern


def test_moving_a_node_within_its_file_changes_no_digest():
    assert _declared(["begin", "end"]).digest == _declared(["end", "begin"]).digest


def test_the_digest_of_a_graph_never_changes_between_versions_of_the_product():
    assert _declared(["begin", "end"]).digest == "3940c260207fae7a411b60e8eae347522d42cb0ae3636d29d50ea14a326b2d11"


def test_tampering_with_a_copy_leaves_the_original_alone():
    value = stored(a_manifest())
    other = copy.deepcopy(value)
    other["revision"] = "9"
    assert Manifest.verify(value).revision == "2"
