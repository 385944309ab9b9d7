"""The node loop: node, checkpoint, node, … until the Pattern finishes, fails, or this hop may not write any more.

Takes a claimed hop and says how it ended. It writes checkpoints and the journal, never a status; settling is for the
ghoul. Durable Patterns checkpoint after every node that goes on (BYD-4); the last node's end is made durable by the
settlement itself, which carries the output in its one transaction.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from runs import ids, payloads
from runs.connections import Reads
from runs.custody import Drain
from runs.driver import orm
from runs.driver.codec import Ended, before_node
from runs.driver.context import NodeContext
from runs.driver.returning import answer, journal, place_of
from runs.driver.steps import Entry, Hop, HopLost, StepJournal
from runs.driver.threads import Threads
from runs.errors import LychdError, NodeFailed, Unknown, said
from runs.events.bus import RunEventBus
from runs.events.event import Kind
from runs.ledger.checkpoint import SAVE_CHECKPOINT, SaveCheckpoint
from runs.ledger.claim import Claimed
from runs.ledger.give_back import GIVE_BACK, GiveBack
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost
from runs.patterns import Finish, Goto, RunInfo, Verdict, Wait
from runs.patterns.pattern import AnyPattern
from runs.seams import seam
from runs.waits import Ask, WaitKind, WaitKinds


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


@dataclass(frozen=True, slots=True)
class Waiting:
    """The node wants to wait; the checkpoint that names kind and owner is written. Parking is for the ghoul."""

    kind: WaitKind
    ask: Ask


@dataclass(frozen=True, slots=True)
class Yielded:
    """The Vessel drains and the hop stopped at a boundary that the Run returns from; `seq` is the next hop (BYD-5)."""

    seq: int


type End = Finished | Failed | NotMine | Waiting | Yielded


@dataclass(frozen=True, slots=True)
class Driver:
    """Runs claimed hops.

    Args:
        reads: for what a returning Run needs: its journal, the answer it waited for.
        waits: the kinds of wait that are installed.
        limit: bytes of state, output, step result and event, each as JSON.
        drain: whether hops are to stop where they can.
    """

    ledger: Ledger
    bus: RunEventBus
    threads: Threads
    reads: Reads
    waits: WaitKinds
    limit: int
    drain: Drain

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
        verdict: Verdict | None = None
        try:
            given = pattern.parse_input(claimed.input)
            if claimed.resume:
                point = place_of(claimed)
                if isinstance(point, Ended):
                    return Finished(payloads.check(point.output, "output", self.limit))
                node, visit, state = point.node, point.visit, pattern.parse_state(point.state)
                recorded = await journal(self.reads, hop, visit)
                verdict, told = await answer(self.reads, self.waits, point)
                if told is not None:
                    self.bus.emit(hop.run_id, Kind(told["kind"]), node=node, data=told["owner"])
            else:
                node, visit, state = pattern.manifest.start, 0, pattern.initial_state(given)
                # A start node that may run again begins anew after a death, and not its recorded steps.
                recorded = await journal(self.reads, hop, visit) if hop.seq else {}
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
                outcome, state = await self._activate(hop, pattern, info, given, state, recorded, verdict)
                verdict = None
                if isinstance(outcome, Finish):
                    return Finished(payloads.check(pattern.dump_output(outcome.output), "output", self.limit))
                if isinstance(outcome, Wait):
                    return await self._wait(hop, claimed, info, outcome, partial(pattern.dump_state, state))
                state_json = payloads.check(pattern.dump_state(state), "state", self.limit)
                node, visit, recorded = outcome.node, visit + 1, {}
                if pattern.manifest.durable:
                    if self.drain.asked and pattern.manifest.node(node).replay_safe:
                        return await self._yield(hop, node, visit, state_json)
                    await self._checkpoint(hop, node, visit, state_json)
        except HopLost as error:
            return NotMine(error.lost)
        except Unknown:
            raise
        except LychdError as error:
            return Failed(error.code, error.detail, node)

    async def _wait(
        self, hop: Hop, claimed: Claimed, info: RunInfo, outcome: Wait[str], state: Callable[[], Any]
    ) -> Waiting:
        """As `_ask`; the node has left only when that is done, else it has failed (WAIT-18)."""
        began = time.monotonic()
        emit = partial(self.bus.emit, hop.run_id)
        try:
            state_json = payloads.check(state(), "state", self.limit)
            waiting = await self._ask(hop, claimed, info, outcome, state_json)
        except (HopLost, Unknown):
            raise
        except Exception as error:
            raise self._left(emit, info, began, _failure(info.node, error), error) from error
        left = {"phase": "left", "visit": info.visit, "to": outcome.then, "waits": outcome.kind}
        emit(Kind.NODE, node=info.node, data={**left, "ms": round((time.monotonic() - began) * 1000, 1)})
        return waiting

    async def _ask(self, hop: Hop, claimed: Claimed, info: RunInfo, outcome: Wait[str], state_json: str) -> Waiting:
        """Checkpoint the Run before the node that comes after the wait, owner included (WAIT-2)."""
        kind = self.waits.get(outcome.kind)
        if kind is None:
            raise NodeFailed(f"Nothing here can wait for a {outcome.kind}: that kind of wait is not installed.")
        request = outcome.request()
        kind.prove(request)
        owner = ids.owner_id(hop.run_id, info.visit, outcome.kind)
        ask = Ask(
            owner_id=owner,
            run_id=hop.run_id,
            tenant=claimed.tenant,
            node=info.node,
            visit=info.visit,
            request=request,
            pattern_key=claimed.pattern_key,
            asked_by=claimed.user_id,
            sigil_name=claimed.sigil_name,
            source=claimed.source,
            seq=hop.seq,
            claim_id=hop.claim_id,
        )
        await self._checkpoint(
            hop, outcome.then, info.visit + 1, state_json, wait={"kind": outcome.kind, "owner": str(owner)}
        )
        return Waiting(kind, ask)

    async def _yield(self, hop: Hop, node: str, visit: int, state_json: str) -> Yielded:
        snapshots = before_node(str(hop.run_id), node, visit, hop.seq, state_json)
        request = GiveBack(
            hop.run_id, hop.seq, hop.claim_id, resume=True, reason="the Vessel drained", snapshots_json=snapshots
        )
        outcome = await self.ledger.run(GIVE_BACK, request)
        if isinstance(outcome, Lost):
            raise HopLost(outcome)
        return Yielded(outcome.value)

    async def _checkpoint(
        self, hop: Hop, node: str, visit: int, state_json: str, wait: dict[str, Any] | None = None
    ) -> None:
        outcome = await self.ledger.run(
            SAVE_CHECKPOINT,
            SaveCheckpoint(
                hop.run_id, hop.seq, hop.claim_id, before_node(str(hop.run_id), node, visit, hop.seq, state_json, wait)
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
        verdict: Verdict | None,
    ) -> tuple[Goto[str] | Finish[Any] | Wait[str], Any]:
        """One activation of one node: its outcome, and the state as it left it."""
        emit = partial(self.bus.emit, hop.run_id)
        steps = StepJournal(
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
            given=given,
            state=state,
            run=info,
            emit=emit,
            journal=steps,
            threads=self.threads,
            limit=self.limit,
            verdict=verdict,
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
        if isinstance(outcome, Wait):
            # It has not left before the Run is ready to wait.
            return outcome, context.state
        way = "finish" if isinstance(outcome, Finish) else outcome.node
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
