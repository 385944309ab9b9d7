from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from lychd.testing.kit import VesselKit
from wordcount.patterns import words


@pytest.fixture
def answers() -> list[int]:
    return []


@pytest.fixture
def site(answers: list[int]) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop(0) if answers else 200)
            self.end_headers()
            self.wfile.write(b"a rose is a rose is a rose")

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


async def test_counts_the_words_of_a_page(vessel: VesselKit, site: str) -> None:
    run = await vessel.run(words, {"url": site})
    assert run.nodes == ["fetch", "count"]
    assert run.output == {"total": 8, "most": {"a": 3, "rose": 3, "is": 2}}
    assert run.logs == ["read"]


async def test_a_page_that_is_away_for_a_moment_is_asked_again(
    vessel: VesselKit, site: str, answers: list[int]
) -> None:
    answers.extend([503, 503])
    run = await vessel.run(words, {"url": site})
    assert [(step.node, step.name, step.attempts) for step in run.done_steps] == [("fetch", "read", 3)]


async def test_a_page_that_stays_away_fails_the_run(vessel: VesselKit, site: str, answers: list[int]) -> None:
    answers.extend([503] * 4)
    run = await vessel.run(words, {"url": site}, ends="failed")
    assert run.error is not None
    assert (run.error.node, run.error.code) == ("fetch", "node_failed")
    assert run.done_steps == []
