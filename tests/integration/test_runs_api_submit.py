"""Submitting over REST: what is admitted, what is a replay, and what is refused without a trace."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.support.logged import tracebacks
from tests.support.vessel import Door, running_vessel
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]

MIB = 1024 * 1024


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with running_vessel(vessel_url, monkeypatch) as opened:
        yield opened


def problem(response: httpx2.Response, status: int, code: str) -> Any:
    told = response.json()
    assert (response.status_code, told["code"]) == (status, code), told
    assert response.headers["content-type"] == "application/problem+json"
    return told


@pytest.mark.contract("ADM-1")
async def test_a_submission_is_201_with_its_address_and_runs_to_its_end(door: Door) -> None:
    async with door.client() as client:
        response = await client.post("/runs", json={"pattern": "quick", "input": {"n": 4}, "priority": 70})
        run = response.json()
        assert response.status_code == 201
        assert response.headers["location"] == f"/api/v1/runs/{run['id']}"
        assert (run["status"], run["priority"], run["source"]) in [
            ("queued", 70, "api"),
            ("running", 70, "api"),
            ("done", 70, "api"),
        ]
        assert (run["sigil"], run["tenant"], run["input"]) == ("tester", "default", {"n": 4})

        async def done() -> Any:
            found = (await client.get(f"/runs/{run['id']}")).json()
            return found if found["status"] == "done" else None

        assert (await eventually(done))["output"] == {"n": 5}


@pytest.mark.contract("ADM-20", "ADM-21", "ADM-26")
async def test_the_same_key_and_request_is_the_same_run(door: Door) -> None:
    body = {"pattern": "quick", "input": {"n": 1}}
    async with door.client() as client:
        first = await client.post("/runs", json=body, headers={"Idempotency-Key": "k"})
        again = await client.post("/runs", json=body, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert again.json()["id"] == first.json()["id"]
    assert uuid.UUID(first.json()["id"]).version == 5
    assert await door.eyes.one("select count(*) from runs_run") == 1


@pytest.mark.contract("ADM-22")
async def test_twenty_at_once_with_one_key_are_one_run(door: Door) -> None:
    async with door.client() as client:
        found = await asyncio.gather(
            *(
                client.post("/runs", json={"pattern": "quick", "input": {}}, headers={"Idempotency-Key": "k"})
                for _ in range(20)
            )
        )
    assert sorted(response.status_code for response in found) == [200] * 19 + [201]
    assert len({response.json()["id"] for response in found}) == 1
    assert await door.eyes.one("select count(*) from runs_run") == 1


@pytest.mark.contract("ADM-21")
@pytest.mark.parametrize(
    "other",
    [{"input": {"n": 2}}, {"priority": 61}, {"pattern": "talk"}, {"source": "api"}, {"session": str(uuid.uuid4())}],
)
async def test_a_key_used_for_other_work_is_409_and_changes_nothing(door: Door, other: dict[str, Any]) -> None:
    """S018."""
    body = {"pattern": "quick", "input": {"n": 1}, "priority": 60}
    async with door.client() as client:
        first = await client.post("/runs", json=body, headers={"Idempotency-Key": "k"})
        response = await client.post("/runs", json={**body, **other}, headers={"Idempotency-Key": "k"})
    told = problem(response, 409, "idempotency_key_reused")
    assert first.json()["id"] not in json.dumps(told)
    assert await door.eyes.one("select count(*) from runs_run") == 1
    assert await door.eyes.one("select count(*) from runs_session") == 0


@pytest.mark.contract("ADM-20")
async def test_keys_of_other_sigils_and_tenants_are_other_keys(door: Door) -> None:
    second, foreign = await door.sigil("second"), await door.sigil("tester-2", tenant="lab")
    seen: set[str] = set()
    for token in (door.token, second, foreign):
        async with door.client(token) as client:
            response = await client.post(
                "/runs", json={"pattern": "quick", "input": {}}, headers={"Idempotency-Key": "k"}
            )
        assert response.status_code == 201
        seen.add(response.json()["id"])
    assert len(seen) == 3


async def test_a_session_is_made_with_its_first_run_and_its_turn_is_kept(door: Door) -> None:
    session = str(uuid.uuid4())
    async with door.client() as client:
        run = (await client.post("/runs", json={"pattern": "quick", "input": {"n": 1}, "session": session})).json()
        assert run["session"] == session

        async def answered() -> Any:
            found = (await client.get(f"/sessions/{session}")).json()
            return found if found["turns"][0]["status"] == "done" else None

        found = await eventually(answered)
    assert found["turns"][0]["run"] == found["last_run"] == run["id"]
    assert (found["turns"][0]["request"], found["channel"], found["sigil"]) == ({"n": 1}, "rest", "tester")


@pytest.mark.contract("ADM-30")
async def test_a_fenced_session_names_the_live_run(door: Door) -> None:
    body = {"pattern": "talk", "input": {}, "session": str(uuid.uuid4()), "fence_session": True}
    async with door.client() as client:
        live = (await client.post("/runs", json=body)).json()
        told = problem(await client.post("/runs", json=body), 409, "session_fenced")
        assert told["run"] == live["id"]
        door.stage.finish()

        async def done() -> bool:
            return await door.status(live["id"]) == "done"

        await eventually(done)
        assert (await client.post("/runs", json={**body, "pattern": "quick"})).status_code == 201


async def test_a_session_of_another_tenant_does_not_exist(door: Door) -> None:
    foreign, session = await door.sigil("other", tenant="lab"), str(uuid.uuid4())
    body = {"pattern": "quick", "input": {}, "session": session}
    async with door.client() as client:
        assert (await client.post("/runs", json=body)).status_code == 201
    async with door.client(foreign) as client:
        problem(await client.post("/runs", json=body), 404, "not_found")
        problem(await client.get(f"/sessions/{session}"), 404, "not_found")
    assert await door.eyes.one("select count(*) from runs_run where tenant = 'lab'") == 0


async def test_a_source_is_limited_to_what_the_sigil_allows(door: Door) -> None:
    trusted = await door.sigil("trusted", sources=("nightly",))
    body = {"pattern": "quick", "input": {}, "source": "nightly"}
    async with door.client() as client:
        problem(await client.post("/runs", json=body), 403, "forbidden")
    async with door.client(trusted) as client:
        assert (await client.post("/runs", json=body)).json()["source"] == "nightly"


def nested(depth: int) -> bytes:
    return b'{"pattern": "quick", "input": ' + b"[" * depth + b"]" * depth + b"}"


def quick(**more: Any) -> bytes:
    return json.dumps({"pattern": "quick", "input": {}, **more}).encode()


BAD: dict[str, tuple[bytes, int, str]] = {
    "unknown Pattern": (quick(pattern="quack"), 404, "pattern_not_found"),
    "Pattern with NUL": (quick(pattern="qu\0ick"), 422, "invalid"),
    "no Pattern": (b'{"input": {}}', 422, "invalid"),
    "no input": (b'{"pattern": "quick"}', 422, "invalid"),
    "input of another kind": (quick(input={"n": "many"}), 422, "invalid"),
    "input no object": (quick(input=7), 422, "invalid"),
    "unknown field": (quick(colour="red"), 422, "invalid"),
    "priority above": (quick(priority=101), 422, "invalid"),
    "priority below": (quick(priority=-1), 422, "invalid"),
    "priority true": (quick(priority=True), 422, "invalid"),
    "priority text": (quick(priority="60"), 422, "invalid"),
    "priority broken": (quick(priority=60.5), 422, "invalid"),
    "session no id": (quick(session="s-1"), 422, "invalid"),
    "fence without a session": (quick(fence_session=True), 422, "invalid"),
    "fence no truth": (quick(fence_session="yes", session=str(uuid.uuid4())), 422, "invalid"),
    "source with NUL": (quick(source="a\0b"), 422, "invalid"),
    "foreign source": (quick(source="nightly"), 403, "forbidden"),
    "NUL": (quick(input={"text": "a\0b"}), 422, "invalid"),
    "NUL in a key": (quick(input={"te\0xt": "a"}), 422, "invalid"),
    "half a surrogate pair": (quick(input={"text": "\ud800"}), 422, "invalid"),
    "NaN": (quick(input={"n": float("nan")}), 422, "invalid"),
    "Infinity": (b'{"pattern": "quick", "input": {"n": 1e999}}', 422, "invalid"),
    "too many digits": (b'{"pattern": "quick", "input": {"n": ' + b"1" * 5000 + b"}}", 422, "invalid"),
    "deep": (nested(10_000), 422, "invalid"),
    "deeper than we store": (nested(201), 422, "invalid"),
    "no JSON": (b"{", 400, "malformed_json"),
    "not UTF-8": (b'{"pattern": "\xff"}', 400, "malformed_json"),
    "no object": (b"[]", 422, "invalid"),
    "nothing": (b"", 422, "invalid"),
    "large input": (quick(input={"text": "x" * MIB}), 422, "too_large"),
    "large body": (quick(input={"text": "x" * (2 * MIB)}), 413, "body_too_large"),
}


@pytest.mark.contract("ADM-40")
async def test_bad_input_is_refused_as_documented_and_leaves_nothing(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with door.client() as client:
            for name, (body, status, code) in BAD.items():
                response = await client.post(
                    "/runs", content=body, headers={"Content-Type": "application/json", "Idempotency-Key": "bad"}
                )
                told = response.json()
                assert (name, response.status_code, told["code"]) == (name, status, code), told
                assert "Traceback" not in response.text
    for table in ("runs_run", "runs_rundelivery", "runs_step", "runs_session"):
        assert await door.eyes.one(f"select count(*) from {table}") == 0
    assert tracebacks(caplog) == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    # Nothing was counted either.
    assert (door.vessel.limits.queued, sum(door.vessel.limits.live.values())) == (0, 0)


async def test_invalid_input_says_where(door: Door) -> None:
    async with door.client() as client:
        told = problem(await client.post("/runs", json={"pattern": "quick", "input": {"n": "x"}}), 422, "invalid")
        assert [error["pointer"] for error in told["errors"]] == ["/input/n"]
        told = problem(await client.post("/runs", json={"pattern": "quick", "input": {}, "x": 1}), 422, "invalid")
        assert [error["pointer"] for error in told["errors"]] == ["/x"]
        told = problem(await client.post("/runs", json={"pattern": "quic", "input": {}}), 404, "pattern_not_found")
        assert "quick" in told["detail"]


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb"])
async def test_a_key_that_is_none_is_422(door: Door, key: str) -> None:
    async with door.client() as client:
        response = await client.post("/runs", json={"pattern": "quick", "input": {}}, headers={"Idempotency-Key": key})
    told = problem(response, 422, "invalid")
    assert told["errors"][0]["in"] == "header"
    assert await door.eyes.one("select count(*) from runs_run") == 0


async def test_without_the_scope_it_is_403_and_without_a_token_401(door: Door) -> None:
    reader = await door.sigil("reader", scopes=("runs:read",))
    async with door.client(reader) as client:
        told = problem(await client.post("/runs", json={"pattern": "quick", "input": {}}), 403, "forbidden")
        assert told["scope"] == "runs:submit"
    async with door.client("nonsense") as client:
        problem(await client.post("/runs", json={"pattern": "quick", "input": {}}), 401, "unauthenticated")
    assert await door.eyes.one("select count(*) from runs_run") == 0


async def test_under_pressure_it_is_429_and_says_when_to_come_back(
    vessel_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_vessel(vessel_url, monkeypatch, max_live_per_tenant=1) as door, door.client() as client:
        live = (await client.post("/runs", json={"pattern": "talk", "input": {}})).json()
        response = await client.post("/runs", json={"pattern": "quick", "input": {}})
        problem(response, 429, "too_many")
        assert int(response.headers["retry-after"]) > 0
        door.stage.finish()

        async def taken() -> bool:
            return (await client.post("/runs", json={"pattern": "quick", "input": {}})).status_code == 201

        await eventually(taken)
        assert await door.status(live["id"]) == "done"


async def test_while_it_stops_it_is_503(door: Door) -> None:
    door.vessel.engine.admitting = False
    async with door.client() as client:
        problem(await client.post("/runs", json={"pattern": "quick", "input": {}}), 503, "not_admitting")
