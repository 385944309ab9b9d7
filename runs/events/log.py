"""A bounded, numbered log in memory, and readers who each hold no more than a place in it.

Readers share the log, so a thousand of them that do not read cost nothing but their places. Whoever falls behind what
the log still holds gets one resync at its head and goes on from there; appending never waits for anybody. Runs on
the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from runs.events.cursor import Cursor
from runs.events.event import End, Resync


class Weighed(Protocol):
    """An item that knows about how many characters it holds."""

    @property
    def weight(self) -> int: ...


class Log[T: Weighed]:
    """The last items, the next number, and who waits for it.

    Args:
        epoch: the generation that cursors of this log name.
        next_seq: the number of the first item.
    """

    __slots__ = ("_items", "_waiters", "_weight", "cut", "ended", "epoch", "final", "next", "readers")

    def __init__(self, epoch: str, next_seq: int = 0) -> None:
        self.epoch = epoch
        self.next = next_seq
        self.final: str | None = None
        self.ended = False
        self.cut = False
        self.readers = 0
        # Both are made when first needed: an empty deque alone weighs more than all the rest of a parked Run's channel.
        self._items: deque[T] | None = None
        self._waiters: set[asyncio.Future[None]] | None = None
        self._weight = 0

    @property
    def first(self) -> int:
        """The number of the oldest item that is still here; `next` when there is none."""
        return self.next if self._items is None else self.next - len(self._items)

    @property
    def head(self) -> Cursor:
        """Where a reader stands who has seen everything."""
        return Cursor(self.epoch, self.next - 1)

    def append(self, item: T, *, most: int, weight: int) -> None:
        """Add an item, let go of the oldest above `most` items or `weight` characters, wake who waits."""
        items = self._items
        if items is None:
            items = self._items = deque()
        items.append(item)
        self.next += 1
        self._weight += item.weight
        while len(items) > most or (self._weight > weight and len(items) > 1):
            self._weight -= items.popleft().weight
        if self._waiters:
            self.wake()

    def at(self, seq: int) -> T | None:
        """The item with this number, if it is here."""
        items = self._items
        index = seq - self.first
        return items[index] if items is not None and 0 <= index < len(items) else None

    def forget(self) -> None:
        """Let go of all items; the numbers go on."""
        self._items = None
        self._weight = 0

    def end(self) -> None:
        """Nothing will be added any more: readers finish what is here and stop."""
        self.ended = True
        self.wake()

    def stop(self) -> None:
        """Readers stop where they are; the log itself goes on."""
        self.cut = True
        self.wake()

    def wake(self) -> None:
        """Let every waiting reader look again."""
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def waiter(self) -> asyncio.Future[None]:
        """A future that is done at the next item or the end; give it back with `unwait`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = set()
        self._waiters.add(waiter)
        return waiter

    def unwait(self, waiter: asyncio.Future[None]) -> None:
        """Nobody waits for this future any more."""
        if self._waiters is not None:
            self._waiters.discard(waiter)


class Reader[T: Weighed]:
    """An asynchronous iterator over a log: items, a `Resync` where some were missed, an `End` after the last.

    It counts as a reader from its making until it has ended or was closed: use it with `async with`.

    Args:
        log: what to read; None gives an empty stream (EVT-15).
        after: the last number seen, or None if the place is unknown: then a resync comes first.
        backlog: how many items may wait for this reader before a resync replaces them (EVT-2, EVT-4).
        on_close: called once when the reader leaves.
        on_resync: called for each resync.
    """

    __slots__ = ("_backlog", "_closed", "_log", "_needed", "_on_close", "_on_resync", "_waiter")

    def __init__(
        self,
        log: Log[T] | None,
        after: int | None,
        *,
        backlog: int,
        on_close: Callable[[], None],
        on_resync: Callable[[], None],
    ) -> None:
        self._log = log
        self._needed = -1 if after is None else after + 1
        self._backlog = backlog
        self._on_close = on_close
        self._on_resync = on_resync
        self._closed = log is None
        self._waiter: asyncio.Future[None] | None = None
        if log is not None:
            log.readers += 1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T | Resync | End:
        """The next thing to tell the client.

        Cancellation: at once; the next call goes on at the same place.
        """
        log = self._log
        while log is not None and not self._closed and not log.cut:
            needed = self._needed
            if needed < log.next:
                if needed >= log.first and log.next - needed <= self._backlog:
                    item = log.at(needed)
                    if item is not None:
                        self._needed = needed + 1
                        return item
                return self._resync(log)
            if needed > log.next:
                return self._resync(log)
            if log.final is not None:
                self.close()
                return End(log.final)
            if log.ended:
                break
            waiter = self._waiter = log.waiter()
            try:
                await waiter
            finally:
                self._waiter = None
                log.unwait(waiter)
        self.close()
        raise StopAsyncIteration

    def _resync(self, log: Log[T]) -> Resync:
        self._needed = log.next
        self._on_resync()
        return Resync(log.head)

    def close(self) -> None:
        """Leave. A call that waits in the stream ends; later calls too. Harmless when repeated."""
        if not self._closed:
            self._closed = True
            log = self._log
            if log is not None:
                log.readers -= 1
                self._on_close()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def aclose(self) -> None:
        """`close`, for `contextlib.aclosing` and friends."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
