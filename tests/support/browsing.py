"""A Vessel as a process of its own, and a headless Chromium that looks at it. Tests say so where there is none."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.auth.hashers import make_password

from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    """The path of an installed Chromium; skips the test where there is none."""
    wanted = os.environ.get("CHROMIUM")
    found = wanted or next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip(f"browser test skipped: none of {', '.join(NAMES)} is installed, and CHROMIUM names none")
    pytest.importorskip("playwright", reason="browser test skipped: playwright is not installed")
    return found


@contextmanager
def a_browser() -> Iterator[Any]:
    """A headless Chromium. While it is open this thread has a running loop, so Django's ORM is out of reach."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Served:
    """A running Vessel: where it listens, and SQL on its database."""

    url: str
    database_url: str
    process: subprocess.Popen[bytes]

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(sql, params)  # pyright: ignore[reportArgumentType] - written in the tests
            return cursor.fetchall() if cursor.description else []

    def one(self, sql: str, *params: Any) -> Any:
        """The only value of the first row."""
        found = self.rows(sql, *params)
        return found[0][0] if found else None

    def a_person(self, name: str, *permissions: str) -> str:
        """Somebody of the staff, in the tenant `default`; their password."""
        user, password = uuid.uuid4(), secrets.token_hex(8)
        self.rows(
            "insert into sigils_user (id, username, password, is_superuser, is_staff, is_active, first_name,"
            " last_name, email, date_joined) values (%s, %s, %s, false, true, true, '', '', '', now())",
            user,
            name,
            make_password(password),
        )
        self.rows("insert into sigils_membership (user_id, tenant, created_at) values (%s, 'default', now())", user)
        for permission in permissions:
            app, _, codename = permission.partition(".")
            self.rows(
                "insert into sigils_user_user_permissions (user_id, permission_id) select %s, p.id"
                " from auth_permission p join django_content_type t on t.id = p.content_type_id"
                " where t.app_label = %s and p.codename = %s",
                user,
                app,
                codename,
            )
        return password

    def status(self, run_id: str) -> str | None:
        return self.one("select status from runs_run where id = %s::uuid", run_id)


@contextmanager
def a_served_vessel(database_url: str, data: Path, *apps: str) -> Iterator[Served]:
    """`lychd up` on a migrated database, with these apps; stopped at the end and proved to have stopped in order."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LYCHD_")} | {
        "DATABASE_URL": database_url,
        "LYCHD_DATA": str(data),
        "LYCHD_APPS": ",".join(apps),
        "LYCHD_LOG_FORMAT": "json",
        "LYCHD_URL": "",
    }
    note = data / "vessel.json"
    with (data / "log").open("ab") as log:
        command = [sys.executable, "-m", "lychd", "up", "--bind", "127.0.0.1:0"]
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        told = eventually_sync(lambda: _told(note, process), within=60)
        assert process.poll() is None, (data / "log").read_text()
        yield Served(told["url"], database_url, process)
        process.terminate()
        assert process.wait(20) == 0, (data / "log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def submitted(data: Path, served: Served, pattern: str, **value: Any) -> str:
    """Submit a Run with the operator's token over REST; its id."""
    import httpx2

    token = (data / "operator.token").read_text().strip()
    answer = httpx2.post(
        f"{served.url}/api/v1/runs",
        json={"pattern": pattern, "input": value},
        headers={"Authorization": f"Bearer {token}"},
        timeout=20,
    )
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()["id"]


def _told(note: Path, process: subprocess.Popen[bytes]) -> dict[str, Any] | bool:
    if process.poll() is not None:
        return True
    try:
        told: dict[str, Any] = json.loads(note.read_text())
    except (OSError, ValueError):
        return False
    return told if told.get("pid") == process.pid and told.get("url") else False
