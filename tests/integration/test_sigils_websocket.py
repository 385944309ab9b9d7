"""Who may open a WebSocket, and what the others are told, through the gate as a server drives it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from lychd.sigils import tokens
from lychd.sigils.models import Membership, Sigil, User
from lychd.sigils.websocket import gated
from tests.support.lookup import Doorkeeper, a_lookup

pytestmark = pytest.mark.django_db(transaction=True)

HERE = (b"origin", b"http://localhost:8000")
FOREIGN = (b"origin", b"http://evil.example")
HOST = (b"host", b"localhost:8000")


@pytest.fixture
def root() -> User:
    user = User.objects.create_superuser("root", password="x")
    Membership.objects.create(user=user, tenant="default")
    Membership.objects.create(user=user, tenant="lab")
    return user


@pytest.fixture
def token(root: User) -> str:
    return tokens.create("bot", root, ["runs:read"])[1]


@pytest.fixture
def cookie(root: User) -> tuple[bytes, bytes]:
    client = Client()
    client.force_login(root)
    return b"cookie", f"other=1; sessionid={client.cookies['sessionid'].value}".encode()


class Opened:
    """One attempt: what the server was sent, and the scope that the consumer got, if it was reached."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.scope: dict[str, Any] = {}

    async def consumer(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        assert (await receive())["type"] == "websocket.connect"

    @property
    def close_code(self) -> int | None:
        return self.sent[-1]["code"] if self.sent else None


async def opened(
    *headers: tuple[bytes, bytes], offered: list[str] | None = None, query: str = "", vessel: bool = True
) -> Opened:
    attempt = Opened()

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        attempt.sent.append(message)

    async with a_lookup() as lookup:
        scope = {
            "type": "websocket",
            "path": "/ws/runs/",
            "scheme": "ws",
            "query_string": query.encode(),
            "headers": [HOST, *headers],
            "subprotocols": offered or [],
            "state": {"vessel": Doorkeeper(lookup)} if vessel else {},
        }
        await gated(attempt.consumer)(scope, receive, send)
    return attempt


def authorization(token: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {token}".encode()


@pytest.mark.parametrize("more", [(), (FOREIGN,)])
async def test_a_token_in_the_header_needs_no_origin_and_minds_none(token: str, more: tuple[Any, ...]) -> None:
    attempt = await opened(authorization(token), *more)
    assert attempt.sent == []
    assert attempt.scope["caller"].name == "bot"
    assert attempt.scope["subprotocol"] is None


async def test_a_browser_elsewhere_sends_its_token_as_a_subprotocol_that_is_never_echoed(token: str) -> None:
    attempt = await opened(FOREIGN, offered=["lychd.v1", f"bearer.{token}"])
    assert attempt.scope["caller"].name == "bot"
    assert attempt.scope["subprotocol"] == "lychd.v1"


async def test_a_session_counts_on_our_own_pages(cookie: tuple[bytes, bytes]) -> None:
    attempt = await opened(cookie, HERE)
    assert (attempt.scope["caller"].name, attempt.scope["caller"].tenant) == ("root", "default")


async def test_a_page_names_its_tenant_in_the_query(cookie: tuple[bytes, bytes]) -> None:
    assert (await opened(cookie, HERE, query="tenant=lab")).scope["caller"].tenant == "lab"
    assert (await opened(cookie, HERE, query="tenant=foreign")).close_code == 4403


@pytest.mark.parametrize(
    "origins", [(), (FOREIGN,), ((b"origin", b"null"),), ((b"origin", b"https://localhost:8000"),)]
)
async def test_a_session_on_a_foreign_page_is_4403(cookie: tuple[bytes, bytes], origins: tuple[Any, ...]) -> None:
    attempt = await opened(cookie, *origins)
    assert attempt.close_code == 4403
    assert attempt.scope == {}


async def test_nothing_presented_is_4401_after_an_accepted_handshake() -> None:
    attempt = await opened(HERE, offered=["lychd.v1"])
    assert [message["type"] for message in attempt.sent] == ["websocket.accept", "websocket.close"]
    assert attempt.sent[0]["subprotocol"] == "lychd.v1"
    assert attempt.close_code == 4401


@pytest.fixture
def revoked(token: str) -> str:
    tokens.revoke(Sigil.objects.get())
    return token


async def test_a_revoked_token_is_4401_even_beside_a_good_session(revoked: str, cookie: tuple[bytes, bytes]) -> None:
    for presented in (authorization(revoked), authorization("nonsense"), (b"authorization", b"Basic x")):
        assert (await opened(presented, cookie, HERE)).close_code == 4401
    attempt = await opened(cookie, HERE, offered=["lychd.v1", f"bearer.{revoked}"])
    assert attempt.close_code == 4401
    assert revoked not in repr(attempt.sent)


async def test_an_ended_session_is_4401(cookie: tuple[bytes, bytes]) -> None:
    assert (await opened((b"cookie", b"sessionid=" + b"a" * 32), HERE)).close_code == 4401


async def test_without_a_vessel_it_is_told_to_try_again_later(token: str) -> None:
    assert (await opened(authorization(token), vessel=False)).close_code == 1013
