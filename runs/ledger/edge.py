"""The shape of an edge: one set-based statement, how a request becomes a row of it, how a row becomes an outcome.

A batch travels as one JSON parameter that the statement opens with `json_to_recordset … with ordinality`: the same
text and the same parameter on psycopg's connection and on Django's, no untyped arrays (ruling 9), payloads spliced in
as the text that was checked at the door. Outcomes are joined to requests by the ordinal (ruling 1).

The shape of every statement is `wanted → locked → updates driven only from locked` (ruling 2): guards stand in
`locked`, which takes the row locks in run-id order, so that nothing is half done for a row that fails a later guard.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from runs.ledger.outcomes import Outcome, Reason, Standing
from runs.states import ON_WORKER, DeliveryState, Road, RunStatus


class Request(Protocol):
    """What every request of an edge has."""

    @property
    def run_id(self) -> uuid.UUID: ...

    @property
    def seq(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Edge[Req: Request, T]:
    """One change of Run truth.

    Attributes:
        name: the verb, as in `runs.states.EDGES`.
        columns: the record definition of the batch, for `json_to_recordset`.
        sql: the statement with `{wanted}` (the de-duplicated batch) and `{skip}` (`skip locked` in a batch, nothing
            alone). Its first result column is the ordinal of the request.
        encode: request → JSON object text.
        decode: result row after the ordinal → value of `Won`.
        judge: a loser and its fresh standing → the reason, an idempotent win, or None when the guard seems to hold
            (the row was locked by somebody: it is tried once more alone).
        hot: whether the edge has a coalescer and a connection of its own.
    """

    name: str
    columns: str
    sql: str
    encode: Callable[[Req], str]
    decode: Callable[[Req, tuple[Any, ...]], T]
    judge: Callable[[Req, Standing | None], Outcome[T] | None]
    hot: bool = False

    def statement(self, *, skip_locked: bool) -> str:
        """The SQL text for a batch (`skip_locked`) or for a single row that waits for its lock."""
        names = ", ".join(column.split()[0] for column in self.columns.split(","))
        wanted = (
            "wanted as (select distinct on (w.run_id) w.* from rows from "  # noqa: S608 - constants of the edge modules
            f"(json_to_recordset(%(batch)s::json) as ({self.columns})) with ordinality as w({names}, ord) "
            "order by w.run_id, w.ord)"
        )
        return self.sql.format(wanted=wanted, skip="skip locked" if skip_locked else "")


def row(payloads: dict[str, str | None] | None = None, **plain: Any) -> str:
    """One request as JSON object text; `payloads` are already JSON text and spliced in verbatim."""
    head = json.dumps(plain, default=str, allow_nan=False, separators=(",", ":"))
    if not payloads:
        return head
    tail = ",".join(f'"{name}":{"null" if text is None else text}' for name, text in payloads.items())
    return f"{head[:-1]},{tail}}}" if plain else f"{{{tail}}}"


# Explains losers (ruling 3): a fresh snapshot, no lock, no effect.
LOOK = """
select w.ord, r.id, r.status, r.enqueue_seq, r.road, r.quarantined_at is not null,
       d.state, d.claim_id, d.boot_id, d.resume, (select v.boot_id from runs_vesselslot v)
from rows from (json_to_recordset(%(batch)s::json) as (run_id uuid, seq int)) with ordinality as w(run_id, seq, ord)
left join runs_run r on r.id = w.run_id
left join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = w.seq
"""


def look_batch(requests: list[Request]) -> str:
    """The parameter of `LOOK` for these requests."""
    return json.dumps([{"run_id": str(request.run_id), "seq": request.seq} for request in requests])


def standing(found: tuple[Any, ...]) -> Standing | None:
    """A result row of `LOOK`; None when there is no such Run."""
    _, run_id, status, seq, road, quarantined, state, claim_id, boot, resume, current = found
    if run_id is None:
        return None
    return Standing(
        run_id=run_id,
        status=RunStatus(status),
        enqueue_seq=seq,
        road=road,
        quarantined=quarantined,
        delivery=DeliveryState(state) if state else None,
        claim_id=claim_id,
        delivery_boot=boot,
        resume=resume,
        current_boot=current,
    )


def reason_not_queued(seq: int, now: Standing | None) -> Reason | None:
    """Why a Run cannot be taken from QUEUED at this generation; None when the Run itself would allow it."""
    if now is None:
        return Reason.NO_RUN
    if now.status == RunStatus.CANCELLING:
        return Reason.CANCELLING
    if now.status in {RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED}:
        return Reason.TERMINAL
    if now.enqueue_seq != seq:
        return Reason.STALE
    if now.delivery is None:
        return Reason.NO_DELIVERY
    if now.delivery == DeliveryState.SETTLED:
        return Reason.SETTLED
    if now.delivery == DeliveryState.CLAIMED:
        return Reason.CLAIMED
    if now.status != RunStatus.QUEUED:
        return Reason.STATUS
    return None


def reason_not_this_vessel(boot_id: uuid.UUID | None, now: Standing) -> Reason | None:
    """Why a Vessel may not act on the Run (rulings 13 and 22); `boot_id` None is a surface without a Vessel."""
    if now.road != Road.VESSEL:
        return Reason.OTHER_ROAD
    if boot_id is not None and now.current_boot != boot_id:
        return Reason.OTHER_BOOT
    return None


def reason_not_mine(request: Any, now: Standing | None) -> Reason | None:
    """Why a hop may not write (ruling 6: run, seq and claim_id guard each write); None when it seems it may."""
    if now is None:
        return Reason.NO_RUN
    if now.enqueue_seq != request.seq:
        return Reason.STALE
    if now.claim_id != request.claim_id:
        return Reason.NOT_MINE
    if now.status == RunStatus.CANCELLING:
        return Reason.CANCELLING
    if now.status in {RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED}:
        return Reason.TERMINAL
    if now.delivery == DeliveryState.SETTLED:
        return Reason.SETTLED
    if now.delivery != DeliveryState.CLAIMED or now.status not in ON_WORKER:
        return Reason.STATUS
    return None
