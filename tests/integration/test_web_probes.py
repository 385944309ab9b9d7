"""Health, readiness, metrics, static files and the start page, through the whole HTTP application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from django.contrib.staticfiles import finders
from prometheus_client import CollectorRegistry, Gauge

from lychd.web import health
from lychd.web.handlers import http_application
from tests.support.lookup import with_state


@pytest.fixture(autouse=True)
def static_files_are_served_before_django(settings: Any) -> None:
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "whitenoise" not in name]


@dataclass(frozen=True, slots=True)
class Told:
    name: str
    ok: bool
    reason: str | None = None
    age: float | None = None


@dataclass
class Observed:
    checks: list[Told] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def readiness(self) -> list[Told]:
        return self.checks

    def metrics(self) -> CollectorRegistry:
        return self.registry


class Stuck(Observed):
    async def readiness(self) -> list[Told]:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.Event().wait()
        return []


@asynccontextmanager
async def the_site(vessel: Any) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=with_state(http_application(), vessel))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def get(path: str, vessel: Any = None, **headers: str) -> httpx2.Response:
    async with the_site(vessel) as client:
        return await client.get(path, headers=headers)


async def test_healthz_answers_even_without_a_vessel() -> None:
    response = await get("/healthz")
    assert (response.status_code, response.text) == (200, "ok")


async def test_readyz_is_200_only_when_every_condition_is_met() -> None:
    fine = await get("/readyz", Observed([Told("database", ok=True, age=0.5), Told("workers", ok=True)]))
    assert (fine.status_code, fine.json()["ready"]) == (200, True)
    assert fine.json()["checks"][0] == {"name": "database", "ok": True, "reason": None, "age": 0.5}
    bad = await get("/readyz", Observed([Told("database", ok=True), Told("relays", ok=False, reason="down for 9 s")]))
    assert (bad.status_code, bad.json()["ready"]) == (503, False)
    assert bad.json()["checks"][1]["reason"] == "down for 9 s"


async def test_readyz_without_a_vessel_or_without_an_answer_is_503_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "READINESS_SECONDS", 0.05)
    for vessel, name in ((None, "vessel"), (Stuck(), "readiness")):
        response = await get("/readyz", vessel)
        assert response.status_code == 503
        assert response.json()["checks"][0]["name"] == name
        assert response.json()["checks"][0]["reason"]


async def test_metrics_speak_prometheus_and_openmetrics() -> None:
    vessel = Observed()
    Gauge("lychd_test_value", "A value", registry=vessel.registry).set(3)
    plain = await get("/metrics", vessel)
    assert "lychd_test_value 3.0" in plain.text
    assert plain.headers["content-type"].startswith("text/plain")
    modern = await get("/metrics", vessel, Accept="application/openmetrics-text; version=1.0.0")
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")
    assert (await get("/metrics")).status_code == 503


@pytest.mark.parametrize(
    "path", ["lychd/lychd.css", "lychd/favicon.svg", "admin/css/base.css", "ninja/swagger-ui-bundle.js"]
)
async def test_static_files_are_sent_whole_without_a_warning(path: str) -> None:
    found = finders.find(path)
    assert isinstance(found, str)
    async with the_site(None) as client:
        response = await client.get(f"/static/{path}")
        assert response.status_code == 200
        with open(found, "rb") as file:  # noqa: ASYNC230 a small file in a test
            assert response.content == file.read()
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers
        again = await client.get(f"/static/{path}", headers={"If-None-Match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        part = await client.get(f"/static/{path}", headers={"Range": "bytes=0-9"})
        assert (part.status_code, part.content) == (206, response.content[:10])
        assert (await client.post(f"/static/{path}")).status_code == 405


@pytest.mark.parametrize("path", ["nothing.css", "../settings.py", "%2e%2e/settings.py", "/etc/passwd", ""])
async def test_what_is_no_static_file_is_404(path: str) -> None:
    assert (await get(f"/static/{path}")).status_code == 404


async def test_a_changed_file_is_found_at_once_while_debugging(settings: Any) -> None:
    settings.WHITENOISE_AUTOREFRESH = True
    assert (await get("/static/lychd/lychd.css")).status_code == 200


@pytest.mark.django_db(transaction=True)
async def test_the_start_page_names_every_place_and_needs_no_script() -> None:
    async with the_site(Observed()) as client:
        response = await client.get("/")
        assert response.status_code == 200
        assert "<script" not in response.text
        assert "unsafe" not in response.headers["content-security-policy"]
        for place in (
            "/admin/",
            "/api/v1/docs",
            "/healthz",
            "/readyz",
            "/metrics",
            "/static/lychd/dashboard/dashboard.css",
            "/login/",
        ):
            assert f'"{place}"' in response.text
            assert (await client.get(place, follow_redirects=True)).status_code == 200
