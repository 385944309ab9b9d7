"""The OpenAPI document is what the doors do: every route, every status, each answer in the shape that it shows."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from runs.api import router, schemas
from runs.api.request import Problem
from runs.errors import Degraded
from tests.support.vessel import Door, running_vessel
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]

# What `interface.md` and the rulings promise, by method and address.
DOCUMENTED: dict[tuple[str, str], set[int]] = {
    ("post", "/runs"): {200, 201, 400, 401, 403, 404, 409, 410, 413, 415, 422, 429, 503},
    ("get", "/runs"): {200, 400, 401, 403, 422, 503},
    ("get", "/runs/{run_id}"): {200, 304, 400, 401, 403, 404, 422, 503},
    ("get", "/runs/{run_id}/steps"): {200, 400, 401, 403, 404, 422, 503},
    ("get", "/runs/{run_id}/events"): {200, 400, 401, 403, 404, 422, 503},
    ("get", "/patterns"): {200, 400, 401, 403, 503},
    ("get", "/patterns/{key}"): {200, 400, 401, 403, 404, 503},
    ("get", "/sessions/{session_id}"): {200, 400, 401, 403, 404, 422, 503},
}
SHAPES: dict[str, type[BaseModel]] = {
    "Run": schemas.Run,
    "RunPage": schemas.RunPage,
    "StepPage": schemas.StepPage,
    "Pattern": schemas.Pattern,
    "PatternPage": schemas.PatternPage,
    "Session": schemas.Session,
    "Problem": Problem,
}


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with running_vessel(vessel_url, monkeypatch) as opened:
        yield opened


async def document(door: Door) -> Any:
    async with door.client() as client:
        return (await client.get("/openapi.json")).json()


def routed() -> set[tuple[str, str]]:
    """What really answers, from the routers themselves."""
    return {
        (method.lower(), path if path.startswith("/") else f"/{path}")
        for mount in router.build_routers("")
        for path, view in mount.template.path_operations.items()
        for operation in view.operations
        for method in operation.methods
    }


async def test_every_route_is_documented_with_its_statuses_and_nothing_else(door: Door) -> None:
    paths = (await document(door))["paths"]
    shown = {
        (method, path.removeprefix("/api/v1")): {int(status) for status in operation["responses"]}
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    assert {key: shown[key] for key in DOCUMENTED if key in shown} == DOCUMENTED
    assert routed() == set(DOCUMENTED)


async def test_refusals_are_shown_as_problem_details_and_streams_as_streams(door: Door) -> None:
    paths = (await document(door))["paths"]
    for path, method in ((path, method) for path, operations in paths.items() for method in operations):
        for status, response in paths[path][method]["responses"].items():
            if int(status) >= 400:
                assert set(response["content"]) == {"application/problem+json"}, (path, status)
    events = paths["/api/v1/runs/{run_id}/events"]["get"]
    assert set(events["responses"]["200"]["content"]) == {"text/event-stream"}
    named = {(one["in"], one["name"]) for one in events["parameters"]}
    assert named == {("path", "run_id"), ("query", "cursor"), ("query", "history"), ("header", "Last-Event-ID")}
    submit = paths["/api/v1/runs"]["post"]
    assert [(one["in"], one["name"]) for one in submit["parameters"]] == [("header", "Idempotency-Key")]
    assert set(submit["responses"]["429"]["headers"]) == {"Retry-After"}


class Asked:
    """Everything that was answered, each answer held against the document."""

    def __init__(self, paths: Any) -> None:
        self._paths = paths
        self.seen: dict[tuple[str, str], set[int]] = {key: set() for key in DOCUMENTED}

    def hold(self, method: str, path: str, response: httpx2.Response) -> None:
        operation = self._paths[f"/api/v1{path}"][method]
        status = str(response.status_code)
        assert status in operation["responses"], (method, path, response.text)
        shown = operation["responses"][status]
        for name in shown.get("headers", {}):
            assert name in response.headers, (path, status, name)
        if not (content := shown.get("content")):
            assert response.content == b""
        else:
            (kind,) = content
            assert response.headers["content-type"].partition(";")[0] == kind, (path, status)
            if kind != "text/event-stream":
                shape = SHAPES[content[kind]["schema"]["$ref"].rpartition("/")[2]]
                same_shape(shape, response.json(), (method, path, status))
        self.seen[method, path].add(response.status_code)


def same_shape(shape: type[BaseModel], value: Any, where: Any) -> None:
    """It validates, and has no member that the document does not show."""
    model = shape.model_validate(value)
    if shape.model_config.get("extra") != "allow":
        assert set(value) == {field.alias or name for name, field in shape.model_fields.items()}, where
    for name, inner in value.items():
        part = getattr(model, name, None)
        for one, raw in zip(part, inner, strict=True) if isinstance(part, list) else [(part, inner)]:
            if isinstance(one, BaseModel):
                same_shape(type(one), raw, (*where, name))


async def test_every_documented_status_is_answered_in_the_documented_shape(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked((await document(door))["paths"])
    session = uuid.uuid4()
    run = await door.life.submit("quick", {"n": 1}, session=session)

    async def over() -> bool:
        return await door.status(run) == "done" and door.vessel.bus.head(run) is None

    await eventually(over)
    reader = await door.sigil("reader", scopes=("runs:read",))
    writer = await door.sigil("writer", scopes=("runs:submit",))
    there = {"run_id": run, "key": "quick", "session_id": session}
    nowhere = {"run_id": uuid.uuid4(), "key": "quack", "session_id": uuid.uuid4()}
    garbage = {"run_id": "x", "session_id": "x"}
    looks = [path for method, path in DOCUMENTED if method == "get"]

    async def look(path: str, ids: Any, token: str | None = None, query: str = "", **headers: str) -> None:
        async with door.client(token) as client:
            asked.hold("get", path, await client.get(path.format(**ids) + query, headers=headers))

    for path in looks:
        await look(path, there)
        await look(path, there, "nonsense")
        await look(path, there, writer)
        await look(path, there, Host="elsewhere.example")
        if "{" in path:
            await look(path, nowhere)
        if "_id}" in path:
            await look(path, garbage)
    await look("/runs", {}, query="?limit=0")
    await look("/runs", {}, query="?cursor=x")
    await look("/runs/{run_id}", there, **{"If-None-Match": "*"})

    await submit_every_way(door, asked, reader)

    async def away(*_: Any, **__: Any) -> Any:
        raise Degraded("The database cannot be asked.")

    monkeypatch.setattr(door.vessel.reads, "fetch_one", away)
    for path in looks:
        await look(path, there)
    monkeypatch.undo()
    assert asked.seen == DOCUMENTED


async def submit_every_way(door: Door, asked: Asked, reader: str) -> None:
    """Each status of a submission."""

    async def submit(body: Any, token: str | None = None, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with door.client(token) as client:
            response = await client.post(
                "/runs", content=content, headers={"Content-Type": "application/json", **headers}
            )
        asked.hold("post", "/runs", response)
        return response.json()

    work = {"pattern": "quick", "input": {}}
    key = {"Idempotency-Key": "k"}
    first = await submit(work, **key)
    await submit(work, **key)
    await submit({**work, "priority": 3}, **key)
    await submit(b"{")
    await submit(work, "nonsense")
    await submit(work, reader)
    await submit({**work, "pattern": "quack"})
    await submit(b" " * (2 * 1024 * 1024 + 1))
    await submit(work, **{"Content-Type": "text/plain"})
    await submit({**work, "priority": 101})
    limits = door.vessel.limits
    most, limits.max_queued = limits.max_queued, 0
    await submit(work)
    limits.max_queued = most
    door.vessel.engine.admitting = False
    await submit(work)
    door.vessel.engine.admitting = True
    await prune(door, first["id"])
    await submit(work, **key)


async def prune(door: Door, run: str) -> None:
    """What retention leaves of a Run (ruling 36)."""

    async def over() -> bool:
        return await door.status(run) == "done" and door.vessel.bus.head(uuid.UUID(run)) is None

    await eventually(over)
    await door.eyes.rows(
        "insert into runs_runtombstone (id, tenant, request_digest, status, pruned_at)"
        " select id, tenant, request_digest, status, now() from runs_run where id = %s::uuid",
        run,
    )
    for table in ("runs_step", "runs_rundelivery"):
        await door.eyes.rows(f"delete from {table} where run_id = %s::uuid", run)
    await door.eyes.rows("delete from runs_run where id = %s::uuid", run)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_other_methods_are_405_and_name_those_that_work(door: Door, method: str) -> None:
    ids = {"run_id": uuid.uuid4(), "key": "quick", "session_id": uuid.uuid4()}
    async with door.client() as client:
        for path in {path for _, path in DOCUMENTED}:
            allowed = {known.upper() for known, where in DOCUMENTED if where == path}
            response = await client.request(method, path.format(**ids))
            assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed"), path
            assert {one.strip() for one in response.headers["allow"].split(",")} == allowed
