"""A running embedded server in the hands of one process that uses it.

The last user stops it. Who uses it is told by a lock that the kernel drops with a process, and by open connections.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from lychd.postgres import postmaster
from lychd.postgres.errors import DatabaseUnavailable
from lychd.postgres.home import Home
from lychd.postgres.serverlog import Keeper
from lychd.postgres.urls import conninfo

LEAVE_SECONDS = 2.0
FAST_SECONDS = 60.0
# Waits for the end of its input, which comes when the process that holds the other end is gone, however it went.
_WATCH = """
cat >/dev/null 2>&1
if [ "$(head -n 1 "$2/postmaster.pid" 2>/dev/null)" = "$1" ]; then
  kill -INT "$1" 2>/dev/null
  n=0
  while [ -e "$2/postmaster.pid" ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
  [ -e "$2/postmaster.pid" ] && kill -QUIT "$1" 2>/dev/null && sleep 1
fi
rm -rf -- "$3"
"""


class Undertaker:
    """Removes a throw-away cluster when this process dies without having done it."""

    def __init__(self, pid: int, data: Path, root: Path) -> None:
        self.root = root
        self._process = subprocess.Popen(  # noqa: S603 - fixed script, our own paths as arguments
            ["/bin/sh", "-c", _WATCH, "lychd-undertaker", str(pid), str(data), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def finish(self) -> None:
        """Remove the folder now; the server must be gone."""
        shutil.rmtree(self.root, ignore_errors=True)
        # Closing its input lets it come to its end, which finds nothing left to do.
        self._process.communicate(timeout=30)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A server that answers.

    Attributes:
        url: of its database `lychd`.
        started_here: False if it was found running.
        pid: its process at the time it was found or started.
        data_dir: PostgreSQL's own folder.
        socket_dir: the private folder of its socket.
    """

    url: str
    started_here: bool
    pid: int
    data_dir: Path
    socket_dir: Path
    home: Home = field(repr=False)
    process: subprocess.Popen[bytes] | None = field(repr=False)
    log: Any = field(repr=False)
    undertaker: Undertaker | None = field(default=None, repr=False)
    _presence: int = field(init=False, repr=False)
    _keeper: Keeper = field(init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self._presence = self.home.join()
        self._keeper = Keeper(self.home.log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> bool:
        """Stop using the server, and stop it unless somebody else uses it. Close your own connections first.

        Somebody else is: a process that holds a Cluster of the same folder, or any open connection that does not end
        within two seconds. A throw-away cluster is stopped and removed in any case. Blocks; may be called twice.

        Returns:
            Whether the server is gone.
        """
        if self._stopped:
            return self.process is None or self.process.returncode is not None
        self._stopped = True
        self._keeper.close()
        os.close(self._presence)
        try:
            with self.home.starting(10.0):
                gone = self._stop_if_unused()
        except DatabaseUnavailable as error:
            self.log.warning("postgres.left_running", reason=error.detail)
            gone = False
        if self.undertaker is not None:
            self.undertaker.finish()
        if self.process is not None and not gone:
            # It outlives us on purpose: keep the interpreter from complaining about a child that still runs.
            self.process.returncode = 0
        return gone

    def _stop_if_unused(self) -> bool:
        pid = postmaster.recorded_pid(self.data_dir)
        if pid is None or not postmaster.lives(pid, self.data_dir):
            self._reap()
            return True
        if self.undertaker is None:
            if self.home.is_used():
                self.log.info("postgres.left_running", reason="another process uses it", pid=pid)
                return False
            others = self._others()
            if others:
                self.log.info("postgres.left_running", reason="open connections", pid=pid, connections=others)
                return False
        gone = postmaster.signal_and_wait(pid, self.data_dir, signal.SIGINT, seconds=FAST_SECONDS)
        if not gone:
            self.log.warning("postgres.stopping_at_once", pid=pid, after_seconds=FAST_SECONDS)
            gone = postmaster.signal_and_wait(pid, self.data_dir, signal.SIGQUIT, seconds=10.0)
        if gone:
            self._reap()
            self.home.remove_short_folder(self.socket_dir)
            self.log.info("postgres.stopped", pid=pid)
        return gone

    def _others(self) -> list[str]:
        """The names of the connections that stay open; empty as soon as there are none."""
        deadline = time.monotonic() + LEAVE_SECONDS
        try:
            with psycopg.connect(
                conninfo(self.url, dbname="postgres", application_name="lychd stop"), autocommit=True
            ) as connection:
                while True:
                    rows = connection.execute(
                        "SELECT application_name FROM pg_stat_activity"
                        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY 1"
                    ).fetchall()
                    if not rows or time.monotonic() >= deadline:
                        return [row[0] for row in rows]
                    time.sleep(0.02)
        except psycopg.Error as error:
            self.log.warning("postgres.not_asked", reason=str(error).strip())
            return []

    def _reap(self) -> None:
        if self.process is not None:
            self.process.wait(30)
