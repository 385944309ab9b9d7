"""Looking over REST: Runs in pages, one Run with its ETag, Steps with their gaps, Patterns."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from runs import reads as rows
from runs.api import schemas
from tests.support.vessel import Door, running_vessel
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    async with running_vessel(vessel_url, monkeypatch) as opened:
        yield opened


def problem(response: httpx2.Response, status: int, code: str) -> Any:
    told = response.json()
    assert (response.status_code, told["code"]) == (status, code), told
    return told


async def ended(door: Door, run: uuid.UUID) -> None:
    """The Run has ended and its evidence is stored: only then does its channel go."""

    async def done() -> bool:
        return await door.status(run) in {"done", "failed"} and door.vessel.bus.head(run) is None

    await eventually(done)


async def test_pages_go_from_the_newest_to_the_oldest_and_miss_nothing(door: Door) -> None:
    made = [str(await door.life.submit("quick", {"n": n})) for n in range(7)]
    async with door.client() as client:
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = (await client.get("/runs", params={"limit": 3, **({"cursor": cursor} if cursor else {})})).json()
            schemas.RunPage.model_validate(page)
            seen += [run["id"] for run in page["items"]]
            # What comes meanwhile is newer than every page to come.
            await door.life.submit("quick", {"n": 100})
            cursor = page["next"]
            if cursor is None:
                break
    assert seen == made[::-1]


async def test_a_page_of_large_runs_is_shorter_and_still_misses_nothing(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runs.api import runs as module

    monkeypatch.setattr(module, "PAGE_SIZE", 3000)
    monkeypatch.setattr(module, "CHUNK", 2)
    made = [str(await door.life.submit("quick", {"text": "x" * 1000})) for _ in range(7)]
    async with door.client() as client:
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = (await client.get("/runs", params={"limit": 6, **({"cursor": cursor} if cursor else {})})).json()
            assert 0 < len(page["items"]) < 6
            seen += [run["id"] for run in page["items"]]
            if (cursor := page["next"]) is None:
                break
    assert seen == made[::-1]


async def test_filters_are_those_of_the_interface(door: Door) -> None:
    session = uuid.uuid4()
    talk = await door.life.submit("talk", session=session)
    quick = await door.life.submit("quick")
    await ended(door, quick)

    async def running() -> bool:
        return await door.status(talk) == "running"

    await eventually(running)
    async with door.client() as client:
        for params, found in [
            ({"status": "running"}, [talk]),
            ({"status": "done"}, [quick]),
            ({"pattern": "talk"}, [talk]),
            ({"session": str(session)}, [talk]),
            ({"source": "api"}, [quick, talk]),
            ({"source": "cli"}, []),
            ({"status": "done", "pattern": "talk"}, []),
        ]:
            page = (await client.get("/runs", params=params)).json()
            assert [run["id"] for run in page["items"]] == [str(one) for one in found], params


BAD: list[tuple[str, int, str]] = [
    ("/runs?status=gone", 422, "invalid"),
    ("/runs?limit=0", 422, "invalid"),
    ("/runs?limit=201", 422, "invalid"),
    ("/runs?limit=many", 422, "invalid"),
    ("/runs?session=s-1", 422, "invalid"),
    ("/runs?pattern=a%00b", 422, "invalid"),
    ("/runs?source=a%00b", 422, "invalid"),
    ("/runs?cursor=nonsense", 400, "bad_cursor"),
    ("/runs?cursor=%00", 400, "bad_cursor"),
    ("/runs/not-an-id", 422, "invalid"),
    (f"/runs/{uuid.uuid4()}", 404, "not_found"),
    ("/runs/not-an-id/steps", 422, "invalid"),
    (f"/runs/{uuid.uuid4()}/steps", 404, "not_found"),
    (f"/runs/{uuid.uuid4()}/steps?after_seq=-2", 422, "invalid"),
    (f"/runs/{uuid.uuid4()}/steps?after_seq=99999999999999999999", 422, "invalid"),
    (f"/runs/{uuid.uuid4()}/steps?limit=0", 422, "invalid"),
    (f"/runs/{uuid.uuid4()}/steps?limit=501", 422, "invalid"),
    (f"/runs/{uuid.uuid4()}/events", 404, "not_found"),
    ("/runs/not-an-id/events", 422, "invalid"),
    ("/patterns/nothing", 404, "pattern_not_found"),
    ("/patterns/a%00b", 404, "pattern_not_found"),
    (f"/sessions/{uuid.uuid4()}", 404, "not_found"),
    ("/sessions/nothing", 422, "invalid"),
]


@pytest.mark.contract("EVT-19", "EVT-21")
async def test_what_cannot_be_looked_at_is_a_problem_without_a_traceback(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    async with door.client() as client:
        for path, status, code in BAD:
            response = await client.get(path)
            assert (path, response.status_code, response.json()["code"]) == (path, status, code)
    assert not [record for record in caplog.records if record.exc_info]


async def test_what_belongs_to_another_tenant_does_not_exist(door: Door) -> None:
    run = await door.life.submit("quick")
    foreign = await door.sigil("other", tenant="lab")
    async with door.client(foreign) as client:
        for path in (f"/runs/{run}", f"/runs/{run}/steps", f"/runs/{run}/events"):
            problem(await client.get(path), 404, "not_found")
        assert (await client.get("/runs")).json() == {"items": [], "next": None}


async def test_every_look_needs_the_scope_to_read(door: Door) -> None:
    writer = await door.sigil("writer", scopes=("runs:submit",))
    run = await door.life.submit("quick")
    async with door.client(writer) as client:
        for path in (
            "/runs",
            f"/runs/{run}",
            f"/runs/{run}/steps",
            f"/runs/{run}/events",
            "/patterns",
            "/patterns/quick",
            f"/sessions/{uuid.uuid4()}",
        ):
            told = problem(await client.get(path), 403, "forbidden")
            assert told["scope"] == "runs:read"


async def test_an_etag_holds_until_the_run_changes(door: Door) -> None:
    run = await door.life.submit("talk")

    async def running() -> bool:
        return await door.status(run) == "running"

    await eventually(running)
    async with door.client() as client:
        first = await client.get(f"/runs/{run}")
        schemas.Run.model_validate(first.json())
        etag = first.headers["etag"]
        assert etag.startswith('W/"0-')
        same = await client.get(f"/runs/{run}", headers={"If-None-Match": f'"other", {etag}'})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
        door.stage.finish()
        await ended(door, run)
        changed = await client.get(f"/runs/{run}", headers={"If-None-Match": etag})
        assert changed.status_code == 200
        assert changed.headers["etag"] != etag
        assert changed.json()["status"] == "done"


async def test_a_failed_run_says_why_and_where(door: Door) -> None:
    run = await door.life.submit("talk")
    door.stage.fail()
    await ended(door, run)
    async with door.client() as client:
        told = (await client.get(f"/runs/{run}")).json()
    schemas.Run.model_validate(told)
    assert (told["status"], told["error"]["node"], told["output"]) == ("failed", "speak", None)


@pytest.mark.contract("EVT-7", "EVT-21")
async def test_steps_come_in_pages_and_never_repeat_what_was_submitted(door: Door) -> None:
    """S233."""
    run = await door.life.submit("talk", {"text": "the secret prompt"})
    door.stage.log(*(f"line {n}" for n in range(10)))
    door.stage.finish()
    await ended(door, run)
    async with door.client() as client:
        whole = (await client.get(f"/runs/{run}/steps", params={"limit": 500})).json()
        schemas.StepPage.model_validate(whole)
        assert whole["next_after"] is None
        assert whole["gaps"] == []
        assert [step["seq"] for step in whole["items"]] == list(range(len(whole["items"])))
        assert whole["items"][-1]["kind"] == "done"
        seen: list[Any] = []
        after: int | None = -1
        while after is not None:
            page = (await client.get(f"/runs/{run}/steps", params={"limit": 4, "after_seq": after})).json()
            assert len(page["items"]) <= 4
            seen += page["items"]
            after = page["next_after"]
        assert seen == whole["items"]
        last = (await client.get(f"/runs/{run}/steps", params={"after_seq": seen[-1]["seq"]})).json()
        assert last == {"items": [], "gaps": [], "next_after": None}
        assert "secret prompt" not in str(whole)


@pytest.mark.contract("BYD-12", "EVT-21")
async def test_tokens_are_no_gap_and_what_is_lost_is_named_on_every_page(door: Door) -> None:
    run = await door.life.submit("talk")
    door.stage.log("a")
    door.stage.tokens(3)
    door.stage.log("b", "c", "d", "e")
    door.stage.tokens(2)
    door.stage.log("f")
    door.stage.finish()
    await ended(door, run)
    lost = {
        row[0]
        for row in await door.eyes.rows(
            "delete from runs_step where run_id = %s and data->>'message' in ('c', 'd', 'a') returning seq", run
        )
    }
    assert len(lost) == 3
    async with door.client() as client:
        for limit in (500, 3, 2, 1):
            named: list[list[int]] = []
            after: int | None = -1
            while after is not None:
                page = (await client.get(f"/runs/{run}/steps", params={"limit": limit, "after_seq": after})).json()
                named += page["gaps"]
                after = page["next_after"]
            assert sum(last - first + 1 for first, last in named) == 3, (limit, named)
        # Somebody who begins within a gap is told of its rest only.
        first, last = named[-1]
        page = (await client.get(f"/runs/{run}/steps", params={"after_seq": first})).json()
        assert page["gaps"] == [[first + 1, last]]


def stored(seq: int, tokens: int = 0, epoch: str = "a") -> rows.StoredStep:
    from datetime import UTC, datetime

    return rows.StoredStep(uuid.uuid4(), seq, epoch, "log", None, {}, {}, datetime.now(UTC), tokens)


@pytest.mark.contract("BYD-12")
def test_gaps_are_what_tokens_do_not_explain_over_pages_and_generations() -> None:
    assert rows.gaps(-1, [stored(0), stored(1), stored(5, 3)], None) == []
    assert rows.gaps(-1, [stored(2)], None) == [[0, 1]]
    assert rows.gaps(-1, [stored(2, 2)], None) == []
    assert rows.gaps(4, [stored(9, 1)], 4) == [[5, 7]]
    # The page before ended at 3; a client asks from the middle of what is missing.
    assert rows.gaps(5, [stored(9)], 3) == [[6, 8]]
    assert rows.gaps(5, [stored(9, 5)], 3) == []
    # A later generation begins at the number after the last stored one.
    assert rows.gaps(3, [stored(4, 0, "b"), stored(7, 2, "b")], 3) == []
    assert rows.gaps(3, [stored(6, 1, "b")], 3) == [[4, 4]]


@pytest.mark.contract("EVT-21")
async def test_a_page_of_steps_is_bounded_in_size_and_makes_progress(door: Door) -> None:
    run = await door.life.submit("talk")
    door.stage.log(*(f"{n} " + "x" * 1000 for n in range(6)))
    door.stage.finish()
    await ended(door, run)
    whole = await rows.steps(door.vessel.reads, run, after=-1, limit=500)
    assert not whole.more
    seen: list[int] = []
    more, pages = True, 0
    while more:
        page = await rows.steps(door.vessel.reads, run, after=seen[-1] if seen else -1, limit=500, size=2500)
        assert page.items
        seen += [step.seq for step in page.items]
        more, pages = page.more, pages + 1
    assert seen == [step.seq for step in whole.items]
    assert pages >= 3


async def test_patterns_show_their_graph_and_schemas(door: Door) -> None:
    async with door.client() as client:
        page = (await client.get("/patterns")).json()
        schemas.PatternPage.model_validate(page)
        assert [one["key"] for one in page["items"]] == ["quick", "talk"]
        one = (await client.get("/patterns/quick")).json()
    assert one == page["items"][0]
    assert (one["title"], one["description"], one["start"]) == ("Quick", "Ends at once.", "answer")
    assert one["digest"] == door.vessel.registry.select("quick").digest
    assert set(one["input"]["properties"]) == {"n", "text"}
    assert [node["name"] for node in one["nodes"]] == ["answer"]
    assert one["edges"] == [{"from": "answer", "to": None, "via": "finish"}]


async def test_openapi_shows_what_the_interface_promises(door: Door) -> None:
    async with door.client() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert set(paths["/api/v1/runs"]["post"]["responses"]) >= {"200", "201", "404", "409", "422", "429", "503"}
    assert "text/event-stream" in paths["/api/v1/runs/{run_id}/events"]["get"]["responses"]["200"]["content"]
    for path in (
        "/runs",
        "/runs/{run_id}",
        "/runs/{run_id}/steps",
        "/patterns",
        "/patterns/{key}",
        "/sessions/{session_id}",
    ):
        assert f"/api/v1{path}" in paths
