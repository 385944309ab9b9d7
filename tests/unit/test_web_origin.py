"""Which Origin lets a session open a WebSocket, and which subprotocol is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from lychd.sigils.websocket import chosen_subprotocol, close_code, has_allowed_origin
from runs.errors import Forbidden, LychdError, NotAdmitting, NotFound, Unauthenticated


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["example.org", "127.0.0.1", "[::1]"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://ops.example.net:8443", "https://*.trusted.example"]


def a_scope(*origins: str, host: str | None = "example.org", scheme: str = "ws", **more: str) -> dict[str, Any]:
    headers = [(b"origin", origin.encode()) for origin in origins]
    if host is not None:
        headers.append((b"host", host.encode()))
    headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
    return {"type": "websocket", "scheme": scheme, "headers": headers}


@pytest.mark.parametrize(
    "scope",
    [
        a_scope("http://example.org"),
        a_scope("http://example.org:80"),
        a_scope("http://EXAMPLE.org"),
        a_scope("https://example.org", scheme="wss"),
        a_scope("http://127.0.0.1:8000", host="127.0.0.1:8000"),
        a_scope("http://[::1]:8000", host="[::1]:8000"),
        a_scope("https://ops.example.net:8443"),
        a_scope("https://a.trusted.example"),
        a_scope("https://ops.example.net:8443", host="unknown.example"),
    ],
)
def test_this_site_and_trusted_ones_are_let_in(scope: dict[str, Any]) -> None:
    assert has_allowed_origin(scope)


@pytest.mark.parametrize(
    "scope",
    [
        a_scope(),
        a_scope("null"),
        a_scope(""),
        a_scope("https://example.org"),
        a_scope("http://example.org:8000"),
        a_scope("http://example.org", host="example.org:8000"),
        a_scope("http://example.org", scheme="wss"),
        a_scope("http://sub.example.org"),
        a_scope("http://example.org.evil.example"),
        a_scope("http://evil.example", host="evil.example"),
        a_scope("http://example.org", host=None),
        a_scope("http://example.org/path"),
        a_scope("http://user@example.org"),
        a_scope("http://example.org:port"),
        a_scope("http://example.org", "http://example.org"),
        a_scope("file://example.org"),
        a_scope("https://ops.example.net"),
        a_scope("http://ops.example.net:8443"),
        a_scope("http://a.trusted.example"),
        a_scope("https://a.trusted.example:444"),
        a_scope("https://eviltrusted.example"),
    ],
)
def test_another_scheme_host_or_port_is_foreign(scope: dict[str, Any]) -> None:
    assert not has_allowed_origin(scope)


def test_the_word_of_a_proxy_counts_only_where_the_settings_trust_it(settings: Any) -> None:
    scope = a_scope("https://example.org", x_forwarded_proto="https")
    assert not has_allowed_origin(scope)
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    assert has_allowed_origin(scope)
    assert not has_allowed_origin(a_scope("http://example.org", x_forwarded_proto="https"))


def test_only_the_protocol_itself_is_ever_accepted() -> None:
    assert chosen_subprotocol({"subprotocols": ["lychd.v1", "bearer.secret"]}) == "lychd.v1"
    assert chosen_subprotocol({"subprotocols": ["bearer.secret"]}) is None
    assert chosen_subprotocol({}) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [(Unauthenticated(), 4401), (Forbidden(), 4403), (NotFound(), 4404), (NotAdmitting(), 1013), (LychdError(), 1011)],
)
def test_close_codes_are_those_of_the_interface(error: LychdError, code: int) -> None:
    assert close_code(error) == code
