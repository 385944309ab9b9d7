"""`lychd up` from a clean folder: what a newcomer sees, and what is left when it ends, whichever way it does."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psycopg
import pytest

from lychd.postgres.urls import embedded_url
from tests.support.processes import Running, command, server_pid, vessel
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.xdist_group("up")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder / "var"


@pytest.fixture(scope="module")
def first(folder: Path, data: Path) -> Iterator[Running]:
    """The first start in a clean folder, shared by the tests that leave it running and ask nothing of their order."""
    with vessel(folder, "up", "--bind", "127.0.0.1:0", "--data", str(data)) as up:
        up.wait_for_url()
        yield up


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_start_tells_address_account_and_token(first: Running, data: Path) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", first.url)
    assert first.said("Admin: ") == f"{first.url}/admin/ (user operator)"
    password = first.said("One-time password of operator: ")
    assert len(password) >= 20
    assert first.said("Token of the local Sigil: ") == str(data / "operator.token")
    assert password not in first.err
    assert first.token not in first.out + first.err


def test_secrets_can_be_read_by_their_owner_alone(first: Running, data: Path) -> None:
    assert [mode(data / name) for name in ("operator.token", "secret.key")] == [0o600, 0o600]
    assert len((data / "secret.key").read_text()) >= 50
    assert not [path.name for path in data.iterdir() if path.name.startswith(".")]


def test_the_one_time_password_opens_the_admin(first: Running) -> None:
    with httpx2.Client(base_url=first.url, timeout=20, trust_env=False, follow_redirects=True) as client:
        page = client.get("/admin/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert token is not None
        answer = client.post(
            "/admin/login/?next=/admin/",
            data={
                "username": "operator",
                "password": first.said("One-time password of operator: "),
                "csrfmiddlewaretoken": token[1],
            },
            headers={"Referer": f"{first.url}/admin/login/"},
        )
        assert answer.status_code == 200
        assert "Log out" in answer.text


def test_vessel_json_says_where_it_is(first: Running) -> None:
    note = first.note
    assert note is not None
    assert (note["url"], note["pid"]) == (first.url, first.process.pid)
    boot = first.logged("vessel.boot")
    assert boot is not None
    assert note["boot"] == boot["boot"]


def test_it_is_ready_and_carries_a_run(first: Running) -> None:
    with first.client() as client:
        assert client.get("/healthz").text == "ok"
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        assert 'lychd_gate_open{gate="claim"} 1.0' in client.get("/metrics").text
    run = first.submit("three", {"n": 1})
    assert first.wait_for(run["id"], "done")["output"] == {"n": 3}


@pytest.mark.contract("BYD-1")
def test_a_second_one_in_the_same_folder_is_refused_and_harms_nothing(first: Running, folder: Path, data: Path) -> None:
    note, token = first.note, first.token
    with command(folder, "up", "--bind", "127.0.0.1:0", "--data", str(data)) as second:
        assert second.ended(60) == 3
        said = next(line for line in second.err.splitlines() if line.startswith("lychd: "))
        assert re.fullmatch(
            rf"lychd: Another Vessel holds this database: host .+, pid {first.process.pid}, boot [0-9a-f-]+, "
            r"since [0-9-]+ [0-9:]+ UTC\.",
            said,
        )
        assert second.out == ""
        assert "Traceback" not in second.err
    assert (first.note, first.token) == (note, token)
    assert server_pid(data) is not None
    first.wait_for(first.submit("quick")["id"], "done")


def test_other_commands_find_its_database(first: Running, folder: Path, data: Path) -> None:
    with command(folder, "sigil", "list", "--json", LYCHD_DATA=str(data)) as listing:
        assert listing.ended(60) == 0
        assert [sigil["name"] for sigil in json.loads(listing.out)] == ["operator"]
        assert listing.err == ""
    assert server_pid(data) is not None


@pytest.mark.contract("SHUT-1", "SHUT-4")
def test_signals_end_it_with_0_nothing_is_left_and_the_next_start_knows_everything(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with vessel(tmp_path, "up", "--bind", "127.0.0.1:0", "--data", str(data)) as one:
        run = one.submit("three", {"n": 1})["id"]
        one.wait_for(run, "done")
        key, token = (data / "secret.key").read_text(), one.token
        assert one.stop(signal.SIGTERM) == 0
        assert one.note is None
        assert server_pid(data) is None
        assert one.complaints == []
        assert [line["event"] for line in one.log][-3:] == ["vessel.stopped", "vessel.ended", "postgres.stopped"]
        assert sorted(path.name for path in data.iterdir()) == ["operator.token", "postgres", "secret.key"]
    (data / "operator.token").chmod(0o644)
    with vessel(tmp_path, "up", "--bind=127.0.0.1:0", f"--data={data}", "--data", str(data)) as two:
        two.wait_for_url()
        assert two.said("One-time password") == ""
        assert ((data / "secret.key").read_text(), two.token) == (key, token)
        assert mode(data / "operator.token") == 0o600
        assert two.run(run)["output"] == {"n": 3}
        assert two.stop(signal.SIGINT) == 0
        assert two.complaints == []
        assert two.note is None
    assert server_pid(data) is None


@pytest.mark.contract("SHUT-1")
def test_a_second_signal_ends_it_at_once_and_the_next_start_finds_the_server_it_left(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with vessel(tmp_path, "up", "--bind", "127.0.0.1:0", "--data", str(data)) as hurried:
        hurried.wait_for(hurried.submit("slow", {"seconds": 600})["id"], "running")
        hurried.signal(signal.SIGTERM)
        eventually_sync(lambda: hurried.logged("vessel.stopping"), 20)
        hurried.signal(signal.SIGTERM)
        assert hurried.ended() == 5
        assert hurried.note is None
        left = server_pid(data)
        assert left is not None
        with vessel(tmp_path, "up", "--bind", "127.0.0.1:0", "--data", str(data), LYCHD_DRAIN_SECONDS="0") as up:
            up.wait_for_url()
            assert server_pid(data) == left
            assert up.stop() == 0
    assert server_pid(data) is None


def test_a_signal_while_it_starts_ends_it_with_130_and_takes_the_server_along(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with vessel(tmp_path, "up", "--bind", "127.0.0.1:0", "--data", str(data)) as up:
        eventually_sync(lambda: up.logged("postgres.started"), 60)
        up.signal(signal.SIGTERM)
        assert up.ended() == 130
        assert "Traceback" not in up.err
        assert up.out == ""
    assert server_pid(data) is None


def test_a_taken_port_ends_it_with_4_and_the_password_is_not_lost(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with vessel(tmp_path, "up", "--bind", bind, "--data", str(data)) as up:
            assert up.ended(60) == 4
            assert f"lychd: the Vessel cannot listen on {bind}; is the address taken?" in up.err.splitlines()
            assert "Traceback" not in up.err
            assert len(up.said("One-time password of operator: ")) >= 20
            assert up.said("The Vessel listens") == ""
            assert up.note is None
    assert server_pid(data) is None


@pytest.mark.contract("TOP-9")
def test_the_memory_profile_keeps_nothing(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with vessel(tmp_path, "up", "--bind", "127.0.0.1:0", "--data", str(data), "--profile", "memory") as up:
        run = up.submit("quick")["id"]
        assert up.wait_for(run, "done")["output"] == {"n": 1}
        found = up.logged("postgres.started")
        assert found is not None
        folder = Path(found["folder"])
        assert folder.exists()
        assert not (data / "postgres").exists()
        assert up.stop() == 0
        assert up.complaints == []
    assert not folder.parent.exists()


def test_sessions_to_the_database_are_few_and_named(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with vessel(tmp_path, "up", "--bind", "127.0.0.1:0", "--data", str(data)) as up:
        up.wait_for(up.submit("quick")["id"], "done")
        with psycopg.connect(embedded_url(data), autocommit=True) as connection:
            names = [
                name
                for (name,) in connection.execute(
                    "select application_name from pg_stat_activity where backend_type = 'client backend' "
                    "and pid <> pg_backend_pid()"
                )
            ]
        assert len(names) <= 40
        assert {name for name in names if not name.startswith("lychd")} == set()
        assert names.count("lychd guard") == 1
        # A connection of somebody else's keeps the server: it must not be taken away from under them.
        with psycopg.connect(embedded_url(data), autocommit=True) as other:
            assert up.stop() == 0
            assert other.execute("select 1").fetchone() == (1,)
            assert server_pid(data) is not None
