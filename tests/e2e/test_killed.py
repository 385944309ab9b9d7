"""Vessel and database killed at once, in the middle of work: a new start comes up, and no committed row is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest

from tests.support.ordinary import NOBODY, User, nobody, whoever_runs_the_tests
from tests.support.processes import Running, server_pid, vessel
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.xdist_group("up")


@pytest.fixture(params=["whoever runs the tests", "nobody"])
def user(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[User]:
    with nobody() if request.param == "nobody" else whoever_runs_the_tests(tmp_path) as somebody:
        yield somebody


class Crowd:
    """Submits without a pause until nobody answers; remembers what was promised."""

    def __init__(self, up: Running) -> None:
        self._up = up
        self.admitted: list[tuple[str, int]] = []
        self.done: dict[str, Any] = {}
        self.trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="crowd")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        with self._up.client() as client:
            try:
                while True:
                    number = len(self.admitted)
                    answer = client.post("/api/v1/runs", json={"pattern": "three", "input": {"n": number}})
                    assert answer.status_code == 201, answer.text
                    self.admitted.append((answer.json()["id"], number))
                    early = self.admitted[number // 2][0]
                    run = client.get(f"/api/v1/runs/{early}").json()
                    if run["status"] == "done" and early not in self.done:
                        self.done[early] = (run, client.get(f"/api/v1/runs/{early}/steps").json()["items"])
            except httpx2.TransportError:
                return
            except BaseException as error:  # noqa: BLE001 - judged by the test
                self.trouble = error


def test_after_the_death_of_everything_a_new_start_has_every_committed_row(user: User) -> None:
    data = user.folder / "var"
    words = ("up", "--bind", "127.0.0.1:0", "--data", str(data))
    with vessel(user.folder, *words, python=user.python) as lost:
        lost.wait_for_url()
        with Crowd(lost) as crowd:
            eventually_sync(lambda: len(crowd.done) >= 5 or crowd.trouble, 30)
            server = server_pid(data)
            assert server is not None
            assert (Path(f"/proc/{server}").stat().st_uid == NOBODY) is (user.uid == NOBODY)
            os.kill(server, signal.SIGKILL)
            lost.kill()
        assert crowd.trouble is None
        eventually_sync(lambda: server_pid(data) is None, 20)
        left = lost.note
        assert left is not None, "nobody was there to remove it"
        with vessel(user.folder, *words, python=user.python) as again:
            again.wait_for_url()
            assert again.note is not None
            assert again.note["pid"] == again.process.pid
            assert again.note["boot"] != left["boot"]
            with again.client() as client:
                for run, number in crowd.admitted:
                    assert client.get(f"/api/v1/runs/{run}").json()["input"] == {"n": number}
                for run, (told, steps) in crowd.done.items():
                    assert client.get(f"/api/v1/runs/{run}").json() == told
                    assert client.get(f"/api/v1/runs/{run}/steps").json()["items"][: len(steps)] == steps
            assert again.wait_for(again.submit("quick", {"n": 41})["id"], "done")["output"] == {"n": 42}
            assert again.stop() == 0
            assert again.complaints == []
        assert server_pid(data) is None
