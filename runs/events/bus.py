"""The event bus of one process: per Run a channel with a bounded replay, one terminal event, any number of readers.

Emitting never waits for anybody: readers who fall behind are resynced, Steps are written behind (`evidence`). The bus
knows no status but the word it is given and never decides one; losing it loses nothing but liveness. Everything here
runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from runs import ids
from runs.events.cursor import Cursor
from runs.events.event import End, Event, Kind, Resync, RunChange
from runs.events.evidence import EvidenceWriter
from runs.events.log import Log, Reader
from runs.events.repair import Confirm, Repaired, TerminalRepairs, TerminalTruth

__all__ = [
    "BusStats",
    "Changes",
    "End",
    "Event",
    "Kind",
    "Repaired",
    "Resync",
    "RunChange",
    "RunEventBus",
    "Subscription",
    "TerminalTruth",
]

type Subscription = Reader[Event]
type Changes = Reader[RunChange]


@dataclass(frozen=True, slots=True)
class BusStats:
    """Figures for metrics: open channels, folded ones among them, readers, events so far, resyncs given so far."""

    channels: int
    folded: int
    subscribers: int
    emitted: int
    dropped_resyncs: int


class _Channel(Log[Event]):
    """A Run's log with what the bus must remember of it; about 300 bytes when folded (ruling 34)."""

    __slots__ = ("closing", "fold", "run_id", "tenant", "timer", "tokens")

    def __init__(self, run_id: UUID, tenant: str, next_seq: int) -> None:
        super().__init__(_epoch(), next_seq)
        self.run_id = run_id
        self.tenant = tenant
        self.tokens = 0
        self.fold = False
        self.closing = False
        self.timer: asyncio.TimerHandle | None = None


class RunEventBus:
    """See the module.

    Args:
        evidence: who writes Steps; None keeps events in the process only.
        replay: most events a channel keeps.
        backlog: most events that may wait for one reader.
        grace: seconds for which a closed channel waits for its readers.
        replay_size: most characters of payload a channel keeps (the newest event always stays).
    """

    def __init__(
        self,
        *,
        evidence: EvidenceWriter | None,
        replay: int = 256,
        backlog: int = 256,
        grace: float = 60.0,
        replay_size: int = 4 * 1024 * 1024,
    ) -> None:
        self.evidence = evidence
        self._replay = replay
        self._backlog = backlog
        self._grace = grace
        self._size = replay_size
        self._channels: dict[UUID, _Channel] = {}
        self._changes: Log[RunChange] = Log(_epoch())
        self._repairs = TerminalRepairs(self)
        self._stopping = False
        self._emitted = self._resyncs = 0

    def open(self, run_id: UUID, *, tenant: str, next_seq: int = 0) -> None:
        """Open a channel whose first event has the number `next_seq`; nothing happens if one is open.

        A channel that has ended or is closing is replaced, its readers finish what it held (EVT-16).
        """
        channel = self._channels.get(run_id)
        if channel is not None:
            if channel.final is None and not channel.closing:
                return
            self._remove(channel)
        self._channels[run_id] = _Channel(run_id, tenant, next_seq)

    def is_open(self, run_id: UUID) -> bool:
        """Whether the Run has a channel that takes events."""
        channel = self._channels.get(run_id)
        return channel is not None and channel.final is None and not channel.closing

    def head(self, run_id: UUID) -> Cursor | None:
        """Where a reader stands who has seen everything; None without a channel."""
        channel = self._channels.get(run_id)
        return None if channel is None else channel.head

    def emit(
        self,
        run_id: UUID,
        kind: Kind,
        *,
        node: str | None = None,
        data: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Event | None:
        """Tell readers, and the evidence writer if it is no token; copies what it is given (EVT-6, EVT-11).

        Returns:
            The event; None if the Run has no channel or has had its terminal event (EVT-14).
        """
        if kind is Kind.DONE:
            raise ValueError("the terminal event comes from finish()")
        channel = self._channels.get(run_id)
        if channel is None or channel.final is not None or channel.closing:
            return None
        return self._publish(channel, kind, node, data, meta)

    def finish(self, run_id: UUID, status: str, *, data: Mapping[str, Any] | None = None) -> Event | None:
        """Emit the one terminal event, which carries the authoritative status (SET-6, EVT-14).

        Returns:
            The event; None if there is no channel or it had one already.
        """
        channel = self._channels.get(run_id)
        if channel is None or channel.final is not None or channel.closing:
            return None
        channel.final = status
        return self._publish(channel, Kind.DONE, None, {**(data or {}), "status": status}, None)

    async def settle(self, run_id: UUID) -> None:
        """Wait until all of the Run's evidence is written (EVT-8).

        Raises:
            EvidenceFailed: a Step was not written; every caller gets the same failure until a repair (EVT-10).

        Cancellation: at once; the writer goes on (EVT-18).
        """
        if self.evidence is not None:
            await self.evidence.barrier(run_id)

    def close(self, run_id: UUID) -> None:
        """Let the channel go as soon as its readers have drained it, at the latest after the grace (EVT-14)."""
        channel = self._channels.get(run_id)
        if channel is None or channel.closing:
            return
        channel.closing = True
        if channel.readers == 0:
            self._remove(channel)
            return
        channel.timer = asyncio.get_running_loop().call_later(self._grace, self._remove, channel)
        channel.end()

    def discard(self, run_id: UUID) -> None:
        """Drop the channel at once; its readers finish what it held and end normally (EVT-12, EVT-16)."""
        channel = self._channels.get(run_id)
        if channel is not None:
            self._remove(channel)

    def fold(self, run_id: UUID) -> None:
        """Keep only the numbers of an idle Run's channel, now or when its last reader leaves; an emit undoes it."""
        channel = self._channels.get(run_id)
        if channel is not None and channel.final is None:
            channel.fold = True
            if channel.readers == 0:
                channel.forget()

    def subscribe(self, run_id: UUID, cursor: Cursor | None) -> Subscription:
        """Read a Run's events from after `cursor` on, or all of them (EVT-2..5, EVT-15).

        What the replay cannot give exactly is replaced by one `Resync` at the head: events that were let go, a cursor
        of another generation or from ahead, a missing cursor on a channel that no longer holds the Run's first event.

        Returns:
            An async iterator of `Event | Resync | End`, to be used with `async with`; empty for an unknown Run.
        """
        channel = None if self._stopping else self._channels.get(run_id)
        after: int | None = -1
        if channel is not None and cursor is not None:
            after = cursor.seq if cursor.epoch == channel.epoch else None
        if channel is None:
            return self._reader(None, None, _nothing)
        return self._reader(channel, after, partial(self._left, channel))

    def announce(self, change: RunChange) -> None:
        """Tell the readers of all Runs; costs nothing without readers."""
        if self._changes.readers:
            self._changes.append(change, most=self._replay, weight=self._size)

    def changes(self) -> Changes:
        """Read the changes of all Runs from now on; the reader filters by tenant. Slow readers get a `Resync`."""
        return self._reader(None if self._stopping else self._changes, self._changes.next - 1, _nothing)

    subscribe_all = changes

    async def repair_terminal(self, run_id: UUID, confirm: Confirm) -> Repaired:
        """Write the terminal Step of a Run that has none, exactly once (EVT-12, EVT-17).

        Callers at the same time share one repair and its result; the first one's `confirm` is asked.

        Args:
            run_id: a Run that should have ended.
            confirm: reads durable truth; None when the Run is unknown or has not ended.

        Raises:
            EvidenceMismatch: a terminal Step names another status; it is left as it is.
            EvidenceFailed: the Step was not written; the channel is dropped, so that a later repair starts afresh.

        Cancellation: at once for this caller; the repair goes on for the others and to its end (EVT-13).
        """
        return await self._repairs.run(run_id, confirm)

    def renew(self, run_id: UUID, *, tenant: str, next_seq: int) -> None:
        """Make the Run's channel one that can still end, at `next_seq` or later.

        A live channel that is not behind what is stored stays, so that its readers see the end; any other is replaced.
        """
        channel = self._channels.get(run_id)
        if channel is not None and channel.next < next_seq:
            self._remove(channel)
        self.open(run_id, tenant=tenant, next_seq=next_seq)

    def stats(self) -> BusStats:
        """Figures for metrics."""
        channels = self._channels.values()
        folded = sum(channel.fold for channel in channels)
        readers = self._changes.readers + sum(channel.readers for channel in channels)
        return BusStats(len(channels), folded, readers, self._emitted, self._resyncs)

    async def aclose(self) -> None:
        """End every stream, now and to come; Runs still emit and their evidence is still written.

        The first step of a shutdown: readers must not use up the time that the Runs have to drain.
        """
        self._stopping = True
        self._changes.stop()
        for channel in list(self._channels.values()):
            channel.stop()
            if channel.closing:
                self._remove(channel)
        await asyncio.sleep(0)

    async def join(self) -> None:
        """Wait for repairs that nobody waits for any more; the caller bounds the time."""
        await self._repairs.join()

    def _publish(
        self,
        channel: _Channel,
        kind: Kind,
        node: str | None,
        data: Mapping[str, Any] | None,
        meta: Mapping[str, Any] | None,
    ) -> Event:
        tokens = 0
        if kind is Kind.TOKEN:
            channel.tokens += 1
        else:
            tokens, channel.tokens = channel.tokens, 0
        event = Event(
            ids.mint(),
            channel.run_id,
            channel.tenant,
            channel.epoch,
            channel.next,
            kind,
            node,
            data,
            meta,
            datetime.now(UTC),
            tokens,
        )
        channel.fold = False
        channel.append(event, most=self._replay, weight=self._size)
        self._emitted += 1
        if self.evidence is not None and kind is not Kind.TOKEN:
            self.evidence.put(event)
        return event

    def _reader[T: (Event, RunChange)](
        self, source: Log[T] | None, after: int | None, leave: Callable[[], None]
    ) -> Reader[T]:
        return Reader(source, after, backlog=self._backlog, on_close=leave, on_resync=self._resynced)

    def _left(self, channel: _Channel) -> None:
        if channel.readers == 0:
            if channel.closing:
                self._remove(channel)
            elif channel.fold:
                channel.forget()

    def _resynced(self) -> None:
        self._resyncs += 1

    def _remove(self, channel: _Channel) -> None:
        if channel.timer is not None:
            channel.timer.cancel()
            channel.timer = None
        if self._channels.get(channel.run_id) is channel:
            del self._channels[channel.run_id]
        channel.end()


def _epoch() -> str:
    return secrets.token_hex(4)


def _nothing() -> None:
    pass
