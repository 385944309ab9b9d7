"""Who may come in through which door, what the limits are to the byte, and that a refusal leaves no row behind."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from tests.support.logged import tracebacks
from tests.support.vessel import Door, closed, running_vessel
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]

MIB = 1024 * 1024


async def rows_of(door: Door) -> dict[str, int]:
    """How many rows each table has."""
    tables = await door.eyes.rows("select tablename from pg_tables where schemaname = 'public'")
    return {name: await door.eyes.one(f'select count(*) from "{name}"') for (name,) in tables}


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with running_vessel(vessel_url, monkeypatch) as opened:
        yield opened


# What is done to a Sigil or its owner, and what each door says then: HTTP status and close code.
LOST: dict[str, tuple[str, int, int]] = {
    "revoked": ("update sigils_sigil set revoked_at = now() where name = %s", 401, 4401),
    "expired": ("update sigils_sigil set expires_at = now() - interval '1 s' where name = %s", 401, 4401),
    "owner gone": (
        "update sigils_user u set is_active = false from sigils_sigil s where s.owner_id = u.id and s.name = %s",
        401,
        4401,
    ),
    "owner no member": (
        "delete from sigils_membership m using sigils_sigil s where s.owner_id = m.user_id and s.name = %s",
        401,
        4401,
    ),
    "owner without the right": (
        "update sigils_user u set is_superuser = false from sigils_sigil s where s.owner_id = u.id and s.name = %s",
        403,
        4403,
    ),
    "no scope": ("update sigils_sigil set scopes = '[]' where name = %s", 403, 4403),
}


@pytest.mark.parametrize("how", LOST)
async def test_a_right_that_was_lost_is_lost_at_every_door_and_nothing_is_written(
    door: Door, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Ruling 29: the effective right is the Sigil's scopes cut with what its owner may do."""
    change, status, code = LOST[how]
    run = await door.life.submit("quick")

    async def over() -> bool:
        return await door.status(run) == "done" and door.vessel.bus.head(run) is None

    await eventually(over)
    token = await door.sigil("mallory")
    async with door.client(token) as client:
        assert (await client.get(f"/runs/{run}")).status_code == 200
        await door.eyes.rows(change, "mallory")
        before = await rows_of(door)
        for path in ("/runs", f"/runs/{run}", f"/runs/{run}/steps", f"/runs/{run}/events", "/patterns"):
            assert (path, (await client.get(path)).status_code) == (path, status)
        body = {"pattern": "quick", "input": {}, "session": str(uuid.uuid4())}
        response = await client.post("/runs", json=body, headers={"Idempotency-Key": "k"})
        assert response.status_code == status
        assert str(run) not in response.text
    for path in (f"/ws/runs/{run}/", "/ws/runs/"):
        socket = door.socket(path, token=token)
        assert (await socket.connect(timeout=10))[0]
        assert (path, (await closed(socket))[0]) == (path, code)
        await socket.disconnect()
    assert await rows_of(door) == before
    assert tracebacks(caplog) == []


async def test_every_operation_takes_a_token_or_a_session_and_none_is_open(door: Door) -> None:
    async with door.client() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        for path, operations in paths.items():
            for method, operation in operations.items():
                assert operation["security"] == [{"BearerAuth": []}, {"SessionAuth": []}], (method, path)


def sized(total: int) -> bytes:
    """A body whose input is exactly so many bytes as canonical JSON."""
    text = "x" * (total - len('{"text":""}'))
    return json.dumps({"pattern": "quick", "input": {"text": text}}).encode()


async def test_an_input_may_have_exactly_one_mebibyte_and_the_refusal_names_it(door: Door) -> None:
    headers = {"Content-Type": "application/json"}
    async with door.client() as client:
        assert (await client.post("/runs", content=sized(MIB), headers=headers)).status_code == 201
        response = await client.post("/runs", content=sized(MIB + 1), headers=headers)
        told = response.json()
        assert (response.status_code, told["code"]) == (422, "too_large")
        assert "input" in told["detail"]
        assert "1,048,576" in told["detail"]
        # Bytes count, not characters.
        wide = json.dumps({"pattern": "quick", "input": {"text": "ü" * (MIB // 2)}}, ensure_ascii=False).encode()
        assert (await client.post("/runs", content=wide, headers=headers)).json()["code"] == "too_large"


async def test_the_limit_of_payloads_is_a_setting(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_vessel(vessel_url, monkeypatch, max_payload=2048) as door, door.client() as client:
        headers = {"Content-Type": "application/json"}
        assert (await client.post("/runs", content=sized(2048), headers=headers)).status_code == 201
        told = (await client.post("/runs", content=sized(2049), headers=headers)).json()
        assert (told["code"], "2,048" in told["detail"]) == ("too_large", True)


async def test_a_refusal_does_not_repeat_what_it_refuses(door: Door) -> None:
    secret = "hunter2 " * 20_000
    bodies: list[Any] = [
        {"pattern": secret, "input": {}},
        {"pattern": "quick", "input": {"n": secret}},
        {"pattern": "quick", "input": {}, "source": secret},
        {"pattern": "quick", "input": {}, secret: 1},
        {"pattern": "quick", "input": {secret: {"\0": 1}}},
        {"pattern": "quick", "input": {}, **{f"field {n}": n for n in range(10_000)}},
        {"pattern": "quick", "input": {}, "session": secret},
    ]
    async with door.client() as client:
        for body in bodies:
            response = await client.post("/runs", json=body)
            assert 400 <= response.status_code < 500
            assert len(response.content) < 4096, (response.status_code, response.text[:200])


async def test_ids_tell_their_origin_and_times_are_utc(door: Door) -> None:
    async with door.client() as client:
        free = (await client.post("/runs", json={"pattern": "quick", "input": {}})).json()
        keyed = (
            await client.post("/runs", json={"pattern": "quick", "input": {}}, headers={"Idempotency-Key": "k"})
        ).json()
        assert (uuid.UUID(free["id"]).version, uuid.UUID(keyed["id"]).version) == (7, 5)

        async def done() -> Any:
            found = (await client.get(f"/runs/{free['id']}")).json()
            return found if found["status"] == "done" else None

        found = await eventually(done)
        steps = (await client.get(f"/runs/{free['id']}/steps")).json()["items"]
    times = [found[name] for name in ("created_at", "updated_at", "started_at", "finished_at")]
    for time in [*times, *(step["at"] for step in steps)]:
        assert time.endswith("Z")
        assert datetime.fromisoformat(time).utcoffset() is not None
    assert times[0] <= times[2] <= times[3]


@pytest.mark.contract("EVT-1")
async def test_only_the_task_of_the_run_drives_the_graph_and_tells_of_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers, relays and a second broker job are there as well, and tell nothing."""
    told: list[tuple[str, asyncio.Task[Any] | None]] = []
    bus = door.vessel.bus
    publish = bus._publish  # pyright: ignore[reportPrivateUsage]

    def noted(channel: Any, kind: Any, node: Any, data: Any, meta: Any) -> Any:
        told.append((f"{kind} {(data or {}).get('status', '')}".strip(), asyncio.current_task()))
        return publish(channel, kind, node, data, meta)

    monkeypatch.setattr(bus, "_publish", noted)
    drivers: list[asyncio.Task[Any] | None] = []
    run = await door.life.submit("talk")
    mine = asyncio.current_task()
    async with asyncio.timeout(5):
        await door.stage.entered.wait()
    async with door.stream(f"/runs/{run}/events?history=1") as reader:
        await reader.next()
        await door.vessel.ghoul.perform_run(run, 0)
        door.stage.say(lambda ctx: drivers.append(asyncio.current_task()))
        door.stage.log("a")
        door.stage.finish()
        await reader.rest()
    kinds, others = [kind for kind, _ in told], {task for _, task in told[1:]} - set(drivers)
    assert (kinds[0], told[0][1]) == ("status queued", mine)  # the admission, which no graph has seen yet
    assert kinds[1] == "status running"
    assert kinds[-1] == "done done"
    assert kinds.count("done done") == kinds.count("status running") == 1
    assert {task for kind, task in told[1:] if kind != "done done"} == set(drivers)
    # The end is told by the shielded half of the same task, which outlives its cancellation.
    assert [task.get_coro().__qualname__ for task in others if task] == ["Ghoul._end"]  # pyright: ignore[reportOptionalMemberAccess]
