"""The client: the REST API as methods, and a Run to follow. Answers are the JSON of the interface, unchanged."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

from lychd.client.follow import Follower
from lychd.client.messages import Event, Gap, Json, Message, NotLychd
from lychd.client.wire import Wire, parsed
from runs.errors import Refused

STEPS_PAGE = 500


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The Run as it stands; `over` when it had ended before it was asked to."""

    run: Json
    over: bool


@dataclass(frozen=True, slots=True)
class Submitted:
    """The admitted Run; `replayed` when the same key had brought it before."""

    run: Json
    replayed: bool


class Client:
    """One Vessel, seen with one token. Use it as an async context manager.

    Args:
        url: as `vessel.json` has it: `http://host:port`, `https://…` or `unix:/path`.
        token: of a Sigil.
        timeout: seconds for each answer; event streams live as long as the server is heard.

    Raises:
        BadAddress: the URL is not one, or the token cannot be sent.

    All methods raise `Problem` when the server refuses, `Unreachable` when nobody answers, `NotLychd` when something
    else does. On cancellation they close their connection; whatever the server was asked to do may go on.
    """

    def __init__(self, url: str, token: str, *, timeout: float = 30.0) -> None:
        self._token, self._timeout = token, timeout
        self._wire = Wire(url, token, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def url(self) -> str:
        """Where the Vessel is asked."""
        return self._wire.url

    async def aclose(self) -> None:
        """Give the connections back."""
        await self._wire.aclose()

    async def move(self, url: str) -> None:
        """Ask at another address from the next request on: the Vessel came back elsewhere."""
        if url.rstrip("/") != self._wire.url:
            old, self._wire = self._wire, Wire(url, self._token, self._timeout)
            await old.aclose()

    async def submit(
        self,
        pattern: str,
        input: Any = None,  # noqa: A002 - the word of the interface
        *,
        priority: int | None = None,
        session: str | uuid.UUID | None = None,
        fence_session: bool = False,
        source: str | None = None,
        key: str | None = None,
    ) -> Submitted:
        """Submit work. With a `key` it may be repeated for ever and admits once.

        Raises:
            OutcomeUnknown: the answer was lost; with a key, submit again to learn the outcome.
        """
        body: Json = {"pattern": pattern, "input": {} if input is None else input}
        optional = {"priority": priority, "session": str(session) if session else None, "source": source}
        body |= {name: value for name, value in optional.items() if value is not None}
        if fence_session:
            body["fence_session"] = True
        # Escaped throughout: half a surrogate pair must reach the server, which says what is wrong with it.
        content = json.dumps(body, allow_nan=False).encode()
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = _header(key)
        response = await self._wire.ask("POST", "/runs", content=content, headers=headers)
        return Submitted(parsed(response.content), response.status_code == 200)

    async def cancel(self, run: str | uuid.UUID) -> Cancelled:
        """Cancel a Run; it is cancelling until everything that acts for it has stopped. Repeating it is safe.

        Raises:
            OutcomeUnknown: the answer was lost; cancel again to learn the outcome.
        """
        response = await self._wire.ask("POST", f"/runs/{_id(run)}/cancel")
        return Cancelled(parsed(response.content), response.status_code == 200)

    async def run(self, run: str | uuid.UUID) -> Json:
        """One Run."""
        return await self._get(f"/runs/{_id(run)}")

    async def runs(
        self,
        *,
        status: str | None = None,
        pattern: str | None = None,
        session: str | uuid.UUID | None = None,
        source: str | None = None,
        quarantined: bool | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Json:
        """A page of Runs, newest first: `{"items": […], "next": cursor or None}`."""
        return await self._get(
            "/runs",
            status=status,
            pattern=pattern,
            session=str(session) if session else None,
            source=source,
            quarantined=None if quarantined is None else str(quarantined).lower(),
            limit=str(limit),
            cursor=cursor,
        )

    async def steps(self, run: str | uuid.UUID, *, after: int = -1, limit: int = STEPS_PAGE) -> Json:
        """A page of stored Steps: `{"items": […], "gaps": [[from, to]], "next_after": …}`."""
        return await self._get(f"/runs/{_id(run)}/steps", after_seq=str(after), limit=str(limit))

    async def history(self, run: str | uuid.UUID, *, after: int = -1) -> AsyncGenerator[Event | Gap]:
        """All stored Steps with a greater number, in order, and a `Gap` where some are missing."""
        more = True
        while more:
            page = await self.steps(run, after=after)
            items, gaps = [Event.read(one) for one in _items(page)], _gaps(page)
            for event in items:
                while gaps and gaps[0].first < event.seq:
                    yield gaps.pop(0)
                yield event
                after = event.seq
            more = bool(items) and page.get("next_after") is not None

    async def patterns(self) -> list[Json]:
        """What can be submitted."""
        return _items(await self._get("/patterns"))

    async def pattern(self, key: str) -> Json:
        """One Pattern: revision, digest, schemas, nodes and edges."""
        return await self._get(f"/patterns/{quote(key, safe='')}")

    async def consents(
        self,
        *,
        status: str | None = None,
        run: str | uuid.UUID | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Json:
        """A page of Consents, newest first: `{"items": […], "next": cursor or None}`."""
        run = _id(run) if run is not None else None
        return await self._get("/consents", status=status, run=run, limit=str(limit), cursor=cursor)

    async def consent(self, consent: str | uuid.UUID) -> Json:
        """One Consent; `you` says whether this token may decide it."""
        return await self._get(f"/consents/{_id(consent, 'Consent')}")

    async def decide(
        self, consent: str | uuid.UUID, *, grant: bool, comment: str = "", digest: str | None = None
    ) -> Json:
        """Grant or deny; safe to repeat. Returns the Consent as it stands then.

        Args:
            digest: of the Consent as it was shown; an answer to another question is refused.

        Raises:
            OutcomeUnknown: the answer was lost; repeat it, or look at the Consent.
        """
        body: Json = {"verdict": "grant" if grant else "deny", "comment": comment}
        if digest is not None:
            body["digest"] = digest
        content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        path = f"/consents/{_id(consent, 'Consent')}/decision"
        return parsed((await self._wire.ask("POST", path, content=content, headers=headers)).content)

    async def ready(self) -> Json:
        """What `/readyz` says: `{"ready": bool, "checks": […]}`, whether ready or not."""
        return await self._wire.ready()

    async def follow(
        self, run: str | uuid.UUID, *, cursor: str | None = None, patience: float = 300.0
    ) -> AsyncGenerator[Message]:
        """Everything that happened and happens in a Run, to its end (BYD-12).

        Without a cursor the stored Steps come first. Each stored event comes exactly once and in order; what the
        live stream left out is fetched from the Steps. After a lost connection it goes on from the last cursor, at
        whatever address the client was moved to.

        Args:
            cursor: of the last event seen: what came after it follows, or a `Resync` and then every stored Step.
            patience: seconds of waiting, without a word from the server, before it gives up.

        Raises:
            ConnectionLost: the server did not come back in time.

        Cancellation: the connection is closed; the Run is not touched.
        """
        path = f"/runs/{_id(run)}"
        follower = Follower(
            live=lambda cursor: self._wire.events(f"{path}/events", cursor),
            stored=lambda after: self.history(run, after=after),
            cursor=cursor,
        )
        async for message in follower.messages(patience):
            yield message

    async def _get(self, path: str, **params: str | None) -> Json:
        given = {name: value for name, value in params.items() if value is not None}
        return parsed((await self._wire.ask("GET", path, params=given)).content)


def _id(of: str | uuid.UUID, what: str = "Run") -> str:
    try:
        return str(uuid.UUID(str(of)))
    except ValueError as error:
        raise Refused(f"{str(of)[:100]!r} is not the id of a {what}.") from error


def _header(key: str) -> str:
    if not key.isascii() or not key.isprintable() or key != key.strip():
        raise Refused("The idempotency key must be printable ASCII without spaces around it.")
    return key


def _items(page: Json) -> list[Json]:
    items = page.get("items")
    if not isinstance(items, list):
        raise NotLychd("The server sent a list without items.")
    return cast("list[Json]", items)


def _gaps(page: Json) -> list[Gap]:
    try:
        return [Gap(int(first), int(last)) for first, last in page.get("gaps", [])]
    except (TypeError, ValueError) as error:
        raise NotLychd("The server sent gaps that cannot be read.") from error
