"""What the host does with the wire: limits, close codes, slow readers, hostile input. Real processes and sockets."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.support.hosting import Hosted, hosted, whole_answer
from tests.support.waiting import eventually_sync

MIB = 1024 * 1024
LIMIT = 2 * MIB
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """One process for the tests that change nothing in it; at the end it must stop in good order."""
    with hosted(tmp_path_factory.mktemp("shared")) as host:
        yield host
        assert _own_faults(host) == []
        assert host.stop() == 0


def test_a_body_announced_above_the_limit_is_answered_413_before_it_arrives(shared: Hosted) -> None:
    with shared.socket() as client:
        client.sendall(f"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: {LIMIT + 1}\r\n\r\n".encode())
        head, body = whole_answer(client).split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 413 ")
        assert b"application/problem+json" in head
        assert b"Connection: close" in head
        problem = json.loads(body)
        assert (problem["status"], problem["code"]) == (413, "body_too_large")
        assert str(LIMIT) in problem["detail"]


def test_a_chunked_body_above_the_limit_is_answered_413_and_costs_no_memory(shared: Hosted) -> None:
    with shared.socket() as client:
        shared.get("/scope")
        before = shared.memory
        client.sendall(b"POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        for _ in range(64 * MIB // 65536):
            client.sendall(chunk)
        client.sendall(b"0\r\n\r\n")
        assert whole_answer(client).startswith(b"HTTP/1.1 413 ")
        assert shared.memory - before < 16 * MIB


def test_a_client_that_sends_all_of_its_large_body_first_still_reads_the_413(shared: Hosted) -> None:
    connection = HTTPConnection(*shared.address, timeout=20)
    connection.request("POST", "/size", body=b"x" * (8 * MIB))
    assert connection.getresponse().status == 413
    connection.close()
    assert _own_faults(shared) == []


def test_a_client_that_expects_100_continue_is_answered_413_alone(shared: Hosted) -> None:
    with shared.socket() as client:
        client.sendall(
            f"POST /size HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {LIMIT * 9}\r\n\r\n".encode()
        )
        answer = whole_answer(client)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"100 Continue" not in answer


@pytest.mark.parametrize("size", [0, 1, 99_999, 100_001, LIMIT])
def test_a_body_up_to_the_limit_arrives_whole(shared: Hosted, size: int) -> None:
    connection = HTTPConnection(*shared.address, timeout=20)
    connection.request("POST", "/size", body=b"x" * size)
    assert connection.getresponse().read() == str(size).encode()
    connection.request("POST", "/size", body=iter([b"y" * size]), encode_chunked=True)
    assert connection.getresponse().read() == str(size).encode()
    connection.close()
    assert _own_faults(shared) == []


def test_no_client_chooses_the_root_path(shared: Hosted) -> None:
    seen = shared.seen({"Daphne-Root-Path": "/%2Fevil.example"})
    assert seen["root_path"] == ""
    assert "daphne-root-path" not in seen["headers"]
    with connect(f"{shared.ws_url}/echo", additional_headers={"Daphne-Root-Path": "/evil"}) as client:
        assert json.loads(client.recv())[1] == ""


def test_the_server_header_names_no_part(shared: Hosted) -> None:
    assert shared.get("/scope")[0].getheader("Server") == "lychd"
    with connect(f"{shared.ws_url}/echo") as client:
        assert client.response is not None
        assert client.response.headers["Server"] == "lychd"


@pytest.mark.parametrize("path", ["/raises", "/silent"])
def test_an_application_that_raises_or_stays_silent_is_answered_500_at_once(shared: Hosted, path: str) -> None:
    response, body = shared.get(path)
    assert (response.status, json.loads(body)["code"]) == (500, "internal")


def test_an_access_is_logged_without_its_query(shared: Hosted) -> None:
    shared.get("/scope/logged?token=secret")
    line = eventually_sync(lambda: next((each for each in shared.log if each.get("path") == "/scope/logged"), None))
    assert (line["event"], line["status"], line["level"]) == ("access", 200, "debug")
    assert "secret" not in json.dumps(shared.log)


def test_websockets_are_told_1001_restart_at_a_stop_and_the_application_hears_it(tmp_path: Path) -> None:
    with hosted(tmp_path) as host, connect(f"{host.ws_url}/echo") as client:
        client.recv()
        host.signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, "restart")
        assert host.ended() == 0
        assert "socket closed 1001" in host.words
        assert host.complaints == []


@pytest.mark.parametrize(("asked", "sent"), [(1000, 1000), (1001, 1001), (1012, 1012), (4404, 4404), (1005, 1011)])
def test_every_close_code_that_may_be_sent_arrives(shared: Hosted, asked: int, sent: int) -> None:
    with connect(f"{shared.ws_url}/close/{asked}") as client:
        with pytest.raises(ConnectionClosed) as closed:
            client.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (sent, "as asked")


def test_a_websocket_whose_application_raises_is_closed_with_1011(shared: Hosted) -> None:
    with connect(f"{shared.ws_url}/raises") as client:
        with pytest.raises(ConnectionClosed) as closed:
            client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011


def test_a_handshake_without_an_application_behind_it_is_refused(shared: Hosted) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(f"{shared.ws_url}/nowhere"):
        pass
    assert refused.value.response.status_code == 500


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("manners", ["polite", "rude"])
def test_a_reader_that_never_reads_costs_bounded_memory(tmp_path: Path, kind: str, manners: str) -> None:
    with hosted(tmp_path, drain_seconds=1.0) as host:
        before = (host.seen(), host.memory)[1]
        client = _open(host, kind, f"/{manners}")
        if manners == "polite":
            eventually_sync(lambda: host.seen()["counts"][1], within=20)
        sent = _settled(host)
        assert 0 < sent < 16 * MIB
        assert host.memory - before < 32 * MIB
        assert host.get("/scope")[0].status == 200
        client.close()
        if manners == "polite":
            eventually_sync(lambda: host.seen()["counts"][2], within=20)
        assert host.stop() == 0
        assert host.complaints == []


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_reader_that_begins_to_read_again_is_served_again(tmp_path: Path, kind: str) -> None:
    with hosted(tmp_path) as host:
        client = _open(host, kind, "/polite")
        eventually_sync(lambda: host.seen()["counts"][1], within=20)
        stalled, read = host.seen()["counts"][0], 0
        while read < stalled + 8 * MIB:
            read += len(client.recv(65536))
        assert host.seen()["counts"][0] > stalled
        client.close()


def test_a_stop_does_not_wait_for_a_websocket_that_never_reads(tmp_path: Path) -> None:
    with hosted(tmp_path, drain_seconds=60.0) as host:
        client = _open(host, "websocket", "/polite")
        eventually_sync(lambda: host.seen()["counts"][1], within=20)
        assert host.stop() == 0
        client.close()


def test_messages_that_the_application_does_not_hear_are_not_kept(tmp_path: Path) -> None:
    with hosted(tmp_path) as host:
        before = (host.seen(), host.memory)[1]
        client = _open(host, "websocket", "/deaf")
        client.settimeout(1.0)
        frame = b"\x82\xfe\xf0\x00" + b"\0\0\0\0" + b"x" * 0xF000
        with pytest.raises(TimeoutError):
            for _ in range(2000):
                client.sendall(frame)
        assert host.memory - before < 32 * MIB
        host.get("/hear")
        eventually_sync(lambda: host.seen()["counts"][3] > 32, within=20)
        client.close()


def test_the_server_pings_a_websocket_that_is_silent(tmp_path: Path) -> None:
    with hosted(tmp_path, ping_interval=0.1) as host:
        host.wait_for("listening")
        client = _open(host, "websocket", "/echo")
        client.settimeout(20.0)
        seen = b""
        while b"\x89" not in seen:  # a ping frame; all else that comes is ASCII in a text frame
            more = client.recv(4096)
            assert more
            seen += more
        client.close()
        assert host.complaints == []


def test_a_reader_of_a_stream_that_takes_nothing_for_long_is_given_up(tmp_path: Path) -> None:
    with hosted(tmp_path, stalled_after=1.0) as host:
        host.wait_for("listening")
        client = _open(host, "http", "/polite")
        eventually_sync(lambda: host.seen()["counts"][2], within=20)
        client.close()


def test_a_handshake_that_waits_at_a_stop_is_told_to_come_back(tmp_path: Path) -> None:
    with hosted(tmp_path) as host, host.socket() as client:
        client.sendall(f"GET /pending HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n".encode())
        host.wait_for("pending")
        assert host.stop() == 0
        assert whole_answer(client).startswith(b"HTTP/1.1 503 ")
        assert host.complaints == []


HOSTILE = [
    b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /?\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"y" * 20000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nBad\x0bName: y\r\n\r\n",
    b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    (
        b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: \xff\r\n\r\n"
    ),
]


@pytest.mark.parametrize("request_", HOSTILE, ids=range(len(HOSTILE)))
def test_malformed_requests_are_refused_without_a_traceback(shared: Hosted, request_: bytes) -> None:
    with shared.socket() as client:
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        answer = whole_answer(client)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert shared.get("/scope")[0].status == 200
    assert _own_faults(shared) == []


def test_a_head_request_has_no_body(tmp_path: Path) -> None:
    with hosted(tmp_path) as host, host.socket() as client:
        client.sendall(b"HEAD /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        host.wait_for("slow began")
        assert host.stop() == 0
        assert whole_answer(client).endswith(b"\r\n\r\n")


def _own_faults(host: Hosted) -> list[dict[str, Any]]:
    """What the host complained about; not what the application raised on purpose."""
    return [line for line in host.complaints if line["event"] != "http.application_raised"]


def _open(host: Hosted, kind: str, path: str) -> socket.socket:
    """A connection with a small receive buffer, whose answer has begun; nothing but its head was read."""
    client = host.socket(receive_buffer=4096)
    upgrade = UPGRADE if kind == "websocket" else ""
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    assert head.startswith(b"HTTP/1.1 101" if upgrade else b"HTTP/1.1 200")
    return client


def _settled(host: Hosted) -> int:
    """How much the application has sent, once it no longer grows."""
    seen = [-1]

    def same() -> bool:
        seen.append(host.seen()["counts"][0])
        return seen[-1] > 0 and len(seen) > 10 and len(set(seen[-10:])) == 1

    eventually_sync(same, within=20, every=0.05)
    return seen[-1]
