"""Following one Run through cut connections, restarts and resyncs.

Each stored event is told exactly once and in order; what the live stream left out is fetched from the stored Steps,
and what is stored nowhere is named (BYD-12). Knows no wire: it is handed two ways to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from lychd.client.messages import End, Event, Gap, Json, Lost, Message, NotLychd, Resync
from lychd.client.wire import TRY_AGAIN, ConnectionLost, Problem, Unreachable
from runs.backoff import delays

# How long stored Steps may lag behind the live stream before what is missing counts as missing.
LAG_SECONDS = 2.0

type Live = Callable[[str | None], AsyncGenerator[Json]]
type Stored = Callable[[int], AsyncGenerator[Event | Gap]]


@dataclass(slots=True)
class Follower:
    """One reader of one Run.

    Attributes:
        live: opens the stream after a cursor.
        stored: the Steps after a number.
        cursor: everything up to it was told.
        told: the number of the last stored event that was told.
        seen: the number of the last event that was told, tokens included; None: unknown, a cursor was given.
        ended: whether the last stored event was the Run's last.
    """

    live: Live
    stored: Stored
    cursor: str | None = None
    told: int = -1
    seen: int | None = field(default=-1)
    ended: bool = False

    def __post_init__(self) -> None:
        if self.cursor is not None:
            self.seen = None

    async def messages(self, patience: float) -> AsyncGenerator[Message]:
        """All messages up to the end of the Run; see `Client.follow`."""
        pauses, waited = delays(), 0.0
        while True:
            try:
                async with aclosing(self.live(self.cursor)) as stream:
                    async for sent in stream:
                        async with aclosing(self._meaning(sent)) as meaning:
                            async for message in meaning:
                                if isinstance(message, Event):
                                    # Only progress counts: a server that says hello and dies is not hurried.
                                    pauses, waited = delays(), 0.0
                                yield message
                                if isinstance(message, End):
                                    return
                reason = "the stream ended before the Run did."
            except Problem as error:
                if error.status not in TRY_AGAIN:
                    raise
                reason = error.detail
            except Unreachable as error:
                reason = error.detail
            pause = next(pauses)
            waited += pause
            if waited > patience:
                raise ConnectionLost(f"The connection was lost and did not come back in {patience:g} s: {reason}")
            yield Lost(reason, pause)
            await asyncio.sleep(pause)

    async def _meaning(self, sent: Json) -> AsyncGenerator[Message]:
        match sent.get("type"):
            case "event":
                event = Event.read(sent)
                if event.live_only:
                    self._passed(event)
                    yield event
                    return
                if self.seen is not None and event.seq > self.seen + 1:
                    async for missed in self._catch_up(event.seq):
                        yield missed
                if event.seq > self.told or self.seen is None:
                    self._passed(event)
                    yield event
                self.cursor = event.cursor
            case "resync":
                self.cursor, self.seen = _cursor(sent), self.told
                yield Resync(self.cursor, _snapshot(sent), sent)
                async for missed in self._catch_up():
                    yield missed
            case "end":
                if not self.ended and self.seen is not None:
                    async for missed in self._catch_up():
                        yield missed
                yield End(str(sent.get("status")), sent)
            case _:
                # A later server may say more; what we do not know we cannot show.
                return

    async def _catch_up(self, until: int | None = None) -> AsyncIterator[Event | Gap]:
        """The Steps after `told`. With `until`, wait a moment for that one: its own count of tokens proves the rest."""
        pauses, waited = delays(0.02), 0.0
        while True:
            async with aclosing(self.stored(self.told)) as stored:
                async for found in stored:
                    if isinstance(found, Event):
                        self._passed(found)
                    yield found
            if until is None or self.told >= until - 1:
                return
            if waited > LAG_SECONDS:
                yield Gap(self.told + 1, until - 1)
                return
            pause = next(pauses)
            waited += pause
            await asyncio.sleep(pause)

    def _passed(self, event: Event) -> None:
        if self.seen is None:
            # The cursor that was given stands right before the first event that follows it.
            self.told = self.seen = event.seq - 1
        if not event.live_only:
            self.told = self.seen = event.seq
            self.ended = event.kind == "done"
            return
        self.cursor = event.cursor
        if event.seq == self.seen + 1:
            # A token that does not follow directly leaves `seen` behind: the next stored event asks what was between.
            self.seen = event.seq


def _cursor(sent: Json) -> str:
    cursor = sent.get("cursor")
    if not isinstance(cursor, str):
        raise NotLychd("The server sent a resync without a cursor.")
    return cursor


def _snapshot(sent: Json) -> Json:
    snapshot: Any = sent.get("snapshot")
    return snapshot if isinstance(snapshot, dict) else {}
