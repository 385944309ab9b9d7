"""The one door for admissions (ADM-1): the order of registry, ledger, retention, bus and broker. No SQL.

A submission is committed before the broker hears of it, and whatever happens to the publication afterwards the hop
stays recoverable: the relay is the net below this road.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog

from runs import ids, payloads
from runs import reads as rows
from runs.authority import Caller
from runs.broker.publish import Publisher
from runs.errors import (
    Corrupt,
    KeyReused,
    LychdError,
    NotAdmitting,
    NotFound,
    Pruned,
    SessionFenced,
    StrandedAdmission,
    Unknown,
)
from runs.events.bus import RunEventBus
from runs.events.event import Kind
from runs.gate import Gate
from runs.ledger.admit import ADMIT, Admission, Fenced, ForeignSession, admit_in_session
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.publication import MARK_PUBLISHED, NOTE_PUBLICATION_ERROR, PublicationError, Published
from runs.ledger.release import REFUSE, RELEASE, Refusal, Release
from runs.ledger.resume import Resume, resume
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
        input_json = asked.proved(self.limit)
        intent_json = payloads.check(asked.intent(caller), "request", self.limit * 2)
        digest = payloads.digest(asked.intent(caller))
        if asked.key is None:
            return await self._admit(caller, asked, ids.mint(), input_json, intent_json, digest, retain)
        run_id = ids.keyed_run_id(caller.tenant, caller.name, caller.surface, asked.key)
        async with self._turn(run_id):
            prior = await rows.prior(self.reads, run_id)
            if prior is not None:
                return await self._replay(caller, asked, run_id, prior, digest, retain)
            return await self._admit(caller, asked, run_id, input_json, intent_json, digest, retain)

    async def publish(self, hop: HopRef) -> bool:
        """Hand one hop to the broker and record what it said (ADM-13..17).

        Returns:
            Whether the broker holds a live job of this hop now. False leaves the hop to the relay.

        Cancellation: the hop stays as it is; a statement in flight completes.
        """
        if not self.publish_gate.is_open:
            return False
        try:
            await seam("publish.before")
            enqueued = await self.publisher.enqueue(hop.run_id, hop.seq, hop.queue, hop.priority)
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("run.publication_failed", run=str(hop.run_id), hop=hop.seq, error=message)
            await self._note(PublicationError(hop.run_id, hop.seq, message))
            return False
        await seam("publish.after")
        if enqueued.status.terminal:
            # The key's record is spent: only a rotation to a new hop may follow, and that is the relay's.
            await self._note(PublicationError(hop.run_id, hop.seq, "the broker's record of this hop is spent"))
            return False
        try:
            await self.ledger.run(MARK_PUBLISHED, Published(hop.run_id, hop.seq))
        except (Unknown, psycopg.Error) as error:
            # The job is there; a probe will find it and the relay will mark it (REC-11).
            log.warning("run.mark_published_failed", run=str(hop.run_id), error=str(error).splitlines()[0])
        return True

    async def resume(self, kind: WaitKind, run_id: uuid.UUID, owner_id: uuid.UUID) -> bool:
        """Bring a Run back whose owner has answered, and publish its next hop (WAIT-5, WAIT-10, WAIT-11).

        Returns:
            Whether this call resumed it; False when it is not parked on that owner, or the owner has not answered.

        Raises:
            Unknown: the ledger did not answer; the wait or the committed hop stands, and the relay goes on from there.

        Cancellation: the transaction is completed first; a committed hop stays for the relay.
        """
        request = Resume(run_id, kind.status, kind.name, owner_id, kind.resume_proof, self.boot_id)
        outcome = await complete(self.ledger.script(ScriptFactory(resume, request)))
        if isinstance(outcome, Lost):
            return False
        await seam("resume.committed")
        hop = outcome.value
        log.info("run.resumed", run=str(run_id), hop=hop.seq, kind=kind.name, owner=str(owner_id))
        await self.publish(HopRef(run_id, hop.seq, hop.queue, hop.priority))
        return True

    async def _admit(
        self,
        caller: Caller,
        asked: Submission,
        run_id: uuid.UUID,
        input_json: str,
        intent_json: str,
        digest: str,
        retain: Retain | None,
    ) -> Submitted:
        source = asked.source_for(caller)
        pattern = self.registry.select(asked.pattern)
        pattern.parse_input(asked.input)
        route = self.router.route(pattern=asked.pattern, source=source, priority=asked.priority)
        retains = self._retention(asked, retain)
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
            intent_json=intent_json,
            idempotency_key=asked.key,
            request_digest=digest,
            input_json=input_json,
            session_id=asked.session,
            priority=route.priority,
            queue_name=route.queue,
            retains=retains is not None,
            boot_id=self.boot_id,
        )
        self.limits.take(caller.tenant)
        try:
            outcome, cancelled = await finish(self._write(admission, fence=asked.fence_session))
        except BaseException:
            self.limits.give_back(caller.tenant)
            raise
        if not isinstance(outcome, Won):
            self.limits.give_back(caller.tenant)
            return await self._not_admitted(caller, asked, run_id, outcome, digest, retain)
        await seam("admit.committed")
        log.debug("run.admitted", run=str(run_id), pattern=pattern.key, queue=route.queue, priority=route.priority)
        hop = HopRef(run_id, 0, route.queue, route.priority)
        if retains is not None and not await self._keep_and_release(hop, retains, cancelled):
            return Submitted(run_id, replayed=False)
        if retains is None and cancelled:
            raise asyncio.CancelledError
        self._announce(hop, caller.tenant)
        await self.publish(hop)
        return Submitted(run_id, replayed=False)

    def _retention(self, asked: Submission, retain: Retain | None) -> Retain | None:
        """The hook of this admission: a session's turn is retained like a caller's own context (ruling 20)."""
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
        self,
        caller: Caller,
        asked: Submission,
        run_id: uuid.UUID,
        outcome: Lost | Fenced | ForeignSession,
        digest: str,
        retain: Retain | None,
    ) -> Submitted:
        if isinstance(outcome, ForeignSession):
            raise NotFound("There is no such session.")
        if isinstance(outcome, Fenced):
            raise SessionFenced(
                f"The session already has a Run that is not finished: {outcome.live_run_id}.",
                run=str(outcome.live_run_id),
            )
        prior = await rows.prior(self.reads, run_id)
        if prior is None:
            raise NotAdmitting("This Vessel does not hold the database any more.")
        answer = await self._replay(caller, asked, run_id, prior, digest, retain)
        # Without a key the id is ours alone: the row is our own statement whose answer was lost.
        return Submitted(run_id, replayed=asked.key is not None) if not asked.key else answer

    async def _keep_and_release(self, hop: HopRef, retain: Retain, cancelled: bool) -> bool:
        """Run the retention hook, then release; on failure refuse exactly this held hop (ADM-5..ADM-10).

        Returns:
            Whether the hop is released; False when somebody else ended it meanwhile, and nothing is to be published.
        """
        failure: BaseException | None = None
        try:
            _, late = await finish(retain(hop.run_id))
            cancelled = cancelled or late
        except asyncio.CancelledError as error:
            cancelled, failure = True, error
        except Exception as error:  # noqa: BLE001 - raised again below, after the refusal
            failure = error
        if cancelled or failure is not None:
            reason = (
                "The caller went away before its context was kept." if cancelled else f"Retention failed: {failure}"
            )
            await complete(self._refuse(hop, reason))
            if cancelled:
                raise asyncio.CancelledError
            assert failure is not None
            raise failure
        try:
            outcome, cancelled = await finish(self.ledger.run(RELEASE, Release(hop.run_id, hop.seq)))
        except (Unknown, psycopg.Error) as error:
            outcome, cancelled = await self._judge_release(hop, error), False
        if isinstance(outcome, Lost):
            if outcome.reason == Reason.NO_RUN:
                raise Corrupt(f"Run {hop.run_id} vanished while it was admitted.")
            # Cancelled or refused meanwhile: durable truth says what became of it, nothing is published (S035).
            log.info("run.release_lost", run=str(hop.run_id), reason=outcome.reason.value)
        if cancelled:
            raise asyncio.CancelledError
        return isinstance(outcome, Won)

    async def _judge_release(self, hop: HopRef, error: Exception) -> Outcome[None]:
        """A release error is judged from durable state: beyond HELD it is admitted, proven HELD it fails (ADM-10)."""
        prior = await rows.prior(self.reads, hop.run_id)
        if prior is None or prior.delivery is None:
            raise Corrupt(f"Run {hop.run_id} vanished while it was admitted.") from error
        if prior.delivery == DeliveryState.HELD:
            await self._refuse(hop, f"Release failed: {error}")
            raise error
        return Won(None, again=True)

    async def _refuse(self, hop: HopRef, reason: str) -> None:
        message = payloads.escaped(reason[:2000])
        for attempt in range(1, REFUSAL_TRIES + 1):
            try:
                outcome = await self.ledger.run(REFUSE, Refusal(hop.run_id, hop.seq, "retention_failed", message))
            except (Unknown, psycopg.Error) as error:
                log.warning(
                    "run.refusal_retried", run=str(hop.run_id), attempt=attempt, error=str(error).splitlines()[0]
                )
                if attempt == REFUSAL_TRIES:
                    raise StrandedAdmission(
                        f"Run {hop.run_id} is held and could not be refused; it is settled at the next start."
                    ) from error
                continue
            if isinstance(outcome, Lost):
                log.info("run.refusal_lost", run=str(hop.run_id), reason=outcome.reason.value)
                return
            log.info("run.refused", run=str(hop.run_id), reason=message)
            # SET-12: whoever follows this Run hears of its end.
            self.bus.open(hop.run_id, tenant="", next_seq=0)
            self.bus.finish(
                hop.run_id, "failed", data={"error": {"code": "retention_failed", "message": message, "node": None}}
            )
            self.bus.close(hop.run_id)
            return

    async def _replay(
        self,
        caller: Caller,
        asked: Submission,
        run_id: uuid.UUID,
        prior: rows.Prior,
        digest: str,
        retain: Retain | None,
    ) -> Submitted:
        """Return the earlier admission after making sure that it is not stranded (ADM-21..ADM-27). Asks no router."""
        if prior.tenant != caller.tenant or prior.request_digest != digest:
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
            keep = self._retention(asked, retain)
            if keep is None:
                raise StrandedAdmission(f"Run {run_id} is held, and this request brings nothing that could release it.")
            if not await self._keep_and_release(hop, keep, cancelled=False):
                return submitted
        self._announce(hop, caller.tenant, next_seq=prior.next_step)
        if prior.status == RunStatus.QUEUED and prior.delivery in {DeliveryState.HELD, DeliveryState.PENDING}:
            await self.publish(hop)
        return submitted

    def _announce(self, hop: HopRef, tenant: str, next_seq: int = 0) -> None:
        if self.bus.is_open(hop.run_id):
            return
        self.bus.open(hop.run_id, tenant=tenant, next_seq=next_seq)
        if next_seq == 0:
            self.bus.emit(
                hop.run_id,
                Kind.STATUS,
                data={"status": "queued", "hop": hop.seq, "queue": hop.queue, "priority": hop.priority},
            )

    async def _note(self, error: PublicationError) -> None:
        try:
            await self.ledger.run(NOTE_PUBLICATION_ERROR, error)
        except (Unknown, psycopg.Error) as failed:
            log.warning("run.publication_note_failed", run=str(error.run_id), error=str(failed).splitlines()[0])

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


_manifests: dict[str, str] = {}


def _manifest_json(pattern: AnyPattern) -> str:
    """The pinned manifest as JSON text, without the schemas: they stand beside the digest, and each Run has a copy."""
    text = _manifests.get(pattern.digest)
    if text is None:
        text = _manifests[pattern.digest] = payloads.canonical({**pattern.manifest.to_json(), "schemas": {}})
    return text
