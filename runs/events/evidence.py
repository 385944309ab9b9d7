"""The evidence writer: copies events to Steps, many Runs in one statement, in order within each Run.

Evidence is best effort and never decides a status: a Step that cannot be written is named at the Run's barrier and
nowhere undoes anything (EVT-9). One bad event costs its own Step and no one else's. The writer polls nothing: it is a
task only while there is something to write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from uuid import UUID

import structlog

from runs.backoff import delays
from runs.errors import Conflict, EvidenceFailed, Unknown
from runs.events.event import Event, Kind
from runs.events.port import Appended, StepRow, StepStore
from runs.events.suspects import Group, Suspects

__all__ = ["Appended", "EvidenceStats", "EvidenceWriter", "StepRow", "StepStore"]

log = structlog.get_logger()

# A latch is small, but a Run whose evidence nobody repairs must not be remembered for ever.
_MOST_LATCHES = 4096
# After so many groups without an answer a round ends: the database is away, and each try may cost a timeout.
_ENOUGH = 3


_FINE = frozenset({Appended.WRITTEN, Appended.ALREADY})
_REASONS = {
    Appended.CONFLICT.value: "another event holds its place",
    Appended.NO_RUN.value: "the Run is gone",
}


@dataclass(frozen=True, slots=True)
class EvidenceStats:
    """Figures for metrics: waiting events, written and lost ones, statements, Runs with a latched failure."""

    waiting: int
    written: int
    lost: int
    batches: int
    latched: int


class _Lane:
    """The writer chain of one Run: what waits, how many are on their way, the latched failure, who waits."""

    __slots__ = ("failure", "flying", "pending", "run_id", "urgent", "waiters", "weight")

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        self.pending: deque[Event] = deque()
        self.weight = 0
        self.flying = 0
        self.urgent = False
        self.failure: EvidenceFailed | None = None
        self.waiters: set[asyncio.Future[None]] = set()

    @property
    def busy(self) -> bool:
        return self.flying > 0 or bool(self.pending)


class EvidenceWriter:
    """One writer for all Runs of a process.

    Args:
        store: the port to the database.
        batch, size: bounds of a statement, in rows and in characters of payload; a larger row goes alone.
        run_backlog: most waiting events of one Run; beyond it events but the terminal one are lost, and said to be.
        backlog: most waiting events of all Runs.
        backlog_size: most waiting characters of all Runs.
        patience: seconds for which a batch of unknown outcome is tried again before it is given up.
    """

    def __init__(
        self,
        store: StepStore,
        *,
        batch: int = 256,
        size: int = 1024 * 1024,
        run_backlog: int = 4096,
        backlog: int = 65_536,
        backlog_size: int = 128 * 1024 * 1024,
        patience: float = 20.0,
        first_delay: float = 0.05,
    ) -> None:
        self._store = store
        self._batch = batch
        self._size = size
        self._run_backlog = run_backlog
        self._backlog = backlog
        self._backlog_size = backlog_size
        self._first_delay = first_delay
        self._lanes: dict[UUID, _Lane] = {}
        self._latched: dict[UUID, None] = {}
        self._urgent: deque[_Lane] = deque()
        self._ready: deque[_Lane] = deque()
        self._suspects = Suspects(patience=patience)
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._waiting = self._weight = self._written = self._lost = self._batches = 0

    def put(self, event: Event) -> None:
        """Take an event into its Run's chain. Never waits and never raises; loop thread only (EVT-6)."""
        lane = self._lanes.get(event.run_id)
        if lane is None:
            lane = self._lanes[event.run_id] = _Lane(event.run_id)
        terminal = event.kind is Kind.DONE
        if self._stopped:
            self._latch(lane, event, "the writer has stopped")
            self._rest(lane)
            return
        if not terminal and (
            len(lane.pending) >= self._run_backlog
            or self._waiting >= self._backlog
            or self._weight >= self._backlog_size
        ):
            self._latch(lane, event, "too many events wait to be written")
            self._rest(lane)
            return
        idle = not lane.busy
        weight = event.weight
        lane.pending.append(event)
        self._waiting += 1
        self._weight += weight
        if terminal:
            lane.urgent = True
            if not lane.flying:
                # It may stand in the other queue too; the entry that comes second finds nothing and is skipped.
                self._urgent.append(lane)
        elif idle:
            self._ready.append(lane)
        if self._task is None:
            self._spawn()

    async def barrier(self, run_id: UUID) -> None:
        """Wait until nothing of this Run waits to be written (EVT-8).

        Raises:
            EvidenceFailed: an event of this generation was not written; the same object for everybody who asks until
                `retry` (EVT-10).

        Cancellation: at once; the writer goes on (EVT-18).
        """
        lane = self._lanes.get(run_id)
        if lane is None:
            return
        if lane.busy:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            lane.waiters.add(waiter)
            try:
                await waiter
            finally:
                lane.waiters.discard(waiter)
        if lane.failure is not None:
            raise lane.failure.with_traceback(None)

    def failure(self, run_id: UUID) -> EvidenceFailed | None:
        """The latched failure of the Run's generation, if there is one."""
        lane = self._lanes.get(run_id)
        return None if lane is None else lane.failure

    @property
    def unwritten(self) -> tuple[UUID, ...]:
        """Runs with a latched failure, the longest first."""
        return tuple(self._latched)

    def retry(self, run_id: UUID) -> None:
        """Open a fresh generation: the latched failure is forgotten, later events are judged anew (EVT-10).

        Raises:
            Conflict: events of the Run are on their way.
        """
        lane = self._lanes.get(run_id)
        if lane is None:
            return
        if lane.busy:
            raise Conflict("Evidence of this Run is still being written.", run=run_id)
        self._drop(lane)

    def start(self) -> None:
        """Accept events (again, after `stop`)."""
        self._stopped = False

    async def drain(self) -> None:
        """Wait until nothing waits to be written; the caller bounds the time.

        Cancellation: at once; the writer goes on.
        """
        while self._task is not None:
            await asyncio.wait({self._task})

    async def stop(self) -> None:
        """Stop writing; what still waits is lost and latched, so that no waiter hangs. `drain` first."""
        self._stopped = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            self._task = None
            # A task that was cancelled before its first step has not done it.
            self._abandon()

    def stats(self) -> EvidenceStats:
        """Figures for metrics."""
        return EvidenceStats(self._waiting, self._written, self._lost, self._batches, len(self._latched))

    def _spawn(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="evidence writer")

    async def _run(self) -> None:
        suspects = self._suspects
        try:
            pauses = delays(self._first_delay, cap=2.0)
            while True:
                groups = suspects.round(self._take())
                if not groups:
                    break
                if await self._round(suspects, groups):
                    pauses = delays(self._first_delay, cap=2.0)
                    continue
                self._give_up(suspects.expired(), "the database did not answer")
                if suspects:
                    await asyncio.sleep(next(pauses))
        except BaseException:
            self._abandon()
            raise
        finally:
            self._task = None

    async def _round(self, suspects: Suspects, groups: list[Group]) -> bool:
        """Try each group once; whether the store answered at all."""
        alive = False
        misses = 0
        todo = deque(groups)
        while todo:
            group = todo.popleft()
            if suspects.holds(group) or (misses >= _ENOUGH and not alive):
                suspects.keep(group)
                continue
            self._batches += 1
            try:
                words = await self._store.append(group.rows)
                if len(words) != len(group.rows):
                    raise EvidenceFailed(f"The store answered {len(words)} of {len(group.rows)} rows.")
            except Unknown as error:
                log.warning("evidence.unknown", rows=len(group.rows), tries=group.tries + 1, error=_sentence(error))
                misses += 1
                suspects.missed(group)
            except Exception as error:  # noqa: BLE001 - one row is bad: found by halves, latched for its own Run
                alive = True
                if len(group.rows) == 1:
                    self._land(group.rows[0], f"it is refused: {_sentence(error)}")
                else:
                    todo.extendleft(reversed(group.halves()))
            except BaseException:
                for left in (group, *todo):
                    suspects.keep(left)
                raise
            else:
                alive = True
                for event, word in zip(group.rows, words, strict=True):
                    self._land(event, None if word in _FINE else _REASONS.get(word, word))
        if alive:
            suspects.answered()
        self._give_up(suspects.proven_bad(), "its outcome stays unknown while others are written")
        return alive

    def _take(self) -> list[Event]:
        """The next batch: Runs that have ended first, each Run's events in order."""
        rows: list[Event] = []
        size = 0
        for queue in (self._urgent, self._ready):
            while queue and len(rows) < self._batch:
                lane = queue.popleft()
                if lane.flying:
                    continue
                pending = lane.pending
                while pending and len(rows) < self._batch:
                    weight = pending[0].weight
                    if rows and size + weight > self._size:
                        if not lane.flying:
                            queue.appendleft(lane)
                        return rows
                    size += weight
                    rows.append(pending.popleft())
                    lane.flying += 1
        return rows

    def _give_up(self, groups: list[Group], reason: str) -> None:
        for group in groups:
            for event in group.rows:
                self._land(event, reason)

    def _abandon(self) -> None:
        """Whatever is left is lost, and said to be, so that no waiter hangs."""
        self._give_up(self._suspects.clear(), "the writer has stopped")
        for lane in list(self._lanes.values()):
            while lane.pending:
                self._lose(lane, lane.pending.popleft(), "the writer has stopped")
            if not lane.busy:
                self._rest(lane)
        self._urgent.clear()
        self._ready.clear()

    def _land(self, event: Event, reason: str | None) -> None:
        """An event that was on its way is written, or lost for a reason."""
        lane = self._lanes[event.run_id]
        lane.flying -= 1
        if reason is None:
            self._written += 1
            self._waiting -= 1
            self._weight -= event.weight
        else:
            self._lose(lane, event, reason)
        if lane.flying == 0:
            if lane.pending:
                (self._urgent if lane.urgent else self._ready).append(lane)
            else:
                self._rest(lane)

    def _lose(self, lane: _Lane, event: Event, reason: str) -> None:
        self._waiting -= 1
        self._weight -= event.weight
        self._latch(lane, event, reason)

    def _latch(self, lane: _Lane, event: Event, reason: str) -> None:
        """Count a lost event; the first one of a generation is its failure and is logged, the rest are gaps."""
        self._lost += 1
        if lane.failure is None:
            lane.failure = EvidenceFailed(
                f"Step {event.seq} ({event.kind}) was not written: {reason}.", run=event.run_id, seq=event.seq
            )
            self._latched[lane.run_id] = None
            log.warning("evidence.failed", run=str(event.run_id), seq=event.seq, kind=event.kind.value, reason=reason)

    def _rest(self, lane: _Lane) -> None:
        """The chain is empty: let the waiters go, and forget the lane unless it holds a failure."""
        if lane.busy:
            return
        lane.urgent = False
        for waiter in lane.waiters:
            if not waiter.done():
                waiter.set_result(None)
        lane.waiters.clear()
        if lane.failure is None:
            self._drop(lane)
        elif len(self._latched) > _MOST_LATCHES:
            oldest = next((run_id for run_id in self._latched if not self._lanes[run_id].busy), None)
            if oldest is not None:
                self._drop(self._lanes[oldest])

    def _drop(self, lane: _Lane) -> None:
        del self._lanes[lane.run_id]
        self._latched.pop(lane.run_id, None)


def _sentence(error: Exception) -> str:
    """What happened, without the rest of a driver's message: that may quote the payload."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
