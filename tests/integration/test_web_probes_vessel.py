"""The probes of a whole Vessel over HTTP: ready and not, with reasons; figures that move; load that is shown."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from lychd import graph
from tests.support.vessel import Door, running_vessel
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with running_vessel(vessel_url, monkeypatch, runs_concurrency=1) as opened:
        yield opened


async def probe(door: Door, path: str) -> httpx2.Response:
    """Nobody needs a token, nor a host name that is ours."""
    application: Any = door.application
    transport = httpx2.ASGITransport(app=application)
    async with httpx2.AsyncClient(transport=transport, base_url="http://10.0.0.7") as client:
        return await client.get(path)


async def figures(door: Door) -> dict[str, float]:
    lines = [line for line in (await probe(door, "/metrics")).text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def conditions(door: Door) -> tuple[int, dict[str, Any]]:
    response = await probe(door, "/readyz")
    return response.status_code, {one["name"]: one for one in response.json()["checks"]}


async def ready(door: Door) -> dict[str, Any]:
    async def met() -> Any:
        status, checks = await conditions(door)
        return checks if status == 200 else None

    return await eventually(met, within=10)


async def test_a_vessel_is_ready_until_a_part_is_not_and_then_says_which(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = await ready(door)
    assert {"database", "broker", "lane runs", "lane rites", "relay delivery", "recovery"} <= set(checks)

    async def away(*_: Any) -> Any:
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(door.vessel.reads, "fetch_one", away)
    status, checks = await conditions(door)
    assert (status, checks["database"]["ok"]) == (503, False)
    assert "nobody listens" in checks["database"]["reason"]
    assert (await probe(door, "/healthz")).status_code == 200
    monkeypatch.undo()
    door.vessel.claim_gate.close("test", "maintenance")
    status, checks = await conditions(door)
    assert (status, checks["claim gate"]["reason"]) == (503, "test: maintenance")
    door.vessel.claim_gate.open("test")
    await ready(door)
    await door.life.stop()
    status, checks = await conditions(door)
    assert (status, checks["admitting"]["reason"]) == (503, "stopping")
    assert (await probe(door, "/healthz")).status_code == 200


async def test_low_work_that_others_overtake_is_shown_and_counted_while_the_vessel_stays_ready(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ruling 21."""
    monkeypatch.setattr(graph, "STARVED_SECONDS", 10)
    await door.life.submit("talk", priority=90)
    async with asyncio.timeout(5):
        await door.stage.entered.wait()
    low = await door.life.submit("quick", priority=7)

    async def queued() -> bool:
        return await door.eyes.one("select status from saq_jobs where key = %s", f"run:{low}:0") == "queued"

    await eventually(queued)
    told = await figures(door)
    assert (told['lychd_lane_queued{lane="runs"}'], told['lychd_lane_overtaken{lane="runs"}']) == (1, 0)
    # It has waited for a minute, and what runs came later.
    await door.eyes.rows("update saq_jobs set scheduled = scheduled - 60 where key = %s", f"run:{low}:0")
    told = await figures(door)
    assert 60 <= told['lychd_lane_wait_seconds{lane="runs"}'] < 120
    assert (told['lychd_lane_overtaken{lane="runs"}'], told['lychd_lane_overtaken{lane="rites"}']) == (1, 0)
    shown = (await ready(door))["lane runs"]
    assert shown["ok"]
    assert shown["reason"].startswith("a job of priority 7 waits for 6")
    door.stage.finish()

    async def done() -> bool:
        return await door.status(low) == "done"

    await eventually(done)
    assert (await ready(door))["lane runs"]["reason"] is None
    assert (await figures(door))['lychd_lane_wait_seconds{lane="runs"}'] == 0


async def test_figures_go_on_while_the_broker_does_not_answer(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(graph, "FIGURES_SECONDS", 0.05)
    monkeypatch.setattr(door.vessel.lanes, "stats", stuck)
    told = await figures(door)
    assert told["lychd_bus_channels"] == 0
    assert 'lychd_lane_wait_seconds{lane="runs"}' not in told


async def test_readers_and_events_are_counted(door: Door) -> None:
    run = await door.life.submit("talk")
    async with door.stream(f"/runs/{run}/events") as reader:
        await reader.next()
        told = await figures(door)
        assert (told["lychd_bus_subscribers"], told["lychd_bus_channels"]) == (1, 1)
        door.stage.finish()
        await reader.rest()
    await eventually(lambda: door.vessel.bus.head(uuid.UUID(str(run))) is None)
    told = await figures(door)
    assert (told["lychd_bus_subscribers"], told["lychd_bus_channels"]) == (0, 0)
    assert told["lychd_bus_events_total"] >= 4
