"""One address and one token on the wire: sends requests, opens event streams, turns every failure into one error.

Follows no redirect, so the token stays where it was meant for. Repeats nothing by itself.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import AsyncGenerator
from importlib.metadata import version
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2

from lychd.client.messages import Json, NotLychd
from runs.errors import LychdError, Refused

# The server sends a comment every 15 s; three of them missed mean that nobody is there.
QUIET_SECONDS = 45.0
# A message holds at most a snapshot: input and output of a Run at the largest setting, escaped.
LARGEST_MESSAGE = 256 * 1024 * 1024
# Answers that say "not now".
TRY_AGAIN = frozenset({429, 502, 503, 504})


class Problem(LychdError):
    """The server refused. `code`, `status` and `errors` are those of its problem details; `facts` is all of them."""

    code, title = "refused", "Refused"

    def __init__(self, detail: str, *, status: int, code: str, facts: Json | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.facts = status, code, facts or {}
        found: Any = self.facts.get("errors")
        self.errors: list[Json] = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


class BadAddress(Refused):
    """The address or the token cannot be used."""

    code, title = "bad_address", "Unusable address"


class Unreachable(LychdError):
    """Nobody answers at the address; nothing was done."""

    code, title, status = "unreachable", "No answer", 503


class ConnectionLost(Unreachable):
    """The connection was lost and did not come back in time."""

    code, title = "connection_lost", "Connection lost"


class OutcomeUnknown(Unreachable):
    """The connection was lost after the request was sent; it may have been done."""

    code, title = "unknown_outcome", "Outcome unknown"


class Wire:
    """Connections to one Vessel.

    Args:
        url: `http://host:port`, `https://…` or `unix:/path`.
        token: of a Sigil; None asks only what is open to everyone.
        timeout: seconds for each answer; event streams live as long as the server is heard.

    Raises:
        BadAddress: the URL is not one, or the token cannot be sent.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        local = url.startswith("unix:")
        self.url = url.rstrip("/")
        self._root = "http://localhost" if local else self.url
        self._timeout = timeout
        if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
            raise BadAddress("The token is empty or holds characters that no token has.")
        host = _host(self._root)
        if host is None:
            raise BadAddress(f"{url[:200]!r} is not the address of a Vessel; one looks like http://127.0.0.1:8000.")
        self._http = httpx2.AsyncClient(
            base_url=f"{self._root}/api/v1",
            headers={"User-Agent": f"lychd/{version('lychd')}"}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=timeout,
            transport=httpx2.AsyncHTTPTransport(uds=url.removeprefix("unix:")) if local else None,
            # A proxy of the environment has no business between this machine and its own Vessel.
            trust_env=not loopback(host),
        )

    async def aclose(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def ask(self, method: str, path: str, **how: Any) -> httpx2.Response:
        """One request below `/api/v1` and its answer.

        Raises:
            Problem: the server refused.
            Unreachable: nobody answered.
            OutcomeUnknown: the answer of a request that changes something was lost.
            NotLychd: what answered speaks another language.
        """
        response = await self._answer(method, path, **how)
        if not response.is_success:
            raise _problem(response)
        return response

    async def ready(self) -> Json:
        """What `/readyz` says, ready or not."""
        response = await self._answer("GET", f"{self._root}/readyz")
        return parsed(response.content)

    async def events(self, path: str, cursor: str | None) -> AsyncGenerator[Json]:
        """The messages of an event stream, until the server ends it.

        Raises:
            Problem: the server refused.
            Unreachable: nobody answered, or the connection was lost.
            NotLychd: this is no stream of ours.
        """
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": cursor} if cursor else {})
        timeout = httpx2.Timeout(self._timeout, read=QUIET_SECONDS)
        try:
            async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _problem(response)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise NotLychd(f"{self.url} did not answer with an event stream.")
                async for sent in httpx2.EventSource(response, LARGEST_MESSAGE):
                    if sent.data:
                        yield parsed(sent.data)
        except httpx2.RequestError as error:
            raise Unreachable(_why(error)) from error

    async def _answer(self, method: str, path: str, **how: Any) -> httpx2.Response:
        try:
            return await self._http.request(method, path, **how)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Unreachable(f"Nobody answers at {self.url}: {_why(error)}") from error
        except httpx2.RequestError as error:
            if method == "GET":
                raise Unreachable(f"{self.url} did not answer: {_why(error)}") from error
            raise OutcomeUnknown(
                f"The answer of {self.url} was lost, so it may have been done: {_why(error)}"
            ) from error


def loopback(host: str) -> bool:
    """Whether a host name means this very machine; a name that only looks like such an address does not."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.port != 0 and not parts.username and url.isprintable()
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL):
        return None
    return parts.hostname if usable else None


def parsed(text: str | bytes) -> Json:
    """The JSON object in a text.

    Raises:
        NotLychd: there is none.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotLychd("The server sent something that is not JSON.") from error
    if not isinstance(value, dict):
        raise NotLychd("The server sent JSON that is not an object.")
    return cast("Json", value)


def _problem(response: httpx2.Response) -> LychdError:
    status = response.status_code
    try:
        facts = parsed(response.content)
    except NotLychd:
        facts = {}
    detail = facts.get("detail") or facts.get("title")
    if isinstance(detail, str):
        return Problem(detail, status=status, code=str(facts.get("code", "refused")), facts=facts)
    if status in TRY_AGAIN:
        return Problem(f"The server answered {status} and does not say why.", status=status, code="unavailable")
    return NotLychd(f"{response.url} answered {status} {response.reason_phrase}: that is no Vessel of this version.")


def _why(error: Exception) -> str:
    said = str(error).strip().rstrip(".")
    return f"{said or type(error).__name__}."
