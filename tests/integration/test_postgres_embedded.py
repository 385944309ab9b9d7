"""The embedded server started, found, shared, killed and refused; every test in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lychd.postgres import account, postmaster, serverlog
from lychd.postgres.budget import Limits
from lychd.postgres.cluster import Cluster
from lychd.postgres.errors import DatabaseBusy, DatabaseUnavailable, FolderUnusable, OtherVersion, PortTaken
from lychd.postgres.home import Home
from lychd.postgres.launcher import ensure
from lychd.postgres.urls import conninfo, embedded_url
from tests.support.waiting import eventually_sync

REPOSITORY = Path(__file__).resolve().parents[2]

HOLDER = """
import sys
from pathlib import Path
import psycopg
from lychd.postgres.launcher import ensure
from lychd.postgres.urls import conninfo
root = sys.argv[1]
cluster = ensure(Path(root) if root else None, throwaway=not root)
with psycopg.connect(conninfo(cluster.url)) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
    connection.execute("INSERT INTO kept SELECT generate_series(1, 500)")
print(cluster.pid, cluster.data_dir, flush=True)
sys.stdin.read()
cluster.stop()
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A data folder that the server's user may pass through; whatever still runs in it at the end is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="lychd-test-")).resolve()
    folder.chmod(0o711)
    yield folder
    for data in [found.parent for found in folder.rglob("postmaster.pid")]:
        pid = postmaster.recorded_pid(data)
        if pid is not None and postmaster.lives(pid, data):
            postmaster.signal_and_wait(pid, data, signal.SIGQUIT, seconds=10)
    shutil.rmtree(folder)


def connect(cluster: Cluster, **overrides: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(conninfo(cluster.url, **overrides), autocommit=True)


def rows(cluster: Cluster) -> int:
    with connect(cluster) as connection:
        found = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert found is not None
    return int(str(found[0]))


def keep_rows(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 500) AS n")


def kill_server(cluster: Cluster) -> None:
    os.kill(cluster.pid, signal.SIGKILL)
    eventually_sync(lambda: not postmaster.lives(cluster.pid, cluster.data_dir))


def holder(root: Path | str) -> tuple[subprocess.Popen[str], int, Path]:
    """A second process that uses the server until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    for line in process.stdout:
        pid, _, data = line.strip().partition(" ")
        if pid.isdigit():
            return process, int(pid), Path(data)
    raise AssertionError(f"the second process ended with {process.wait()}")


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=30)


def test_a_first_start_makes_a_durable_cluster_that_answers(root: Path) -> None:
    with ensure(root) as cluster:
        assert cluster.started_here
        assert cluster.url == embedded_url(root)
        with connect(cluster) as connection:
            shown = {
                name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()
                for name in (
                    "fsync",
                    "synchronous_commit",
                    "full_page_writes",
                    "data_checksums",
                    "listen_addresses",
                    "jit",
                )
            }
            assert shown == {
                "fsync": ("on",),
                "synchronous_commit": ("on",),
                "full_page_writes": ("on",),
                "data_checksums": ("on",),
                "listen_addresses": ("",),
                "jit": ("off",),
            }
            row = connection.execute(
                "SELECT datname, pg_encoding_to_char(encoding), datcollate FROM pg_database"
                " WHERE datname = current_database()"
            ).fetchone()
            assert row == ("lychd", "UTF8", "C.UTF-8")
            assert Limits.ask(connection) == Limits(most=100, reserved=3)
    assert not (cluster.data_dir / "postmaster.pid").exists()
    assert stat.S_IMODE(cluster.socket_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(cluster.data_dir.stat().st_mode) == 0o700


def test_data_outlive_a_stop_and_a_new_start(root: Path) -> None:
    with ensure(root) as cluster:
        keep_rows(cluster)
    with ensure(root) as cluster:
        assert cluster.started_here
        assert rows(cluster) == 500


def test_a_running_server_is_found_and_the_last_user_stops_it(root: Path) -> None:
    first, second = ensure(root), ensure(root)
    assert (first.started_here, second.started_here) == (True, False)
    assert first.pid == second.pid
    assert first.stop() is False
    assert rows_answer(second)
    assert second.stop() is True
    assert not postmaster.lives(second.pid, second.data_dir)


def rows_answer(cluster: Cluster) -> bool:
    with connect(cluster) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def test_a_stop_leaves_the_server_to_another_process_that_uses_it(root: Path) -> None:
    cluster = ensure(root)
    other, pid, _ = holder(root)
    assert pid == cluster.pid
    assert cluster.stop() is False
    assert postmaster.lives(pid, cluster.data_dir)
    end(other)
    assert not postmaster.lives(pid, cluster.data_dir)


def test_a_killed_user_does_not_keep_the_server_alive(root: Path) -> None:
    other, pid, _ = holder(root)
    cluster = ensure(root)
    other.kill()
    end(other)
    assert rows(cluster) == 500
    assert cluster.stop() is True
    assert not postmaster.lives(pid, cluster.data_dir)


def test_an_open_connection_of_somebody_else_keeps_the_server_alive(root: Path) -> None:
    cluster = ensure(root)
    with connect(cluster) as operator:
        assert cluster.stop() is False
        assert operator.execute("SELECT 1").fetchone() == (1,)
    with ensure(root) as again:
        assert not again.started_here


def test_stopping_twice_is_as_good_as_once(root: Path) -> None:
    cluster = ensure(root)
    assert cluster.stop() is True
    assert cluster.stop() is True


def test_no_committed_row_is_lost_when_everything_is_killed(root: Path) -> None:
    other, pid, data = holder(root)
    os.kill(other.pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    end(other)
    with ensure(root) as cluster:
        assert cluster.started_here
        assert cluster.pid != pid
        assert rows(cluster) == 500
    assert data == cluster.data_dir


def test_a_dead_server_that_nobody_reaped_is_not_taken_for_a_living_one(root: Path) -> None:
    first = ensure(root)
    keep_rows(first)
    kill_server(first)  # our child: it stays in the process table
    with ensure(root) as second:
        assert second.started_here
        assert rows(second) == 500
    assert first.stop() is True


def test_a_pid_that_belongs_to_a_stranger_by_now_does_not_hinder_a_start(root: Path) -> None:
    first = ensure(root)
    keep_rows(first)
    kill_server(first)
    owner = first.data_dir.stat()
    switch = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "60"], **switch) as stranger:
        try:
            path = first.data_dir / "postmaster.pid"
            path.write_text(f"{stranger.pid}\n" + path.read_text().partition("\n")[2])
            with ensure(root) as second:
                assert second.started_here
                assert rows(second) == 500
            assert stranger.poll() is None
        finally:
            stranger.kill()
    first.stop()


def test_a_start_waits_for_orphans_of_a_killed_server_to_end(root: Path) -> None:
    first = ensure(root)
    keep_rows(first)
    backend = connect(first)
    orphan = backend.info.backend_pid
    os.kill(orphan, signal.SIGSTOP)
    mark = serverlog.size(first.home.log)
    kill_server(first)
    found: list[Cluster] = []
    start = threading.Thread(target=lambda: found.append(ensure(root)))
    start.start()
    try:
        eventually_sync(lambda: any("shared memory" in line for line in serverlog.since(first.home.log, mark)), 10)
        assert not found
    finally:
        os.kill(orphan, signal.SIGCONT)
        start.join()
        backend.close()
    assert rows(found[0]) == 500
    first.stop()
    assert found[0].stop() is True


def test_what_a_killed_initdb_left_is_thrown_away(root: Path) -> None:
    home = Home(root)
    home.prepare()
    (home.base / "data.init").mkdir()
    (home.base / "data.init" / "PG_VERSION").write_text("18\n")
    with ensure(root) as cluster:
        assert rows_answer(cluster)
    assert not (home.base / "data.init").exists()


def test_data_of_another_version_are_refused_and_not_touched(root: Path) -> None:
    with ensure(root) as cluster:
        pass
    version = cluster.data_dir / "PG_VERSION"
    version.write_text("16\n")
    with pytest.raises(OtherVersion, match=r"PostgreSQL 16 .* version 18"):
        ensure(root)
    assert version.read_text() == "16\n"


def test_a_folder_that_holds_something_else_is_refused_and_not_touched(root: Path) -> None:
    home = Home(root)
    home.prepare()
    home.data.mkdir()
    (home.data / "diary.txt").write_text("dear diary")
    with pytest.raises(FolderUnusable, match="holds no PostgreSQL data"):
        ensure(root)
    assert (home.data / "diary.txt").read_text() == "dear diary"


def test_a_folder_that_cannot_be_made_is_one_sentence_that_names_it(root: Path) -> None:
    (root / "file").write_text("")
    with pytest.raises(FolderUnusable, match=r"file.*LYCHD_DATA") as refused:
        ensure(root / "file" / "var")
    assert "\n" not in refused.value.detail


def test_a_port_that_is_taken_is_one_sentence_that_names_it(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"Port {port} of 127.0.0.1 is taken"):
            ensure(root, port=port)
    with ensure(root, port=port) as cluster:
        assert cluster.url == embedded_url(root)
        assert rows_answer(cluster)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=lychd password=guess connect_timeout=5")
    with ensure(root) as cluster:
        assert "port" not in cluster.url


def test_a_server_that_ends_at_once_gives_its_own_reason(root: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"did not start.*no_such_setting"):
        ensure(root, options={"no_such_setting": "1"})
    with ensure(root) as cluster:
        assert rows_answer(cluster)


def test_a_start_that_somebody_else_never_finishes_is_a_sentence(root: Path) -> None:
    home = Home(root)
    home.prepare()
    with home.starting(1), pytest.raises(DatabaseBusy, match="Another process"):
        ensure(root, patience=0.1)


@pytest.mark.parametrize("name", ["long" * 30, "a,b", "it's"])
def test_a_path_that_no_socket_can_have_still_gets_a_private_one(root: Path, name: str) -> None:
    deep = root / name
    predicted = embedded_url(deep)
    with ensure(deep) as cluster:
        assert cluster.url == predicted == embedded_url(deep)
        assert len(str(cluster.socket_dir)) < 80
        assert stat.S_IMODE(cluster.socket_dir.stat().st_mode) == 0o700
        assert cluster.socket_dir.stat().st_uid == cluster.data_dir.stat().st_uid
        with ensure(deep) as found:
            assert not found.started_here
    assert not cluster.socket_dir.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_socket_folder_that_somebody_else_made_is_not_used(root: Path) -> None:
    deep = root / ("long" * 30)
    squatted = Path(embedded_url(deep).partition("host=")[2].replace("%2F", "/"))
    squatted.mkdir(mode=0o777)
    os.chown(squatted, 1, 1)
    try:
        with ensure(deep) as cluster:
            assert cluster.socket_dir != squatted
            assert cluster.url == embedded_url(deep)
        assert not cluster.socket_dir.exists()
    finally:
        squatted.rmdir()


def test_a_throw_away_cluster_leaves_nothing() -> None:
    with ensure(None, throwaway=True) as cluster:
        with connect(cluster) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("off",)
        left = connect(cluster)  # an open connection does not save it
    left.close()
    assert not cluster.home.root.exists()
    assert not postmaster.lives(cluster.pid, cluster.data_dir)


def test_a_throw_away_cluster_goes_with_its_killed_owner() -> None:
    other, pid, data = holder("")
    assert data.exists()
    other.kill()
    end(other)
    eventually_sync(lambda: not postmaster.lives(pid, data) and not data.parent.parent.exists(), 20)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_system_user_is_kept_out_twice(root: Path) -> None:
    with ensure(root) as cluster:
        psql = [
            str(_binaries() / "psql"),
            "-X",
            "-h",
            str(cluster.socket_dir),
            "-U",
            "postgres",
            "-c",
            "SELECT 1",
            "lychd",
        ]

        def as_daemon() -> str:
            done = subprocess.run(
                psql, check=False, user=1, group=1, extra_groups=(), capture_output=True, text=True, cwd="/", env={}
            )
            assert done.returncode != 0
            return done.stderr

        if not account.Account(account.Road.SWITCHED, "daemon", 1, 1).can_run(psql[0]):
            pytest.skip("the installation lies in a folder that is closed to other users")
        assert "Permission denied" in as_daemon()
        cluster.socket_dir.chmod(0o755)
        assert "Peer authentication failed" in as_daemon()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_root_hands_the_server_to_a_user_that_is_not_root(root: Path) -> None:
    before = stat.S_IMODE(root.stat().st_mode)
    with ensure(root) as cluster:
        assert Path(f"/proc/{cluster.pid}").stat().st_uid == cluster.data_dir.stat().st_uid
        assert os.getsid(cluster.pid) != os.getsid(0)
    assert stat.S_IMODE(root.stat().st_mode) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_in_a_closed_folder_root_takes_a_user_namespace_or_says_which_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = root / "closed"
    closed.mkdir(mode=0o700)
    with monkeypatch.context() as without:
        without.setattr(account.shutil, "which", lambda _: None)
        with pytest.raises(FolderUnusable, match=f"cannot enter {closed}.*LYCHD_DATA"):
            ensure(closed / "var")
    if subprocess.run(["unshare", "--user", "--map-user=1", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system allows no user namespaces")
    for _ in range(2):
        with ensure(closed / "var") as cluster:
            assert rows_answer(cluster)
            assert cluster.data_dir.stat().st_uid == 0
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_ordinary_user_needs_nothing_more(root: Path) -> None:
    """In a fork, because the interpreter itself may lie in a folder that is closed to other users."""
    if not account.Account(account.Road.SWITCHED, "nobody", 65534, 65534).can_run(str(_binaries() / "postgres")):
        pytest.skip("the installation lies in a folder that is closed to other users")
    own = root / "own"
    own.mkdir()
    os.chown(own, 65534, 65534)
    ensure(None, throwaway=True).stop()  # whatever is imported late is imported now
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "died"
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with ensure(own / "var") as cluster:
                keep_rows(cluster)
                said = f"{rows(cluster)} rows as {cluster.data_dir.stat().st_uid}"
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            said = repr(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert answer.read() == "500 rows as 65534"
    os.waitpid(child, 0)
    with ensure(own / "var") as cluster:  # and root may go on with it
        assert rows(cluster) == 500
        assert Path(f"/proc/{cluster.pid}").stat().st_uid == 65534


def _binaries() -> Path:
    from lychd.postgres import binaries

    return binaries.find().folder
