"""The one door for admissions (ADM-1): the order of registry, ledger, retention, bus and broker. No SQL.

A submission is committed before the broker hears of it, and whatever happens to the publication afterwards the hop
stays recoverable: the relay is the net below this road.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import structlog

from runs import ids, payloads
from runs import reads as rows
from runs.authority import Caller
from runs.backoff import delays
from runs.broker.probe import Probe
from runs.broker.publish import Publisher
from runs.errors import (
    Corrupt,
    Degraded,
    EvidenceFailed,
    Invalid,
    KeyReused,
    LychdError,
    NotAdmitting,
    NotFound,
    Pruned,
    SessionFenced,
    StrandedAdmission,
    Unknown,
    first_line,
)
from runs.events.bus import RunEventBus
from runs.events.event import Kind, RunChange
from runs.gate import Gate
from runs.ledger.admit import ADMIT, Admission, Fenced, ForeignSession, admit_in_session
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.publication import MARK_PUBLISHED, NOTE_PUBLICATION_ERROR, PublicationError, Published
from runs.ledger.release import REFUSE, RELEASE, Refusal, Release
from runs.ledger.resume import Resume, Resumed, resume
from runs.ledger.sessions import append_turn
from runs.limits import Limits
from runs.patterns import PatternRegistry
from runs.patterns.pattern import AnyPattern
from runs.routing import Router
from runs.seams import seam
from runs.shielding import complete, finish
from runs.states import TERMINAL, DeliveryState, RunStatus
from runs.submission import Submission
from runs.waits import WaitKind

log = structlog.get_logger(__name__)

# Keeps what the caller must keep about the Run, after the commit and before the broker can see the job (ADM-5).
type Retain = Callable[[uuid.UUID], Awaitable[None]]
REFUSAL_TRIES = 3
# A job that came too late: how often it is ended, and seconds for its worker to acknowledge.
LATE_TRIES = 3
LATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Submitted:
    """The handle of an admission; `replayed` when the same request had been admitted before."""

    run_id: uuid.UUID
    replayed: bool


@dataclass(frozen=True, slots=True)
class HopRef:
    """An exact hop and where it is to be published."""

    run_id: uuid.UUID
    seq: int
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class _Request:
    """A submission on its way through the engine, with its identity and its checked texts."""

    caller: Caller
    asked: Submission
    run_id: uuid.UUID
    input_json: str
    intent_json: str
    digest: str
    retain: Retain | None


@dataclass(frozen=True, slots=True)
class _Held:
    """A held hop, and what telling of its end needs."""

    hop: HopRef
    tenant: str
    next_seq: int


@dataclass(slots=True)
class Engine:
    """Admits and publishes for one boot.

    Args:
        publish_gate: shut while this process may not publish (guard lost); hops then stay for the relay.
        limit: bytes of the input as JSON.
    """

    ledger: Ledger
    reads: rows.Reads
    bus: RunEventBus
    publisher: Publisher
    probe: Probe
    registry: PatternRegistry
    router: Router
    limits: Limits
    publish_gate: Gate
    boot_id: uuid.UUID
    limit: int
    admitting: bool = False
    _turns: dict[uuid.UUID, _Turn] = field(default_factory=dict[uuid.UUID, "_Turn"])

    async def submit(self, caller: Caller, asked: Submission, retain: Retain | None = None) -> Submitted:
        """Admit a Run, or return the one that this key admitted before.

        Args:
            caller: whose authority the Run carries from now on.
            asked: the request, raw.
            retain: idempotent; called with the Run's id after the commit and before publication.

        Raises:
            NotAdmitting, TooMany, PatternNotFound, Invalid, TooLarge, Forbidden: refused before any row.
            KeyReused: the key belongs to other work. Pruned: it belonged to a Run that is gone.
            SessionFenced: the session has an unfinished Run. NotFound: the session is not the tenant's.
            StrandedAdmission: a replay found a held admission that nobody can release.
            Unknown: the ledger did not answer; look before you submit again, or use a key.
            Whatever `retain` raised: the Run is then FAILED and nothing was published (ADM-7).

        Cancellation: a held admission is refused; one without retention stays and is published by the relay (ADM-12).
        """
        if not self.admitting:
            raise NotAdmitting
        run_id = (
            ids.mint() if asked.key is None else ids.keyed_run_id(caller.tenant, caller.name, caller.surface, asked.key)
        )
        intent = asked.intent(caller)
        request = _Request(
            caller=caller,
            asked=asked,
            run_id=run_id,
            input_json=asked.proved(self.limit),
            intent_json=payloads.check(intent, "request", self.limit * 2),
            digest=payloads.digest(intent),
            retain=retain,
        )
        if asked.key is None:
            return await self._admit(request)
        async with self._turn(run_id):
            prior = await rows.prior(self.reads, run_id)
            return await (self._admit(request) if prior is None else self._replay(request, prior))

    async def publish(self, hop: HopRef) -> bool:
        """Hand one hop to the broker and record what it said (ADM-13..17).

        Returns:
            Whether the broker holds a live job of this hop now. False leaves the hop to the relay.

        Raises:
            Corrupt: there is no such hop, or it is held: nobody may publish it (ADM-16).

        Cancellation: the hop stays as it is, with a note why; a statement in flight completes (ADM-18).
        """
        if not self.publish_gate.is_open:
            return False
        try:
            await seam("publish.before")
            enqueued = await self.publisher.enqueue(hop.run_id, hop.seq, hop.queue, hop.priority)
            await seam("publish.after")
        except asyncio.CancelledError:
            note = PublicationError(hop.run_id, hop.seq, "The caller went away while it was published.")
            await finish(self._note(note))
            raise
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            message = first_line(error)
            log.warning("run.publication_failed", run=str(hop.run_id), hop=hop.seq, error=message)
            await self._note(PublicationError(hop.run_id, hop.seq, message))
            return False
        if enqueued.status.terminal:
            # The key's record is spent: only a rotation to a new hop may follow, and that is the relay's.
            await self._note(PublicationError(hop.run_id, hop.seq, "the broker's record of this hop is spent"))
            return False
        try:
            outcome = await self.ledger.run(MARK_PUBLISHED, Published(hop.run_id, hop.seq))
        except (Unknown, psycopg.Error) as error:
            # The job is there; a probe will find it and the relay will mark it (REC-11).
            log.warning("run.mark_published_failed", run=str(hop.run_id), error=first_line(error))
            return True
        if isinstance(outcome, Lost):
            standing = outcome.standing
            if standing is not None and standing.status in {RunStatus.CANCELLING, RunStatus.CANCELLED}:
                await complete(self._fence_late(hop))
                return False
            state = standing.delivery if standing is not None else None
            if state is None or state == DeliveryState.HELD:
                # The job can do no harm: no claim takes such a hop.
                raise Corrupt(f"Hop {hop.seq} of Run {hop.run_id} cannot be published: it is {state or 'not there'}.")
        return True

    async def _fence_late(self, hop: HopRef) -> None:
        """A job that the broker took after its Run was cancelled: end it again (CAN-13, CAN-14).

        Raises:
            Degraded, Unknown, TimeoutError: after the last try; the claim keeps the job harmless (CAN-15).
        """
        key = ids.job_key(hop.run_id, hop.seq)
        pauses = delays()
        for left in range(LATE_TRIES - 1, -1, -1):
            try:
                view = await self.probe.status(hop.run_id, hop.seq, hop.queue)
                if view is not None and not view.status.terminal:
                    await self.probe.abort(key, "its Run was cancelled", LATE_SECONDS)
                return
            except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
                log.warning("run.late_job", run=str(hop.run_id), hop=hop.seq, error=first_line(error), left=left)
                if not left:
                    raise
                await asyncio.sleep(next(pauses))

    async def resume(self, kind: WaitKind, run_id: uuid.UUID, owner_id: uuid.UUID) -> bool:
        """Bring a Run back whose owner has answered, and publish its next hop (WAIT-5, WAIT-10, WAIT-11).

        Returns:
            Whether this call resumed it; False when it is not parked on that owner, or the owner has not answered.

        Raises:
            Unknown: the ledger did not answer; the wait or the committed hop stands, and the relay goes on from there.

        Cancellation: at once; the transaction goes on to its end, and a committed hop stays for the relay.
        """
        request = Resume(run_id, kind.status, kind.name, owner_id, kind.resume_proof, self.boot_id)
        outcome = await self.ledger.lasting(ScriptFactory[Outcome[Resumed]](resume, request))
        if isinstance(outcome, Lost):
            return False
        await seam("resume.committed")
        hop = outcome.value
        log.info("run.resumed", run=str(run_id), hop=hop.seq, kind=kind.name, owner=str(owner_id))
        self.limits.returned()
        told = {"status": "queued", "hop": hop.seq, "queue": hop.queue, "priority": hop.priority, "resume": True}
        self.bus.emit(run_id, Kind.STATUS, data=told)
        self.bus.announce(RunChange(run_id, hop.tenant, RunStatus.QUEUED))
        await self.publish(HopRef(run_id, hop.seq, hop.queue, hop.priority))
        return True

    async def _admit(self, request: _Request) -> Submitted:
        caller, asked, run_id = request.caller, request.asked, request.run_id
        source = asked.source_for(caller)
        pattern = self.registry.select(asked.pattern)
        _prove_input(pattern, asked.input)
        route = self.router.route(pattern=asked.pattern, source=source, priority=asked.priority)
        retain = self._retention(request)
        admission = Admission(
            run_id=run_id,
            tenant=caller.tenant,
            pattern_key=pattern.key,
            pattern_revision=pattern.revision,
            pattern_digest=pattern.digest,
            manifest_json=_manifest_json(pattern),
            source=source,
            surface=caller.surface,
            sigil_id=caller.sigil_id,
            user_id=caller.user_id,
            sigil_name=caller.name,
            scopes=tuple(sorted(caller.scopes)),
            intent_json=request.intent_json,
            idempotency_key=asked.key,
            request_digest=request.digest,
            input_json=request.input_json,
            session_id=asked.session,
            priority=route.priority,
            queue_name=route.queue,
            retains=retain is not None,
            boot_id=self.boot_id,
        )
        self.limits.take(caller.tenant)
        try:
            await seam("admit.before")
            outcome, cancelled = await finish(self._write(admission, fence=asked.fence_session))
        except BaseException:
            self.limits.give_back(caller.tenant)
            raise
        if not isinstance(outcome, Won):
            self.limits.give_back(caller.tenant)
            return await self._not_admitted(request, outcome, cancelled=cancelled)
        await seam("admit.committed")
        log.debug("run.admitted", run=str(run_id), pattern=pattern.key, queue=route.queue, priority=route.priority)
        hop = HopRef(run_id, 0, route.queue, route.priority)
        if retain is not None:
            if not await self._keep_and_release(_Held(hop, caller.tenant, 0), retain, cancelled=cancelled):
                return Submitted(run_id, replayed=False)
        elif cancelled:
            raise asyncio.CancelledError
        self._announce(hop, request, next_seq=0)
        await self.publish(hop)
        return Submitted(run_id, replayed=False)

    def _retention(self, request: _Request) -> Retain | None:
        """The hook of this admission: a session's turn is retained like a caller's own context (ruling 20)."""
        asked, retain = request.asked, request.retain
        session = asked.session
        if session is None:
            return retain

        async def keep(run_id: uuid.UUID) -> None:
            request_json = payloads.canonical(asked.input)
            await self.ledger.script(ScriptFactory(append_turn, session, run_id, request_json))
            if retain is not None:
                await retain(run_id)

        return keep

    async def _write(self, admission: Admission, *, fence: bool) -> Outcome[Any] | Fenced | ForeignSession:
        if admission.session_id is None:
            return await self.ledger.run(ADMIT, admission)
        return await self.ledger.script(ScriptFactory(admit_in_session, admission, fence=fence))

    async def _not_admitted(
        self, request: _Request, outcome: Lost | Fenced | ForeignSession, *, cancelled: bool
    ) -> Submitted:
        """The insert wrote nothing: refused, or the id was there before (ruling 3)."""
        keyed = request.asked.key is not None
        if cancelled and (keyed or not isinstance(outcome, Lost)):
            raise asyncio.CancelledError
        if isinstance(outcome, ForeignSession):
            raise NotFound("There is no such session.")
        if isinstance(outcome, Fenced):
            raise SessionFenced(
                f"The session already has a Run that is not finished: {outcome.live_run_id}.",
                run=str(outcome.live_run_id),
            )
        prior = await rows.prior(self.reads, request.run_id)
        if prior is None:
            raise NotAdmitting("This Vessel does not hold the database any more.")
        # Without a key the id is ours alone: the row was written by our own statement, whose answer was lost.
        answer = await self._replay(request, prior, cancelled=cancelled)
        return replace(answer, replayed=keyed)

    async def _keep_and_release(self, held: _Held, retain: Retain, *, cancelled: bool) -> bool:
        """Run the retention hook, then release; on failure refuse exactly this held hop (ADM-5..ADM-10, ADM-12).

        Args:
            cancelled: the caller went away already; the hook is not called then.

        Returns:
            Whether the hop is released; False when somebody else ended it meanwhile, and nothing is to be published.
        """
        failure: Exception | None = None
        if not cancelled:
            try:
                _, cancelled = await finish(retain(held.hop.run_id))
            except asyncio.CancelledError:
                cancelled = True
            except Exception as error:  # noqa: BLE001 - raised again below, after the refusal
                failure = error
        if cancelled:
            await complete(self._refuse(held, "The caller went away before its context was kept."))
            raise asyncio.CancelledError
        if failure is not None:
            await complete(self._refuse(held, f"Retention failed: {payloads.escaped(failure)}"))
            raise failure
        return await complete(self._release(held))

    async def _release(self, held: _Held) -> bool:
        """HELD → PENDING; whether that is so now. An error is judged by what the database holds (ADM-10)."""
        hop = held.hop
        await seam("release.before")
        try:
            outcome = await self.ledger.run(RELEASE, Release(hop.run_id, hop.seq))
        except (Unknown, psycopg.Error) as error:
            return await self._judge_release(held, error)
        if isinstance(outcome, Won):
            return True
        if outcome.reason in {Reason.NO_RUN, Reason.NO_DELIVERY}:
            raise Corrupt(f"Run {hop.run_id} vanished while it was admitted.")
        # Cancelled or refused meanwhile: durable truth says what became of it, nothing is published (S035).
        log.info("run.release_lost", run=str(hop.run_id), reason=outcome.reason.value)
        return False

    async def _judge_release(self, held: _Held, error: Exception) -> bool:
        hop = held.hop
        try:
            prior = await rows.prior(self.reads, hop.run_id)
        except Degraded as degraded:
            raise Unknown(f"Nobody can tell whether Run {hop.run_id} was released; look at it.") from degraded
        if prior is None or prior.delivery is None:
            raise Corrupt(f"Run {hop.run_id} vanished while it was admitted.") from error
        log.warning("run.release_judged", run=str(hop.run_id), delivery=prior.delivery, error=first_line(error))
        if prior.delivery == DeliveryState.HELD:
            await self._refuse(held, f"Release failed: {first_line(error)}")
            raise error
        return prior.status == RunStatus.QUEUED and prior.seq == hop.seq

    async def _refuse(self, held: _Held, reason: str) -> None:
        """QUEUED and HELD → FAILED and SETTLED, three tries (ADM-9)."""
        hop, message = held.hop, payloads.escaped(reason[:2000])
        for attempt in range(1, REFUSAL_TRIES + 1):
            try:
                outcome = await self.ledger.run(REFUSE, Refusal(hop.run_id, hop.seq, "retention_failed", message))
            except (Unknown, psycopg.Error) as error:
                log.warning("run.refusal_retried", run=str(hop.run_id), attempt=attempt, error=first_line(error))
                if attempt == REFUSAL_TRIES:
                    raise StrandedAdmission(
                        f"Run {hop.run_id} is held and could not be refused; it is settled at the next start."
                    ) from error
                continue
            if isinstance(outcome, Lost):
                log.info("run.refusal_lost", run=str(hop.run_id), reason=outcome.reason.value)
                return
            log.info("run.refused", run=str(hop.run_id), reason=message)
            self.limits.give_back(held.tenant)
            await self._tell_refusal(held, message)
            return

    async def _tell_refusal(self, held: _Held, message: str) -> None:
        """Whoever follows this Run hears of its end, and the end is kept (SET-12, EVT-8)."""
        run_id = held.hop.run_id
        error = {"code": "retention_failed", "message": message, "node": None}
        self.bus.open(run_id, tenant=held.tenant, next_seq=held.next_seq)
        self.bus.finish(run_id, RunStatus.FAILED, data={"hop": held.hop.seq, "error": error})
        self.bus.announce(RunChange(run_id, held.tenant, RunStatus.FAILED))
        try:
            await self.bus.settle(run_id)
        except EvidenceFailed as failed:
            log.warning("run.evidence_failed", run=str(run_id), error=failed.detail)
            self.bus.discard(run_id)
        else:
            self.bus.close(run_id)

    async def _replay(self, request: _Request, prior: rows.Prior, *, cancelled: bool = False) -> Submitted:
        """Return the earlier admission after making sure that it is not stranded (ADM-21..ADM-27). Asks no router."""
        run_id, tenant = request.run_id, request.caller.tenant
        if prior.tenant != tenant or prior.request_digest != request.digest:
            raise KeyReused
        if prior.pruned:
            raise Pruned
        submitted = Submitted(run_id, replayed=True)
        if prior.status in TERMINAL:
            return submitted
        if prior.delivery is None:
            raise Corrupt(f"Run {run_id} has no delivery for its hop {prior.seq}.")
        hop = HopRef(run_id, prior.seq, prior.queue, prior.priority)
        if prior.delivery == DeliveryState.HELD:
            retain = self._retention(request)
            if retain is None:
                raise StrandedAdmission(f"Run {run_id} is held, and this request brings nothing that could release it.")
            if not await self._keep_and_release(_Held(hop, tenant, prior.next_step), retain, cancelled=cancelled):
                return submitted
        elif cancelled:
            raise asyncio.CancelledError
        queued = prior.status == RunStatus.QUEUED and prior.delivery in {DeliveryState.HELD, DeliveryState.PENDING}
        self._announce(hop, request, next_seq=prior.next_step, queued=queued)
        if queued:
            await self.publish(hop)
        return submitted

    def _announce(self, hop: HopRef, request: _Request, *, next_seq: int, queued: bool = True) -> None:
        if self.bus.is_open(hop.run_id):
            return
        tenant = request.caller.tenant
        self.bus.open(hop.run_id, tenant=tenant, next_seq=next_seq)
        if queued and next_seq == 0:
            self.bus.emit(
                hop.run_id,
                Kind.STATUS,
                data={"status": "queued", "hop": hop.seq, "queue": hop.queue, "priority": hop.priority},
            )
            self.bus.announce(RunChange(hop.run_id, tenant, RunStatus.QUEUED, pattern=request.asked.pattern))

    async def _note(self, error: PublicationError) -> None:
        try:
            await self.ledger.run(NOTE_PUBLICATION_ERROR, error)
        except (Unknown, psycopg.Error) as failed:
            log.warning("run.publication_note_failed", run=str(error.run_id), error=first_line(failed))

    @asynccontextmanager
    async def _turn(self, run_id: uuid.UUID) -> AsyncGenerator[None]:
        """One caller a key at a time; the next one judges durable truth for itself (ADM-22, ADM-28)."""
        turn = self._turns.setdefault(run_id, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._turns.pop(run_id, None)


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


def _prove_input(pattern: AnyPattern, value: Any) -> None:
    """The input fits the Pattern, as the author's own validators judge it."""
    try:
        pattern.parse_input(value)
    except LychdError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {payloads.escaped(error)}"[:500]
        log.warning("run.input_validator_broke", pattern=pattern.key, error=what)
        raise Invalid(f"The input cannot be judged by this Pattern ({what}).") from error


_manifests: dict[str, str] = {}


def _manifest_json(pattern: AnyPattern) -> str:
    """The pinned manifest as JSON text, without the schemas: they stand beside the digest, and each Run has a copy."""
    text = _manifests.get(pattern.digest)
    if text is None:
        text = _manifests[pattern.digest] = payloads.canonical({**pattern.manifest.to_json(), "schemas": {}})
    return text
