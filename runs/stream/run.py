"""One reader of one Run: the live channel, the stored Steps behind it, and durable truth above both.

The channel tells what happens; whatever it cannot give exactly is replaced by one resync whose snapshot comes from the
database, and a Run that has ended there has ended here, whatever the channel still says (EVT-19, EVT-20). Takes from
the bus only when the connection can send (ruling 31). Never changes a Run.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Self

import structlog

from runs import reads as rows
from runs.backoff import delays
from runs.errors import Degraded, EvidenceFailed, NotFound
from runs.events.bus import Subscription
from runs.events.cursor import Cursor
from runs.events.event import End, Resync
from runs.states import is_terminal
from runs.stream import messages
from runs.stream.messages import Message
from runs.stream.rows import Standing, seen_before, standing
from runs.stream.sources import Sources, Writable, always

log = structlog.get_logger(__name__)

SILENCE_SECONDS = 15.0
EVIDENCE_SECONDS = 1.0
HISTORY_PAGE = 200
HISTORY_PAGE_BYTES = 1024 * 1024


class RunStream:
    """An asynchronous iterator of messages, to be closed with `close`.

    Args:
        tenant: of the caller; another tenant's Run does not exist.
        cursor: of the last message that the client has; None: from the beginning of what the channel holds.
        history: before each resync, give the stored Steps that the client has not seen, and name the gaps (BYD-12).
        writable: waited for before anything is taken.
        silence: seconds without a message after which the Run's durable status is looked at and `SILENCE` is given.

    Cancellation of `__anext__`: at once; close the stream then.
    """

    def __init__(
        self,
        sources: Sources,
        tenant: str,
        run_id: uuid.UUID,
        *,
        cursor: Cursor | None = None,
        history: bool = False,
        writable: Writable = always,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self._reads, self._bus, self._sources = sources.reads, sources.bus, sources
        self._tenant = tenant
        self._run_id = run_id
        self._cursor = cursor
        self._history = history
        self._writable = writable
        self._silence = silence
        self._reader: Subscription | None = None
        self._stall: asyncio.Timeout | None = None
        # The head of the channel that this stream had to open; None if there was one.
        self._opened: Cursor | None = None
        self._target = Cursor("0", -1)
        self._seen = -1
        self._ahead: deque[Message] = deque()
        self._then: Callable[[], Awaitable[None]] = self._begin
        self._over = False
        self._pauses = delays(0.02, cap=1.0)

    async def open(self) -> Self:
        """Prove that there is such a Run, before a stream is promised.

        Raises:
            NotFound: the tenant has no such Run.
            Degraded: the database cannot be asked.
        """
        if await standing(self._reads, self._run_id, self._tenant) is None:
            raise NotFound("There is no such Run.")
        if self._history and self._cursor is not None:
            self._seen = await seen_before(self._reads, self._run_id, self._cursor)
        return self

    @property
    def over(self) -> bool:
        """Whether nothing will be given any more."""
        return self._over and not self._ahead

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._ahead:
            if self._over:
                self.close()
                raise StopAsyncIteration
            await self._then()
        return self._ahead.popleft()

    def close(self) -> None:
        """End the stream; a call that waits in it ends. Harmless when repeated."""
        self._over = True
        self._ahead.clear()
        if self._reader is not None:
            self._reader.close()
        if self._stall is not None:
            self._stall.reschedule(asyncio.get_running_loop().time())

    async def _begin(self) -> None:
        """Find the Run's channel, or open one; durable truth is asked first, and again once the channel is heard."""
        found = await self._look()
        if found is None:
            return
        head = self._bus.head(self._run_id)
        if head is not None and not self._bus.is_open(self._run_id):
            # It ended here after we looked; the ledger knew before the channel did.
            await asyncio.sleep(next(self._pauses))
            return
        if head is not None:
            # A client that knows nothing is told something even where nothing has happened yet.
            nothing_yet = self._cursor is None and head.seq < 0
            self._reader = self._bus.subscribe(self._run_id, head if nothing_yet else self._cursor)
            self._then = self._listen
            if nothing_yet:
                self._resync_at(head)
            return
        await self._begin_alone(found)

    async def _begin_alone(self, found: Standing) -> None:
        """Open the channel of a Run that nobody here carries yet, seeded after its Steps (EVT-7)."""
        self._bus.open(self._run_id, tenant=self._tenant, next_seq=found.next_seq)
        head = self._opened = self._bus.head(self._run_id)
        assert head is not None
        self._reader = self._bus.subscribe(self._run_id, head)
        # Most such Runs are queued or parked: the channel costs only its numbers until something happens (ruling 34).
        self._bus.fold(self._run_id)
        now = await self._look()
        if now is None:
            return
        if now.next_seq > head.seq + 1 and self._bus.head(self._run_id) == head:
            # It was carried, stored Steps and was let go between our look and our opening.
            self._bus.renew(self._run_id, tenant=self._tenant, next_seq=now.next_seq)
            self._reader.close()
            return
        self._resync_at(head)

    async def _look(self) -> Standing | None:
        """Durable standing; None when the stream goes another way: the Run has ended or is gone."""
        found = await standing(self._reads, self._run_id, self._tenant)
        if found is None:
            self._over = True
            return None
        if not found.terminal:
            return found
        self._let_go()
        await self._evidence()
        found = await standing(self._reads, self._run_id, self._tenant) or found
        self._resync_at(found.cursor)
        return None

    async def _listen(self) -> None:
        if not await self._room():
            return
        assert self._reader is not None
        try:
            async with asyncio.timeout(self._silence):
                item = await anext(self._reader)
        except TimeoutError:
            await self._silent()
            return
        except StopAsyncIteration:
            # The channel was dropped without an end: look again, unless it is we who end.
            self._over = self._over or self._sources.stopping
            self._then = self._begin
            await asyncio.sleep(0 if self._over else next(self._pauses))
            return
        match item:
            case Resync(cursor):
                await self._evidence()
                self._resync_at(cursor)
            case End(status):
                self._ahead.append(messages.end(status))
                self._over = True
            case event:
                self._ahead.append(messages.event(event))
                self._cursor, self._seen = Cursor(event.epoch, event.seq), event.seq
                self._pauses = delays(0.02, cap=1.0)

    async def _room(self) -> bool:
        """Wait until the connection can take more; False, with the stream over, when it is gone or we were closed."""
        try:
            # No deadline: `close` sets one, since a client that does not read may hold us here for ever.
            async with asyncio.timeout(None) as self._stall:
                free = await self._writable()
        except TimeoutError:
            free = False
        finally:
            self._stall = None
        self._over = self._over or not free
        return free

    def _resync_at(self, cursor: Cursor) -> None:
        self._target = cursor
        self._then = self._backfill if self._history else self._snapshot

    async def _backfill(self) -> None:
        """One page of the stored Steps up to the place of the resync; what comes later is told live."""
        if not await self._room():
            return
        page = await rows.steps(
            self._reads, self._run_id, after=self._seen, limit=HISTORY_PAGE, size=HISTORY_PAGE_BYTES
        )
        gaps = deque(page.gaps)
        for step in page.items:
            if step.seq > self._target.seq:
                break
            while gaps and gaps[0][0] < step.seq:
                self._ahead.append(messages.gap(*gaps.popleft()))
            self._ahead.append(messages.step(self._run_id, step))
            self._seen = step.seq
        if not page.more or page.items[-1].seq > self._target.seq:
            self._then = self._snapshot

    async def _snapshot(self) -> None:
        row = await rows.run(self._reads, self._run_id, self._tenant)
        if row is None:
            self._over = True
            return
        self._ahead.append(messages.resync(self._target, row, await self._owners(row)))
        self._cursor, self._seen = self._target, self._target.seq
        self._then = self._listen
        if is_terminal(row.status):
            # Whatever the live channel still has to say, this is how it ended (EVT-20).
            self._ahead.append(messages.end(row.status))
            self._over = True
            self._let_go()

    async def _owners(self, row: rows.RunRow) -> dict[str, list[dict[str, Any]]]:
        """What the Run waits for, in the words of the interface."""
        kind = self._sources.waits.get(row.wait_kind) if row.wait_kind is not None else None
        if kind is None or row.wait_owner is None:
            return {}
        told = await kind.describe(self._reads, row.wait_owner)
        return {kind.shown_in: [told]} if told is not None else {}

    async def _silent(self) -> None:
        """Nothing for a while: a Run that ended elsewhere is told of here; else the client hears that we live."""
        try:
            alive = await self._look() is not None
        except Degraded as error:
            log.debug("stream.look_failed", run=str(self._run_id), error=error.detail)
            alive = True
        if alive:
            self._ahead.append(messages.SILENCE)

    async def _evidence(self) -> None:
        """Let what was emitted be stored, so that the Steps hold what the resync leaves out; not at any price."""
        try:
            async with asyncio.timeout(EVIDENCE_SECONDS):
                await self._bus.settle(self._run_id)
        except (TimeoutError, EvidenceFailed) as error:
            log.debug("stream.evidence_behind", run=str(self._run_id), error=type(error).__name__)

    def _let_go(self) -> None:
        """Drop a channel that only readers opened and that nobody has used: its Run has ended without it."""
        opened, self._opened = self._opened, None
        if opened is not None and self._bus.is_open(self._run_id) and self._bus.head(self._run_id) == opened:
            self._bus.discard(self._run_id)
