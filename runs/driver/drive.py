"""The node loop: node, checkpoint, node, … until the Pattern finishes, fails, or this hop may not write any more.

Takes a claimed hop and says how it ended. It writes checkpoints and the journal, never a status; settling is for the
ghoul. Durable Patterns checkpoint after every node that goes on (BYD-4); the last node's end is made durable by the
settlement itself, which carries the output in its one transaction.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from runs import payloads
from runs.connections import patiently
from runs.driver import orm
from runs.driver.codec import Ended, Resumable, before_node, resumable
from runs.driver.context import NodeContext
from runs.driver.steps import Entry, Hop, HopLost, StepJournal
from runs.driver.threads import Threads
from runs.errors import LychdError, NodeFailed, Unknown, said
from runs.events.bus import RunEventBus
from runs.events.event import Kind
from runs.ledger.checkpoint import SAVE_CHECKPOINT, SaveCheckpoint
from runs.ledger.claim import Claimed
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost
from runs.patterns import Finish, Goto, RunInfo, Wait
from runs.patterns.pattern import AnyPattern
from runs.seams import seam

type JournalOf = Callable[[Hop, int], Awaitable[dict[tuple[str, int], Entry]]]


class StasisLost(NodeFailed):
    """The Run was to return from a checkpoint, and there is none that can be used."""

    code, title = "stasis_lost", "Stasis lost"


class NodeTimeout(NodeFailed):
    """A node took longer than its time limit."""

    code, title = "node_timeout", "Node took too long"


@dataclass(frozen=True, slots=True)
class Finished:
    """The Pattern finished; the output is checked JSON text."""

    output_json: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The Pattern failed at `node`."""

    code: str
    message: str
    node: str | None


@dataclass(frozen=True, slots=True)
class NotMine:
    """The hop lost its right to write; whoever took it decides."""

    lost: Lost


type End = Finished | Failed | NotMine


@dataclass(frozen=True, slots=True)
class Driver:
    """Runs claimed hops.

    Args:
        journal_of: reads what earlier hops recorded for a visit; only asked when a Run returns.
        limit: bytes of state, output, step result and event, each as JSON.
    """

    ledger: Ledger
    bus: RunEventBus
    threads: Threads
    journal_of: JournalOf
    limit: int

    async def drive(self, claimed: Claimed, pattern: AnyPattern, scopes: frozenset[str]) -> End:
        """Run nodes until the hop ends.

        Returns:
            How it ended; a node's own failure is a value, not an exception.

        Raises:
            Unknown: the ledger did not answer; nobody knows yet how the hop stands.

        Cancellation: passes through after the running node has been cancelled and its threads have ended.
        """
        hop = Hop(claimed.run_id, claimed.seq, claimed.claim_id)
        node: str | None = None
        try:
            given = pattern.parse_input(claimed.input)
            if claimed.resume:
                point = self._point(claimed)
                if isinstance(point, Ended):
                    return Finished(payloads.check(point.output, "output", self.limit))
                node, visit, state = point.node, point.visit, pattern.parse_state(point.state)
                recorded = await patiently(lambda: self.journal_of(hop, visit))
            else:
                node, visit, state = pattern.manifest.start, 0, pattern.initial_state(given)
                recorded = {}
            while True:
                info = RunInfo(
                    id=claimed.run_id,
                    tenant=claimed.tenant,
                    session=claimed.session_id,
                    sigil=claimed.sigil_name,
                    scopes=scopes,
                    source=claimed.source,
                    hop=claimed.seq,
                    node=node,
                    visit=visit,
                    pattern=claimed.pattern_key,
                    revision=claimed.pattern_revision,
                )
                outcome, state = await self._activate(hop, pattern, info, given, state, recorded)
                if isinstance(outcome, Finish):
                    return Finished(payloads.check(pattern.dump_output(outcome.output), "output", self.limit))
                if isinstance(outcome, Wait):
                    raise NodeFailed(f"Nothing here can wait for a {outcome.kind}: that kind of wait is not installed.")
                state_json = payloads.check(pattern.dump_state(state), "state", self.limit)
                node, visit, recorded = outcome.node, visit + 1, {}
                if pattern.manifest.durable:
                    await self._checkpoint(hop, node, visit, state_json)
        except HopLost as error:
            return NotMine(error.lost)
        except Unknown:
            raise
        except LychdError as error:
            return Failed(error.code, error.detail, node)

    def _point(self, claimed: Claimed) -> Resumable | Ended:
        if claimed.snapshots is None:
            raise StasisLost("The Run was to return from a checkpoint, and there is none.")
        point = resumable(claimed.snapshots)
        if point is None:
            raise StasisLost("The Run was to return from a checkpoint, and it names no node to return to.")
        return point

    async def _checkpoint(self, hop: Hop, node: str, visit: int, state_json: str) -> None:
        outcome = await self.ledger.run(
            SAVE_CHECKPOINT,
            SaveCheckpoint(
                hop.run_id, hop.seq, hop.claim_id, before_node(str(hop.run_id), node, visit, hop.seq, state_json)
            ),
        )
        if isinstance(outcome, Lost):
            raise HopLost(outcome)
        await seam("drive.checkpointed")

    async def _activate(
        self,
        hop: Hop,
        pattern: AnyPattern,
        info: RunInfo,
        given: Any,
        state: Any,
        recorded: dict[tuple[str, int], Entry],
    ) -> tuple[Goto[str] | Finish[Any] | Wait[str], Any]:
        """One activation of one node: its outcome, and the state as it left it."""

        def emit(kind: Kind, *, node: str | None = None, data: dict[str, Any]) -> Any:
            return self.bus.emit(hop.run_id, kind, node=node, data=data)

        journal = StepJournal(
            hop=hop,
            visit=info.visit,
            node=info.node,
            ledger=self.ledger,
            threads=self.threads,
            emit=emit,
            limit=self.limit,
            recorded=recorded,
        )
        context: NodeContext[Any, Any] = NodeContext(
            given=given, state=state, run=info, emit=emit, journal=journal, threads=self.threads, limit=self.limit
        )
        emit(Kind.NODE, node=info.node, data={"phase": "entered", "visit": info.visit, "hop": info.hop})
        began = time.monotonic()
        limit = pattern.manifest.node(info.node).timeout
        timer = asyncio.timeout(limit)
        task = asyncio.current_task()
        cancellations = task.cancelling() if task is not None else 0
        try:
            async with timer:
                outcome = await pattern.run_node(info.node, context)
        except TimeoutError as error:
            if timer.expired():
                raise self._left(
                    emit, info, began, NodeTimeout(f"Node {info.node!r} took longer than {limit:g} s.")
                ) from error
            raise self._left(emit, info, began, _failure(info.node, error), error) from error
        except (HopLost, Unknown):
            raise
        except asyncio.CancelledError as error:
            if task is None or task.cancelling() > cancellations:
                raise
            # Nobody cancelled this hop: something within the node did, and did not answer for it.
            failure = NodeFailed(f"Node {info.node!r} was cancelled by its own code.")
            raise self._left(emit, info, began, failure, error) from error
        except (Exception, SystemExit) as error:
            # A library that calls sys.exit() ends its node and not the Vessel.
            await orm.close_lost(error)
            raise self._left(emit, info, began, _failure(info.node, error), error) from error
        finally:
            context.cancel()
            context.close()
        way = "finish" if isinstance(outcome, Finish) else outcome.node if isinstance(outcome, Goto) else outcome.then
        emit(
            Kind.NODE,
            node=info.node,
            data={"phase": "left", "visit": info.visit, "to": way, "ms": round((time.monotonic() - began) * 1000, 1)},
        )
        return outcome, context.state

    def _left(
        self, emit: Any, info: RunInfo, began: float, failure: NodeFailed, cause: BaseException | None = None
    ) -> NodeFailed:
        data: dict[str, Any] = {
            "phase": "failed",
            "visit": info.visit,
            "code": failure.code,
            "message": failure.detail,
            "ms": round((time.monotonic() - began) * 1000, 1),
        }
        if cause is not None and not isinstance(cause, LychdError):
            data["trace"] = payloads.escaped("".join(traceback.format_exception(cause))[-16_000:])
        emit(Kind.NODE, node=info.node, data=data)
        return failure


def _failure(node: str, error: BaseException) -> NodeFailed:
    """What a node raised, as a failure with a stable code; our own errors keep theirs."""
    if isinstance(error, NodeFailed):
        return error
    if isinstance(error, LychdError):
        return NodeFailed(error.detail, code=error.code)
    return NodeFailed(payloads.escaped(said(error)[:4000]) or f"Node {node!r} failed.")
