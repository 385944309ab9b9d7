"""A newcomer's whole way: one command in a clean folder, one Run followed over every edge at once, one signal."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from tests.support.processes import Running, command, server_pid, vessel
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.xdist_group("up")

type Json = dict[str, Any]

# Stored events are all but these.
LIVE_ONLY = {"token"}
MOST_SECONDS = 60


class Reader:
    """Reads one live edge to its end, in a thread of its own."""

    def __init__(self, read: Callable[[], Iterator[Json]]) -> None:
        self.told: list[Json] = []
        self.trouble: BaseException | None = None
        self._read = read
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for message in self._read():
                self.told.append(message)
        except BaseException as error:  # noqa: BLE001 - judged by the test
            self.trouble = error

    def all(self) -> list[Json]:
        """Everything that was told, once the server has ended it."""
        self._thread.join(MOST_SECONDS)
        assert not self._thread.is_alive(), self.told[-3:]
        assert self.trouble is None
        return self.told


def over_websocket(up: Running, run: str) -> Iterator[Json]:
    address = f"{up.url.replace('http', 'ws', 1)}/ws/runs/{run}/?history=1"
    headers = {"Authorization": f"Bearer {up.token}"}
    with connect(address, additional_headers=headers, proxy=None, open_timeout=20) as socket:
        for text in socket:
            yield json.loads(text)
        assert socket.close_code == 1000


def over_sse(up: Running, run: str) -> Iterator[Json]:
    with up.client() as client, client.stream("GET", f"/api/v1/runs/{run}/events?history=1") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def events_of(messages: list[Json]) -> list[Json]:
    return [message for message in messages if message["type"] == "event"]


@pytest.mark.contract("TOP-7", "EVT-19", "BYD-12", "SHUT-1", "SHUT-4")
def test_a_clean_folder_a_run_followed_over_every_edge_at_once_and_a_clean_end(tmp_path: Path) -> None:
    stock, data, go = tmp_path / "stock", tmp_path / "var", tmp_path / "go"
    for number in range(40):
        (stock / f"shelf{number % 4}").mkdir(parents=True, exist_ok=True)
        (stock / f"shelf{number % 4}" / f"{number}.txt").write_text(f"thing {number // 2:03}\n" * 100)
    settings = {"LYCHD_APPS": "tests.support.talk", "LYCHD_RUNS_CONCURRENCY": "1", "LYCHD_DATA": str(data)}
    words = ("up", "--bind", "127.0.0.1:0", "--data", str(data))
    with vessel(tmp_path / "log", *words, cwd=tmp_path, **settings) as up:
        # Keeps the lane, so that whoever follows is there before the first event.
        first = up.submit("talk", {"wait_for": str(go)})["id"]
        up.wait_for(first, "running")
        asked = ("submit", "inventory", "--input", '{"root": "stock"}', "--follow", "--json")
        with command(tmp_path / "cli", *asked, cwd=tmp_path, **settings) as cli:
            eventually_sync(lambda: "\n" in cli.out, 30)
            admitted = json.loads(cli.out.splitlines()[0])["run"]
            assert (admitted["status"], admitted["source"]) == ("queued", "cli")
            assert admitted["pattern"]["key"] == "inventory"
            run = admitted["id"]
            readers = [Reader(lambda: over_websocket(up, run)), Reader(lambda: over_sse(up, run))]
            eventually_sync(lambda: all(reader.told or reader.trouble for reader in readers), 30)
            go.touch()
            websocket, sse = (reader.all() for reader in readers)
            assert cli.ended(MOST_SECONDS) == 0
            assert cli.err == ""
            followed = [json.loads(line) for line in cli.out.splitlines()]

        assert events_of(websocket) == events_of(sse)
        events = events_of(websocket)
        assert [event["seq"] for event in events] == list(range(len(events)))
        assert {event["node"] for event in events} >= {"scan", "compare", "report"}
        assert {event["kind"] for event in events} >= {"status", "node", "log", "progress", "done"}
        assert events[-1]["kind"] == "done"
        assert websocket[-1] == sse[-1] == {"type": "end", "status": "done"}
        assert [one["seq"] for one in events_of(followed)] == [event["seq"] for event in events]
        assert not [one for one in followed if one["type"] in {"gap", "lost"}]

        done = up.run(run)
        assert (done["status"], done["source"]) == ("done", "cli")
        assert (done["output"]["files"], done["output"]["duplicates"]["groups"]) == (40, 20)
        assert followed[-1]["run"]["output"] == done["output"]
        with up.client() as client:
            page: httpx2.Response = client.get(f"/api/v1/runs/{run}/steps", params={"limit": 500})
        stored = [event["seq"] for event in events if event["kind"] not in LIVE_ONLY]
        assert [step["seq"] for step in page.json()["items"]] == stored

        assert up.stop(signal.SIGTERM) == 0
        assert up.note is None
        assert up.complaints == []
        assert "Traceback" not in up.err
        assert server_pid(data) is None
