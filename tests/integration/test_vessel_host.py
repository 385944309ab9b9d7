"""How a host starts and ends, and what its exit code says. Real processes, real signals, real sockets."""

from __future__ import annotations

import signal
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Thread

import pytest

from lychd.config import BadSetting
from lychd.hosting import bind
from tests.support.hosting import hosted, whole_answer
from tests.support.waiting import eventually_sync


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order_with_code_0_and_a_clean_log(tmp_path: Path, number: signal.Signals) -> None:
    with hosted(tmp_path) as host:
        assert host.get("/scope")[0].status == 200
        host.signal(number)
        assert host.ended() == 0
        assert host.words[-2:] == ["told to stop", "stopping"]
        assert host.complaints == []


@pytest.mark.contract("TOP-7")
def test_lifespan_http_and_websocket_share_one_process_and_one_loop(tmp_path: Path) -> None:
    from websockets.sync.client import connect

    with hosted(tmp_path) as host:
        seen = host.seen()
        with connect(f"{host.ws_url}/echo") as client:
            words = str(client.recv())
        assert seen["pid"] == host.process.pid
        assert len({*seen["loops"], int(words.strip("[").split(",")[0])}) == 1


def test_each_scope_gets_its_own_copy_of_the_lifespans_state(tmp_path: Path) -> None:
    with hosted(tmp_path) as host:
        first, second = host.seen(), host.seen()
        assert first["words"] == "from the lifespan"
        assert first["mine"] == second["mine"]


def test_a_startup_that_fails_ends_with_code_3_and_one_sentence_and_never_listens(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="refuses") as host:
        assert host.ended() == 3
        assert host.event("vessel.startup_failed")["reason"] == "the database is not there"
        assert host.words == ["starting", "closed what was open"]


def test_a_startup_that_raises_or_does_not_speak_lifespan_ends_with_code_3(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="raises") as host:
        assert host.ended() == 3
        assert host.event("vessel.startup_failed")["reason"] == "KeyError: 'no such thing'"


def test_nothing_listens_while_it_starts_and_too_long_a_start_ends_with_code_3(tmp_path: Path) -> None:
    port = _free_port()
    with hosted(tmp_path, lifespan="slow", bind=f"127.0.0.1:{port}", startup_timeout=1.0) as host:
        host.wait_for("starting")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert host.ended() == 3
        assert host.words == ["starting", "closed what was open"]
        assert host.event("vessel.startup_failed")["reason"] == "startup took longer than 1 s"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_starts_closes_what_was_open_and_ends_with_code_130(
    tmp_path: Path, number: signal.Signals
) -> None:
    with hosted(tmp_path, lifespan="slow") as host:
        host.wait_for("starting")
        host.signal(number)
        assert host.ended() == 130
        assert host.words == ["starting", "closed what was open"]
        assert host.complaints == [host.event("vessel.stopping")]


def test_a_taken_port_ends_with_code_4_after_an_orderly_shutdown(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with hosted(tmp_path, bind=f"127.0.0.1:{port}") as host:
            assert host.ended() == 4
            assert host.words == ["starting", "stopping"]
            sentence = host.event("vessel.cannot_listen")["reason"]
            assert sentence == f"cannot listen on http://127.0.0.1:{port}: Address already in use"


@pytest.mark.contract("BYD-5")
def test_a_second_signal_ends_it_at_once_with_code_5(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="hangs") as host:
        host.wait_for("listening")
        host.signal(signal.SIGTERM)
        host.wait_for("hanging")
        host.signal(signal.SIGTERM)
        assert host.ended() == 5
        assert "lifespan" in host.event("vessel.second_signal")["tasks"]


def test_a_second_signal_before_anything_was_stopped_still_lets_the_caller_know(tmp_path: Path) -> None:
    """Both at once: whoever told others where to find the host takes that back before it ends."""
    with hosted(tmp_path) as host:
        host.wait_for("listening")
        with pytest.raises((ConnectionError, HTTPException)):
            host.get("/hurry")
        assert host.ended() == 5
        assert host.words[-1] == "told to stop"


def test_a_shutdown_over_its_deadline_ends_with_code_6_and_names_what_hangs(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="hangs", shutdown_timeout=0.5) as host:
        host.wait_for("listening")
        assert host.stop() == 6
        assert "lifespan" in host.event("vessel.shutdown_overdue")["tasks"]


def test_a_shutdown_that_fails_ends_with_code_6_and_its_reason(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="fails") as host:
        host.wait_for("listening")
        assert host.stop() == 6
        assert host.event("vessel.shutdown_failed")["reason"] == "a worker is still alive"


def test_a_thread_that_outlives_the_shutdown_ends_with_code_6(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="blocks", shutdown_timeout=0.5) as host:
        host.wait_for("listening")
        assert host.stop() == 6
        assert host.event("vessel.threads_left")["threads"]


def test_a_forgotten_task_is_named_and_ended(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="leaves") as host:
        host.wait_for("listening")
        assert host.stop() == 0
        assert [line["event"] for line in host.complaints] == ["vessel.tasks_left"]
        assert host.complaints[0]["tasks"] == ["forgotten"]


def test_the_application_can_end_the_process_with_its_own_code(tmp_path: Path) -> None:
    with hosted(tmp_path, code=42) as host:
        host.get("/stop")
        assert host.ended() == 42
        assert host.words[-1] == "stopping"
        assert host.event("vessel.stopping")["reason"] == "asked by a test"


def test_the_application_can_end_the_process_while_it_starts(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="loses", code=43) as host:
        assert host.ended() == 43
        assert host.event("vessel.stopping")["reason"] == "the guard was lost"


def test_a_lifespan_that_ends_by_itself_ends_the_process_with_code_1(tmp_path: Path) -> None:
    with hosted(tmp_path, lifespan="dies") as host:
        assert host.ended() == 1
        assert host.event("vessel.stopping")["reason"] == "RuntimeError: the guard fell over"


def test_a_hook_that_raises_ends_the_process_in_good_order(tmp_path: Path) -> None:
    with hosted(tmp_path, bad_hook=True) as host:
        assert host.ended() == 3
        assert host.words[-1] == "stopping"


def test_an_address_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with hosted(tmp_path, bind="nowhere") as host:
        assert host.ended() == 1
        assert any("cannot listen on 'nowhere'" in line["event"] for line in host.log)


@pytest.mark.parametrize(
    ("text", "host", "port", "path", "url"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000, None, "http://127.0.0.1:8000"),
        ("localhost:80", "localhost", 80, None, "http://localhost:80"),
        ("0.0.0.0:8000", "0.0.0.0", 8000, None, "http://127.0.0.1:8000"),
        (":8000", "", 8000, None, "http://127.0.0.1:8000"),
        ("[::1]:0", "::1", 0, None, "http://[::1]:0"),
        ("[::]:8000", "::", 8000, None, "http://[::1]:8000"),
        ("unix:/run/l.sock", "", 0, "/run/l.sock", "unix:/run/l.sock"),
    ],
)
def test_an_address_is_read_and_named_as_a_client_would_use_it(
    text: str, host: str, port: int, path: str | None, url: str
) -> None:
    where = bind.parse(text)
    assert (where.host, where.port, where.path, where.url()) == (host, port, path, url)


@pytest.mark.parametrize("text", ["", "8000", "localhost", "::1:8000", "x:65536", "x:-1", "x:eight", "unix:", "x:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadSetting):
        bind.parse(text)


def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with hosted(tmp_path, bind="[::1]:0") as host:
        assert host.url.startswith("http://[::1]:")
        assert host.get("/scope")[0].status == 200
        assert host.stop() == 0


def test_it_listens_on_a_unix_socket_that_only_its_owner_can_use(tmp_path: Path) -> None:
    path = tmp_path / "host.sock"
    with hosted(tmp_path, bind=f"unix:{path}") as host:
        assert host.url == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(path))
            client.sendall(b"GET /scope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert whole_answer(client).startswith(b"HTTP/1.1 200")
        assert path.stat().st_mode & 0o077 == 0
        assert host.stop() == 0
        assert not path.exists()


@pytest.mark.contract("BYD-5")
def test_a_stop_takes_no_new_connection_and_lets_a_running_request_finish(tmp_path: Path) -> None:
    with hosted(tmp_path) as host:
        idle = HTTPConnection(*host.address, timeout=20)
        idle.request("GET", "/scope")
        idle.getresponse().read()
        answers: list[bytes] = []
        slow = Thread(target=lambda: answers.append(host.get("/slow")[1]))
        slow.start()
        host.wait_for("slow began")
        assert host.stop() == 0
        slow.join(20)
        assert answers == [b"finished after the stop began"]
        assert host.complaints == []
        idle.close()


@pytest.mark.contract("BYD-5")
def test_what_runs_longer_than_the_drain_is_cancelled_and_told_to_come_back(tmp_path: Path) -> None:
    with hosted(tmp_path, drain_seconds=1.0) as host:
        address = host.address
        answers: list[int] = []
        endless = Thread(target=lambda: answers.append(host.get("/endless")[0].status))
        endless.start()
        host.wait_for("endless began")
        kept = HTTPConnection(*address, timeout=20)
        kept.request("GET", "/scope")
        kept.getresponse().read()
        host.signal(signal.SIGTERM)
        host.wait_for("told to stop")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        kept.request("GET", "/scope")
        refused = kept.getresponse()
        assert (refused.status, refused.getheader("Connection")) == (503, "close")
        assert host.ended() == 0
        endless.join(20)
        assert answers == [503]
        assert host.event("vessel.drain_ended")["cancelled"] == ["http /endless"]
        assert host.complaints == []
        kept.close()


def test_a_stop_costs_nothing_where_nobody_is_connected(tmp_path: Path) -> None:
    with hosted(tmp_path, drain_seconds=60.0, shutdown_timeout=60.0) as host:
        host.wait_for("listening")
        host.signal(signal.SIGTERM)
        assert host.ended(within=20) == 0
        eventually_sync(lambda: host.words[-1] == "stopping")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]
