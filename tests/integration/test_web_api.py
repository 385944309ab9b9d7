"""The API's door as clients meet it: authentication, bad input, problem details. A tiny router stands behind it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from django.http import Http404, HttpRequest
from django.test import Client
from django.urls import path
from ninja import Router, Schema, Status
from pydantic import Field

from lychd.sigils import tokens
from lychd.sigils.models import Membership, Sigil, User
from lychd.web import urls as site_urls
from lychd.web.api import build_api
from lychd.web.handlers import http_application
from runs.authority import Caller, Scope
from runs.errors import Conflict, Corrupt, NotAdmitting, TooMany
from tests.support.logged import tracebacks
from tests.support.lookup import Doorkeeper, a_lookup, with_state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

router = Router()


@pytest.fixture(autouse=True)
def static_files_are_served_before_django(settings: Any) -> None:
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "whitenoise" not in name]


class Inner(Schema):
    size: int = Field(ge=0)


class Body(Schema):
    name: str
    inner: list[Inner] = []
    anything: Any = None


@router.get("/whoami")
async def whoami(request: Any) -> dict[str, Any]:
    caller: Caller = request.auth
    caller.require(Scope.RUNS_READ)
    return {"name": caller.name, "tenant": caller.tenant, "surface": caller.surface, "scopes": sorted(caller.scopes)}


@router.post("/echo", response={201: Any})
async def echo(request: HttpRequest, body: Body) -> Status[Any]:
    return Status(201, body.model_dump())


@router.get("/list")
async def listing(request: HttpRequest, limit: int = 50) -> dict[str, int]:
    return {"limit": limit}


@router.get("/broken/{how}", auth=None)
async def broken(request: HttpRequest, how: str) -> Any:
    match how:
        case "bug":
            raise RuntimeError("the password is hunter2")
        case "nan":
            return {"value": float("nan")}
        case "surrogate":
            return {"value": "\ud800 ü"}
        case "conflict":
            raise Conflict("The session has a live Run.", run="r-1", status=200)
        case "busy":
            raise TooMany(retry_after=7)
        case "closed":
            raise NotAdmitting
        case "corrupt":
            raise Corrupt("A terminal Step is missing.", secret="internal")
        case _:
            raise Http404(how)


@router.get("/orm", auth=None)
def orm(request: HttpRequest) -> dict[str, int]:
    return {"sigils": Sigil.objects.count()}


api = build_api(("/test", router), namespace="api-under-test")
urlpatterns = [path("api/v1/", api.urls), *[one for one in site_urls.urlpatterns if "api" not in str(one.pattern)]]


@asynccontextmanager
async def the_site(vessel: bool = True, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with a_lookup() as lookup:
        app = with_state(http_application(), Doorkeeper(lookup) if vessel else None)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", **options) as client:
            yield client


def problem(response: httpx2.Response, status: int, code: str) -> Any:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    told = response.json()
    assert (told["status"], told["code"]) == (status, code)
    assert told["type"] == f"urn:lychd:problem:{code}"
    assert told["title"]
    assert told["detail"]
    assert told["request"] == response.headers["x-request-id"]
    return told


@pytest.fixture
def root() -> User:
    user = User.objects.create_superuser("root", password="x")
    Membership.objects.create(user=user, tenant="default")
    return user


@pytest.fixture
def token(root: User) -> str:
    return tokens.create("bot", root, ["runs:read"])[1]


@pytest.fixture
def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def cookies(root: User) -> dict[str, str]:
    client = Client()
    client.force_login(root)
    return {"sessionid": client.cookies["sessionid"].value, "csrftoken": "a" * 32}


async def test_a_sigil_comes_in_with_its_token(bearer: dict[str, str]) -> None:
    async with the_site() as client:
        response = await client.get("/api/v1/test/whoami", headers=bearer)
    assert response.json() == {"name": "bot", "tenant": "default", "surface": "rest", "scopes": ["runs:read"]}
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["content-length"] == str(len(response.content))


@pytest.mark.parametrize(
    "header",
    [None, "Bearer", "Bearer ", "Bearer nonsense", "Basic dXNlcjpwYXNz", "bearer lychd_" + "a" * 43, "Bearer \u00e4"],
)
async def test_without_a_good_token_it_is_401_and_says_how(header: str | None) -> None:
    async with the_site() as client:
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        response = await client.get("/api/v1/test/whoami", headers=headers)
    problem(response, 401, "unauthenticated")
    assert response.headers["www-authenticate"].startswith('Bearer realm="LychD"')


@pytest.fixture
def revoked(token: str) -> dict[str, str]:
    tokens.revoke(Sigil.objects.get())
    return {"Authorization": f"Bearer {token}"}


async def test_a_revoked_token_is_401_even_beside_a_good_session(
    revoked: dict[str, str], cookies: dict[str, str]
) -> None:
    async with the_site(cookies=cookies) as client:
        told = await client.get("/api/v1/test/whoami", headers=revoked)
    problem(told, 401, "unauthenticated")
    assert 'error="invalid_token"' in told.headers["www-authenticate"]


@pytest.fixture
def without_rights(root: User) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.create('weak', root, ['runs:submit'])[1]}"}


async def test_a_missing_scope_is_403_and_named(without_rights: dict[str, str]) -> None:
    async with the_site() as client:
        told = problem(await client.get("/api/v1/test/whoami", headers=without_rights), 403, "forbidden")
    assert told["scope"] == "runs:read"


async def test_a_foreign_tenant_is_403(bearer: dict[str, str], cookies: dict[str, str]) -> None:
    foreign = {"Lychd-Tenant": "elsewhere"}
    async with the_site() as client:
        problem(await client.get("/api/v1/test/whoami", headers={**bearer, **foreign}), 403, "forbidden")
    async with the_site(cookies=cookies) as client:
        problem(await client.get("/api/v1/test/whoami", headers=foreign), 403, "forbidden")


async def test_a_session_may_look_without_a_csrf_token(cookies: dict[str, str]) -> None:
    async with the_site(cookies=cookies) as client:
        response = await client.get("/api/v1/test/whoami")
    assert response.json()["name"] == "root"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"X-CSRFToken": "b" * 32}, 403),
        ({"X-CSRFToken": "a" * 32}, 201),
        ({"X-CSRFToken": "a" * 32, "Origin": "http://localhost"}, 201),
        ({"X-CSRFToken": "a" * 32, "Origin": "http://evil.example"}, 403),
        ({"X-CSRFToken": "a" * 32, "Origin": "http://localhost:8001"}, 403),
        ({"X-CSRFToken": "a" * 32, "Origin": "null"}, 403),
    ],
)
async def test_a_session_changes_nothing_without_proof_that_this_site_asked(
    cookies: dict[str, str], headers: dict[str, str], status: int
) -> None:
    async with the_site(cookies=cookies) as client:
        response = await client.post("/api/v1/test/echo", json={"name": "x"}, headers=headers)
    assert response.status_code == status
    if status == 403:
        problem(response, 403, "csrf_refused")


async def test_a_form_on_a_foreign_page_changes_nothing(cookies: dict[str, str]) -> None:
    async with the_site(cookies=cookies) as client:
        response = await client.post("/api/v1/test/echo", data={"csrfmiddlewaretoken": "c" * 32, "name": "x"})
        problem(response, 403, "csrf_refused")
        response = await client.post("/api/v1/test/echo", files={"name": b"x"}, headers={"X-CSRFToken": "a" * 32})
        problem(response, 415, "unsupported_media_type")


async def test_a_token_needs_no_csrf_proof(bearer: dict[str, str]) -> None:
    async with the_site() as client:
        response = await client.post(
            "/api/v1/test/echo", json={"name": "x"}, headers={**bearer, "Origin": "http://evil.example"}
        )
    assert response.status_code == 201


async def test_an_ended_session_is_401(cookies: dict[str, str]) -> None:
    async with the_site(cookies={"sessionid": "a" * 32}) as client:
        problem(await client.get("/api/v1/test/whoami"), 401, "unauthenticated")


DEEP = b'{"name":"x","anything":' + b"[" * 10_000 + b"]" * 10_000 + b"}"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_json"),
        (b"\xff\xfe", 400, "malformed_json"),
        (b'{"name": NaN}', 422, "invalid"),
        (b'{"name": "x", "anything": Infinity}', 422, "invalid"),
        (b'{"name": "x", "anything": 1e999}', 422, "invalid"),
        (DEEP, 422, "invalid"),
        (b'{"name": "' + b"x" * 2_100_000 + b'"}', 413, "body_too_large"),
        (b"[]", 422, "invalid"),
        (b"null", 422, "invalid"),
        (b"", 422, "invalid"),
        (b'{"name": 7}', 422, "invalid"),
    ],
)
async def test_bad_bodies_are_refused_with_their_documented_status(
    bearer: dict[str, str], body: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with the_site() as client:
        response = await client.post(
            "/api/v1/test/echo", content=body, headers={**bearer, "Content-Type": "application/json"}
        )
    problem(response, status, code)
    assert tracebacks(caplog) == []


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", ""]
)
async def test_a_body_that_is_not_declared_as_json_is_415(bearer: dict[str, str], kind: str) -> None:
    async with the_site() as client:
        response = await client.post(
            "/api/v1/test/echo", content=b'{"name":"x"}', headers={**bearer, "Content-Type": kind}
        )
    problem(response, 415, "unsupported_media_type")


async def test_invalid_input_is_pointed_at_in_what_the_client_sent(bearer: dict[str, str]) -> None:
    async with the_site() as client:
        response = await client.post("/api/v1/test/echo", json={"inner": [{"size": 1}, {"size": -1}]}, headers=bearer)
        told = problem(response, 422, "invalid")
        assert {(one["pointer"], one["code"]) for one in told["errors"]} == {
            ("/name", "missing"),
            ("/inner/1/size", "greater_than_equal"),
        }
        assert all("in" not in one for one in told["errors"])
        told = problem(await client.get("/api/v1/test/list?limit=many", headers=bearer), 422, "invalid")
        assert [(one["in"], one["pointer"]) for one in told["errors"]] == [("query", "/limit")]


async def test_unknown_addresses_and_methods_are_problems_too(bearer: dict[str, str]) -> None:
    async with the_site() as client:
        problem(await client.get("/api/v1/nowhere", headers=bearer), 404, "not_found")
        problem(await client.get("/api/v1/"), 404, "not_found")
        problem(await client.get("/api/"), 404, "not_found")
        told = await client.delete("/api/v1/test/echo", headers=bearer)
        problem(told, 405, "method_not_allowed")
        assert told.headers["allow"] == "POST"
        problem(await client.get("/api/v1/test/broken/missing"), 404, "not_found")


async def test_refusals_carry_their_facts_but_never_overwrite_what_is_fixed() -> None:
    async with the_site() as client:
        told = problem(await client.get("/api/v1/test/broken/conflict"), 409, "conflict")
        assert told["run"] == "r-1"
        busy = await client.get("/api/v1/test/broken/busy")
        problem(busy, 429, "too_many")
        assert busy.headers["retry-after"] == "7"
        problem(await client.get("/api/v1/test/broken/closed"), 503, "not_admitting")


@pytest.mark.parametrize(("how", "code"), [("bug", "internal"), ("nan", "internal"), ("corrupt", "corrupt")])
async def test_our_own_faults_are_logged_once_and_leak_nothing(
    how: str, code: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with the_site() as client:
            response = await client.get(f"/api/v1/test/broken/{how}")
    told = problem(response, 500, code)
    assert "hunter2" not in response.text
    assert "Traceback" not in response.text
    assert "secret" not in told
    assert len([record for record in caplog.records if "web.failed" in record.getMessage()]) == 1
    assert not [record for record in caplog.records if record.name.startswith("django.request")]


async def test_answers_are_utf_8_and_never_broken_by_half_a_surrogate_pair() -> None:
    async with the_site() as client:
        response = await client.get("/api/v1/test/broken/surrogate")
    assert json.loads(response.content) == {"value": "\ud800 ü"}
    assert "ü".encode() in response.content


async def test_without_a_vessel_the_door_says_so(bearer: dict[str, str]) -> None:
    async with the_site(vessel=False) as client:
        problem(await client.get("/api/v1/test/whoami", headers=bearer), 503, "not_admitting")
        problem(await client.get("/api/v1/test/whoami"), 401, "unauthenticated")


async def test_a_host_that_is_not_ours_is_refused_at_the_api(bearer: dict[str, str]) -> None:
    async with the_site() as client:
        problem(await client.get("/api/v1/test/whoami", headers={**bearer, "Host": "evil.example"}), 400, "refused")
        assert (await client.get("/healthz", headers={"Host": "10.0.0.7"})).status_code == 200


async def test_over_plain_http_a_secure_site_redirects_and_promises_https(
    settings: Any, bearer: dict[str, str]
) -> None:
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_HSTS_SECONDS = 60
    async with the_site() as client:
        away = await client.get("/api/v1/test/whoami", headers=bearer)
        assert (away.status_code, away.headers["location"]) == (301, "https://localhost/api/v1/test/whoami")
        assert (await client.get("/healthz")).status_code == 200
        secure = await client.get("https://localhost/api/v1/test/whoami", headers=bearer)
        assert secure.headers["strict-transport-security"].startswith("max-age=60")


async def test_a_usable_request_id_is_kept_and_another_replaced() -> None:
    async with the_site() as client:
        kept = await client.get("/api/v1/nowhere", headers={"X-Request-ID": "abc-1"})
        assert kept.headers["x-request-id"] == kept.json()["request"] == "abc-1"
        made = await client.get("/api/v1/nowhere", headers={"X-Request-ID": "a b\x7f"})
        assert made.headers["x-request-id"] not in {"", "a b\x7f"}
        assert (await client.get("/")).headers["x-request-id"]


async def test_openapi_and_its_page_come_from_here_alone() -> None:
    async with the_site() as client:
        schema = (await client.get("/api/v1/openapi.json")).json()
        page = await client.get("/api/v1/docs")
    assert schema["info"]["version"] == "1"
    assert set(schema["components"]["securitySchemes"]) == {"BearerAuth", "SessionAuth"}
    assert "/api/v1/test/whoami" in schema["paths"]
    assert page.status_code == 200
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "<script>" not in page.text
    assert 'data-api-csrf="true"' in page.text
    assert "csrftoken=" in page.headers["set-cookie"]


async def test_views_that_use_the_orm_give_their_connections_back() -> None:
    async with the_site() as client:
        # More than the pool has: a connection that stayed would be missed.
        for _ in range(20):
            assert (await client.get("/api/v1/test/orm")).json() == {"sigils": 0}


async def test_a_client_that_leaves_cancels_its_view() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @router_for_leaving.get("/wait", auth=None)
    async def wait(request: HttpRequest) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting.add_router("", router_for_leaving)
    sent: list[Any] = []
    messages: asyncio.Queue[Any] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/api/waiting/wait", "query_string": b"", "scheme": "http"}
    headers = [(b"host", b"localhost")]
    urlpatterns.append(path("api/waiting/", waiting.urls))
    serving = asyncio.create_task(http_application()({**scope, "headers": headers}, messages.get, send))
    async with asyncio.timeout(5):
        await started.wait()
        messages.put_nowait({"type": "http.disconnect"})
        await ended.wait()
        await serving
    assert sent == []


router_for_leaving = Router()
waiting = build_api(namespace="api-waiting")


async def test_an_address_that_is_no_text_is_400_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": "/api/v1/x", "query_string": b"\xff", "headers": []}
    await http_application()(scope, receive, send)
    assert sent[0]["status"] == 400
    assert json.loads(sent[1]["body"])["code"] == "refused"
    assert tracebacks(caplog) == []
