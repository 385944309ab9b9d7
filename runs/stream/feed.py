"""The changes of all Runs of a tenant, or of all rows of another table, read once for all who watch (ruling 35).

The bus only says that it is worth a look: what is told was read by its key (updated_at, id), so changes that other
surfaces and other processes made are seen as well, a little later. Each message is a row's whole standing, so one
that comes twice changes nothing. Nothing here writes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Self

import structlog

from runs.backoff import delays
from runs.errors import Degraded
from runs.events.bus import Changes
from runs.events.event import End, Resync, RunChange
from runs.events.log import Log, Reader
from runs.paging import Cursor as Place
from runs.stream.messages import Message
from runs.stream.rows import clock
from runs.stream.sources import Sources, Writable, always
from runs.stream.table import REPLAY, Row, Table

log = structlog.get_logger(__name__)

NEWEST = 50
# Seconds between looks when the bus says nothing: what others changed is seen at the latest then.
LOOK_SECONDS = 2.0
# A row gets its time when its transaction begins but is seen when that ends: so far back each look begins.
OVERLAP = timedelta(seconds=5)
# Rows a second that looking may cost at most.
ROWS_A_SECOND = 5000
LEAST_PAUSE = 0.05
BEGINNING = Place(datetime(1970, 1, 1, tzinfo=UTC), uuid.UUID(int=0))


class Feeds[T: Row]:
    """The feeds of one Vessel by tenant; each lives while somebody watches."""

    def __init__(self, sources: Sources, table: Table[T]) -> None:
        self._sources = sources
        self._table = table
        self._tenants: dict[str, _Tenant[T]] = {}

    def feed(self, tenant: str, *, cursor: Place | None = None, writable: Writable = always) -> Feed[T]:
        """A reader of a tenant's changes.

        Args:
            cursor: of the last message that the client has; what changed since comes first, or a resync.
            writable: waited for before anything is taken.
        """
        return Feed(self._sources, self._table, tenant, self._watch, cursor, writable)

    def _watch(self, tenant: str) -> _Tenant[T]:
        watched = self._tenants.get(tenant)
        if watched is None or watched.over:
            watched = self._tenants[tenant] = _Tenant(self._sources, self._table, tenant, self._forget)
        return watched

    def _forget(self, tenant: str, watched: _Tenant[T]) -> None:
        if self._tenants.get(tenant) is watched:
            del self._tenants[tenant]


class Feed[T: Row]:
    """An asynchronous iterator of messages, to be used with `async with`.

    Cancellation of `__anext__`: at once; leave the block then.
    """

    def __init__(
        self,
        sources: Sources,
        table: Table[T],
        tenant: str,
        watch: Callable[[str], _Tenant[T]],
        cursor: Place | None,
        writable: Writable,
    ) -> None:
        self._reads = sources.reads
        self._table = table
        self._tenant = tenant
        self._watch = watch
        self._cursor = cursor
        self._writable = writable
        self._watched: _Tenant[T] | None = None
        self._reader: Reader[T] | None = None
        self._ahead: deque[Message] = deque()
        # What the client knows of rows that may come once more from the log, where they may be older.
        self._known: dict[uuid.UUID, datetime] = {}

    async def __aenter__(self) -> Self:
        watched = self._watched = self._watch(self._tenant)
        self._reader = watched.reader()
        try:
            await watched.primed()
            if self._cursor is None or not await self._resume(self._cursor):
                await self._snapshot()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._watched is not None:
            await self._watched.left()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        assert self._reader is not None
        while not self._ahead:
            if not await self._writable():
                raise StopAsyncIteration
            item = await anext(self._reader)
            if isinstance(item, Resync):
                await self._snapshot()
            elif not isinstance(item, End) and self._is_news(item):
                return self._table.changed(item)
        return self._ahead.popleft()

    async def _resume(self, cursor: Place) -> bool:
        """Tell what changed since the cursor, if that is not too much."""
        found = await self._table.changes_after(self._reads, self._tenant, _before(cursor), self._table.page)
        if len(found) == self._table.page:
            return False
        self._known = {one.id: one.updated_at for one in found}
        self._ahead.extend(self._table.changed(one) for one in found)
        return True

    async def _snapshot(self) -> None:
        found = await self._table.newest(self._reads, self._tenant, NEWEST)
        self._known = {one.id: one.updated_at for one in found}
        latest = max((one.place for one in found), key=lambda place: (place.at, place.id), default=BEGINNING)
        self._ahead.append(self._table.snapshot(latest.encode(), found))

    def _is_news(self, one: T) -> bool:
        told = self._known.get(one.id)
        if told is None:
            return True
        if told >= one.updated_at:
            return False
        del self._known[one.id]
        return True


class _Tenant[T: Row]:
    """Looks for one tenant's changes, as a task, while it has readers."""

    def __init__(
        self, sources: Sources, table: Table[T], tenant: str, forget: Callable[[str, _Tenant[T]], None]
    ) -> None:
        self._sources = sources
        self._table = table
        self._tenant = tenant
        self._forget = forget
        self._log: Log[T] = Log("feed")
        self._seen: dict[uuid.UUID, datetime] = {}
        self._high = BEGINNING
        self._primed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._watch(), name=f"feed of {table.name} {tenant}")

    @property
    def over(self) -> bool:
        """Whether the task has ended or is about to."""
        return self._task.done() or self._log.ended

    def reader(self) -> Reader[T]:
        """A reader from now on."""
        return Reader(self._log, self._log.next - 1, backlog=REPLAY, on_close=_nothing, on_resync=_nothing)

    async def primed(self) -> None:
        """Wait until nothing can be missed any more.

        Raises:
            Degraded: the database could not be asked.
        """
        await asyncio.shield(self._primed)

    async def left(self) -> None:
        """A reader has left; with the last one the task ends, and is waited for."""
        if self._log.readers:
            return
        self._end()
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            log.error("feed.broken", tenant=self._tenant, exc_info=error)

    def _end(self) -> None:
        self._log.end()
        self._forget(self._tenant, self)

    async def _watch(self) -> None:
        try:
            # What was there before anybody watched is known, not news.
            self._high = Place(await clock(self._sources.reads), BEGINNING.id)
            await self._look(tell=False)
        except Degraded as error:
            self._primed.set_exception(error)
            self._primed.exception()  # whoever waited may be gone by now
        else:
            self._primed.set_result(None)
            await self._watch_on()
        finally:
            # Cancelled or broken: whoever still waits must not wait for ever.
            self._primed.cancel()
            self._end()

    async def _watch_on(self) -> None:
        pauses = delays()
        while not self._sources.stopping:
            async with self._sources.bus.changes() as nudges:
                try:
                    looked = await self._look(tell=True)
                except Degraded as error:
                    log.debug("feed.look_failed", tenant=self._tenant, error=error.detail)
                    await asyncio.sleep(next(pauses))
                    continue
                pauses = delays()
                await asyncio.sleep(max(LEAST_PAUSE, looked / ROWS_A_SECOND))
                await self._nudged(nudges)

    async def _look(self, *, tell: bool) -> int:
        """Append what changed since the last look; returns how many rows that took."""
        looked, after = 0, _before(self._high)
        while True:
            page = await self._table.changes_after(self._sources.reads, self._tenant, after, self._table.page)
            looked += len(page)
            for one in page:
                if self._seen.get(one.id) != one.updated_at:
                    self._seen[one.id] = one.updated_at
                    if tell:
                        self._log.append(one, most=REPLAY, weight=self._table.size)
            if page:
                after = page[-1].place
            if len(page) < self._table.page:
                break
        if after.at > self._high.at:
            self._high = after
        horizon = _before(self._high).at
        self._seen = {key: at for key, at in self._seen.items() if at >= horizon}
        return looked

    async def _nudged(self, nudges: Changes) -> None:
        """Wait until something of this tenant changed here, at most until the next look is due."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                async for change in nudges:
                    if not isinstance(change, RunChange) or change.tenant == self._tenant:
                        return
        except TimeoutError:
            return


def _before(place: Place) -> Place:
    """Where to begin so that nothing is missed after `place`; a client may name any time."""
    return Place(max(place.at, BEGINNING.at) - OVERLAP, BEGINNING.id)


def _nothing() -> None:
    pass
