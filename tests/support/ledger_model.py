"""A model of the ledger: a few Runs in memory, moved by the table of edges alone, and requests to try on both.

What `runs.states` says of an edge (statuses, delivery, generation, claimant, owner) decides here whether it wins; only
what an edge writes besides is spelled out in `_EFFECTS`.
"""

from __future__ import annotations

import copy
import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString

from runs.ledger.admit import ADMIT, Admission
from runs.ledger.cancel import FINISH_CANCEL, Elected, Election, FinishCancel, elect
from runs.ledger.claim import Claimed
from runs.ledger.contain import Guard, contain
from runs.ledger.edge import Edge
from runs.ledger.give_back import GIVE_BACK, GiveBack
from runs.ledger.journal import RECORD_STEP, Recorded, RecordStep
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Lost, Outcome, Reason, Won
from runs.ledger.park import Park, park
from runs.ledger.quarantine import Quarantine, quarantine
from runs.ledger.resume import Resume, Resumed, resume
from runs.ledger.rotate import ROTATE, Rotation
from runs.ledger.runner import run_once, run_script
from runs.ledger.script import Script, Statement
from runs.states import EDGES, PARKED, TERMINAL, WAITS, DeliveryState, RunStatus
from runs.states import Edge as Law
from tests.support.ledger import CASES, Hop, Rows

S, D = RunStatus, DeliveryState

PARK_PROOF = (
    "select 1 from model_owner o where o.id = %(owner)s::uuid and o.run_id = %(run)s::uuid"
    " and o.status <> 'cancelled' for share of o"
)
RESUME_PROOF = (
    "select 1 from model_owner o where o.id = %(owner)s::uuid and o.run_id = %(run)s::uuid"
    " and o.status = 'answered' for share of o"
)
OPEN: LiteralString = "insert into model_owner (id, run_id, status) values (%s, %s, 'open')"
ANSWER: LiteralString = "update model_owner set status = 'answered' where id = %s and status = 'open'"
WITHDRAW = "update model_owner set status = 'cancelled' where run_id = %(run)s::uuid and status = 'open' returning id"
KINDS: dict[RunStatus, str] = {status: status.value.removeprefix("awaiting_") for status in PARKED}
LAWS: dict[str, Law] = {**EDGES, "park": WAITS[0], "resume": WAITS[1]}
# Edges that also ask which boot holds the slot; those without a Vessel may leave it out.
BOOT_ASKED = frozenset({"claim", "rotate", "give_back", "resume", "elect", "finish_cancel"})
NOT_IN_QUARANTINE = frozenset({"claim", "resume"})
OUTSIDE_THE_TABLE = ("admit", "contain", "contain_cancelled", "quarantine", "unquarantine")
MODELLED = (*LAWS, *OUTSIDE_THE_TABLE)
UNSUCCESSFUL = frozenset({S.FAILED, S.CANCELLED})
# What ends a Run or leads nowhere.
ASIDE = frozenset(
    {
        "refuse",
        "refuse_queued",
        "settle_done",
        "settle_failed",
        "elect",
        "quarantine",
        "note_publication_error",
        "reclaim",
        "contain",
        "contain_cancelled",
    }
)
# What seldom could happen, and is tried more often where it can.
RARE = ("park", "resume", "leave_hardware")
ERRORS = {"refuse": "retention_failed", "refuse_queued": "pattern_gone", "settle_failed": "broke"}


@dataclass(slots=True)
class Delivery:
    """A hop of the model."""

    state: DeliveryState
    resume: bool = False
    claim: uuid.UUID | None = None
    boot: uuid.UUID | None = None


@dataclass(slots=True)
class Run:
    """A Run of the model; `owner` is the one that it is parked on."""

    status: RunStatus = S.QUEUED
    seq: int = 0
    hops: dict[int, Delivery] = field(default_factory=dict[int, Delivery])
    owner: uuid.UUID | None = None
    error: str | None = None
    quarantined: bool = False
    cancelled: bool = False
    checkpoint: tuple[int, uuid.UUID] | None = None
    journal: int | None = None
    archived: bool = False

    def follow(self, resume: bool) -> int:
        """Settle nothing, mint the next hop."""
        self.seq += 1
        self.hops[self.seq] = Delivery(D.PENDING, resume)
        return self.seq

    def seen(self) -> dict[str, Any]:
        """What must be stored of it."""
        return {
            "run": (
                self.status.value,
                self.seq,
                KINDS.get(self.status),
                _text(self.owner),
                self.error,
                self.status in TERMINAL,
                self.quarantined,
                self.cancelled,
            ),
            "hops": {
                seq: (hop.state.value, hop.resume, _text(hop.claim), _text(hop.boot), hop.state is D.SETTLED)
                for seq, hop in self.hops.items()
            },
            "checkpoint": [(self.checkpoint[0], str(self.checkpoint[1]))] if self.checkpoint else [],
            "journal": [] if self.journal is None else [self.journal],
            "kept": self.archived or self.checkpoint is not None,
        }


def _text(value: uuid.UUID | None) -> str | None:
    return str(value) if value is not None else None


def _stored(rows: Rows) -> dict[str, Any]:
    run = rows.run
    return {
        "run": (
            run["status"],
            run["enqueue_seq"],
            run["wait_kind"],
            run["wait_owner"],
            run["error_code"],
            run["finished_at"] is not None,
            run["quarantined_at"] is not None,
            run["cancelled_by"] is not None,
        ),
        "hops": {
            seq: (hop["state"], hop["resume"], hop["claim_id"], hop["boot_id"], hop["settled_at"] is not None)
            for seq, hop in rows.deliveries.items()
        },
        "checkpoint": [(row["enqueue_seq"], row["claim_id"]) for row in rows.of("checkpoint")],
        "journal": [row["result"] for row in rows.of("journal")],
        # An end that waited for a checkpoint may leave it to `discard_checkpoint` to archive it.
        "kept": bool(rows.of("archive") or rows.of("checkpoint")),
    }


@dataclass(frozen=True, slots=True)
class Wish:
    """Drawn numbers, which `request_for` turns into a request."""

    run: int
    edge: int
    lawful: bool
    slip: int
    owner: int

    def on(self, run: int) -> Wish:
        """The same for another Run."""
        return replace(self, run=run)


@dataclass(frozen=True, slots=True)
class Request:
    """An edge to try; `claim`, `boot` and `owner` as the caller names them."""

    name: str
    run_id: uuid.UUID
    seq: int
    claim: uuid.UUID
    boot: uuid.UUID | None
    owner: uuid.UUID
    status: RunStatus = S.AWAITING_CONSENT
    number: int = 0
    admission: Admission | None = None
    place: int = 0


@dataclass(slots=True)
class Model:
    """All Runs, all owners (with Run and status), and who holds the slot; `places` are the Runs that are acted on."""

    boot: uuid.UUID
    places: list[uuid.UUID] = field(default_factory=list[uuid.UUID])
    runs: dict[uuid.UUID, Run] = field(default_factory=dict[uuid.UUID, Run])
    owners: dict[uuid.UUID, list[Any]] = field(default_factory=dict[uuid.UUID, list[Any]])
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def copy(self) -> Model:
        """Another with the same Runs; numbers go on from one count."""
        return Model(self.boot, list(self.places), copy.deepcopy(self.runs), copy.deepcopy(self.owners), self.numbers)

    def id(self, kind: str) -> uuid.UUID:
        """A new id."""
        return uuid.uuid5(uuid.uuid4(), f"{kind} {next(self.numbers)}")

    def admission(self, asked: Admission, place: int) -> Request:
        """A request to admit a Run in the place of another."""
        claim, owner = self.id("claim"), self.id("owner")
        return Request("admit", asked.run_id, 0, claim, asked.boot_id, owner, admission=asked, place=place)

    def owner_of(self, run_id: uuid.UUID) -> uuid.UUID:
        """The owner that the current hop of a Run would wait for."""
        return uuid.uuid5(run_id, f"owner {self.runs[run_id].seq}")

    def owner_moves(self, wish: Wish) -> list[tuple[LiteralString, tuple[Any, ...]]]:
        """Mostly open the owner that a running hop lacks, at times let that of a parked Run answer.

        Returns:
            The statements that do the same in the database.
        """
        run_id = self.places[wish.run]
        run = self.runs[run_id]
        owner = run.owner or self.owner_of(run_id)
        if run.status is S.RUNNING and owner not in self.owners and wish.owner:
            self.owners[owner] = [run_id, "open"]
            return [(OPEN, (owner, run_id))]
        if run.status in PARKED and self.owners[owner][1] == "open" and wish.owner == 1:
            self.owners[owner][1] = "answered"
            return [(ANSWER, (owner,))]
        return []

    def owner_is(self, owner: uuid.UUID, run_id: uuid.UUID, *statuses: str) -> bool:
        """Whether the owner belongs to the Run and stands so."""
        found = self.owners.get(owner)
        return found is not None and found[0] == run_id and found[1] in statuses

    def differs(self, stored: dict[uuid.UUID, Rows]) -> str | None:
        """What is stored otherwise than the model says."""
        for run_id, run in self.runs.items():
            found, wanted = _stored(stored[run_id]), run.seen()
            if found != wanted:
                return f"{run_id} is {found}, not {wanted}"
        return None

    def wins(self, request: Request) -> bool:
        """Whether the table lets the request win here."""
        run = self.runs[request.run_id]
        if request.name == "contain":
            return self._allows(LAWS["checkpoint"], request)
        if request.name == "contain_cancelled":
            return run.status in {S.CANCELLING, S.CANCELLED} and run.seq == request.seq
        if request.name in {"quarantine", "unquarantine"}:
            return run.quarantined is (request.name == "unquarantine")
        hop = run.hops.get(request.seq)
        if request.name == "park":
            owned = self.owner_is(request.owner, request.run_id, "open", "answered")
            return self._allows(LAWS["park"], request) and owned
        if request.name == "resume" and run.status in PARKED:
            right = run.status is request.status and run.owner == request.owner
            if not right or not self.owner_is(request.owner, request.run_id, "answered"):
                return False
            law = next(law for law in WAITS if law.name == "resume" and run.status in law.from_status)
        else:
            law = LAWS[request.name]
        return (
            self._allows(law, request)
            and not (run.quarantined and request.name in NOT_IN_QUARANTINE)
            and (request.name not in BOOT_ASKED or request.boot in {None, self.boot})
            and (request.name != "reclaim" or (hop is not None and hop.boot == request.boot))
        )

    def _allows(self, law: Law, request: Request) -> bool:
        run = self.runs[request.run_id]
        hop = run.hops.get(request.seq)
        return (
            run.status in law.from_status
            and (not law.generation or run.seq == request.seq)
            and (law.from_delivery is None or (hop is not None and hop.state in law.from_delivery))
            and (not law.claimant or (hop is not None and hop.claim == request.claim))
        )

    def repeated(self, request: Request) -> bool:
        """Whether the request would win had it not, or one like it, won before: asked again, that is no defeat."""
        run = self.runs[request.run_id]
        hop = run.hops.get(request.seq)
        right, mine = run.seq == request.seq, hop is not None and hop.claim == request.claim
        state = hop.state if hop is not None else None
        match request.name:
            case "release":
                open_ = run.status not in TERMINAL | {S.CANCELLING}
                return right and open_ and state in {D.PENDING, D.PUBLISHED, D.CLAIMED}
            case "enter_hardware" | "leave_hardware":
                return right and mine and state is D.CLAIMED and run.status is LAWS[request.name].to_status
            case "settle_done" | "settle_failed":
                return right and mine and state is D.SETTLED and run.status is LAWS[request.name].to_status
            case "park":
                parked = run.status is request.status and run.owner == request.owner
                return right and mine and state is D.SETTLED and parked
            case "elect":
                return request.boot in {None, self.boot} and run.status in TERMINAL | {S.CANCELLING}
            case "finish_cancel":
                return right and run.status is S.CANCELLED
            case "quarantine" | "unquarantine":
                return True
            case _:
                return False

    def apply(self, request: Request) -> Any:
        """Change the model as the edge that won; what its `Won` must carry, None where that is nothing."""
        if request.admission is not None:
            held = D.HELD if request.admission.retains else D.PENDING
            self.runs[request.run_id] = Run(hops={0: Delivery(held)})
            self.places[request.place : request.place + 1] = [request.run_id]
            return None
        run = self.runs[request.run_id]
        law = LAWS.get(request.name)
        if law is not None and request.name not in {"park", "resume"}:
            if law.to_status is not None:
                run.status = law.to_status
            if law.to_delivery is not None:
                run.hops[request.seq].state = law.to_delivery
        effect = _EFFECTS.get(request.name)
        return effect(self, run, request) if effect is not None else None


def _claim(_: Model, run: Run, request: Request) -> Any:
    hop = run.hops[request.seq]
    hop.claim, hop.boot, run.error = request.claim, request.boot, None
    return _reclaim(_, run, request)


def _reclaim(_: Model, run: Run, request: Request) -> Any:
    return ("claimed", request.claim, run.hops[request.seq].resume, run.checkpoint is not None)


def _checkpoint(_: Model, run: Run, request: Request) -> Any:
    run.checkpoint = (request.seq, request.claim)


def _journal(_: Model, run: Run, request: Request) -> Any:
    fresh = run.journal is None
    run.journal = request.number if run.journal is None else run.journal
    return ("recorded", run.journal, fresh)


def _fail(_: Model, run: Run, request: Request) -> Any:
    run.error = ERRORS[request.name]
    run.archived = run.archived or run.checkpoint is not None


def _cancelled(_: Model, run: Run, __: Request) -> Any:
    run.archived = run.archived or run.checkpoint is not None


def _discard(_: Model, run: Run, __: Request) -> Any:
    run.archived = run.archived or (run.status in UNSUCCESSFUL and run.checkpoint is not None)
    run.archived = run.archived or (run.checkpoint is not None and run.status is not S.DONE)
    run.checkpoint = run.journal = None


def _rotate(_: Model, run: Run, request: Request) -> Any:
    return run.follow(run.hops[request.seq].resume)


def _give_back(_: Model, run: Run, request: Request) -> Any:
    if request.number % 2:
        run.checkpoint = (request.seq, request.claim)
    return run.follow(bool(request.number % 3))


def _elect(_: Model, run: Run, request: Request) -> Any:
    run.owner, run.error, run.cancelled = None, None, True
    return ("elected", run.seq)


def _park(_: Model, run: Run, request: Request) -> Any:
    run.status, run.owner, run.error = request.status, request.owner, None
    run.hops[request.seq].state = D.SETTLED


def _resume(_: Model, run: Run, request: Request) -> Any:
    run.status, run.owner, run.error = S.QUEUED, None, None
    return run.follow(resume=True)


def _contain(model: Model, _: Run, request: Request) -> Any:
    mine = [owner for owner, (run_id, status) in model.owners.items() if (run_id, status) == (request.run_id, "open")]
    for owner in mine:
        model.owners[owner][1] = "cancelled"
    return len(mine)


def _quarantine(_: Model, run: Run, request: Request) -> Any:
    run.quarantined = request.name == "quarantine"


_EFFECTS: dict[str, Callable[[Model, Run, Request], Any]] = {
    "claim": _claim,
    "reclaim": _reclaim,
    "checkpoint": _checkpoint,
    "journal": _journal,
    "refuse": _fail,
    "refuse_queued": lambda _, run, request: setattr(run, "error", ERRORS[request.name]),
    "settle_failed": _fail,
    "finish_cancel": _cancelled,
    "discard_checkpoint": _discard,
    "rotate": _rotate,
    "give_back": _give_back,
    "elect": _elect,
    "park": _park,
    "resume": _resume,
    "contain": _contain,
    "contain_cancelled": _contain,
    "quarantine": _quarantine,
    "unquarantine": _quarantine,
}
_EFFECTS["refuse"] = _EFFECTS["refuse_queued"]


# What may be wrong about a request, by the number that was drawn; most have nothing wrong.
STALE, AHEAD, FOREIGN_CLAIM, OTHER_BOOT, NO_BOOT, OTHER_OWNER, OTHER_STATUS = range(7)


def request_for(model: Model, wish: Wish, admission: Callable[..., Admission]) -> Request:
    """The request that the numbers mean now: one that the table allows if there is one, or any; perhaps with a slip.

    Where a Run has ended, often the next one is admitted in its place.
    """
    run_id = model.places[wish.run]
    run = model.runs[run_id]
    if run.status in TERMINAL and wish.lawful and wish.edge % 2:
        return model.admission(admission(boot_id=model.boot, retains=not wish.edge % 3), wish.run)
    names = [name for name in (*MODELLED, *RARE * (4 if wish.lawful else 0)) if name != "admit"]
    asked = [_right(model, run_id, name, wish) for name in names]
    if wish.lawful:
        asked = [request for request in asked if model.wins(request)] or asked
        if wish.edge % 4:
            # Mostly what carries a Run on, or none would live long enough to meet the rest.
            asked = [request for request in asked if request.name not in ASIDE] or asked
    elif wish.edge % 2:
        # What the status would allow, or the delivery, and something else does not.
        asked = [request for request in asked if _near(run, request) and not model.wins(request)] or asked
    return _slipped(model, run, asked[wish.edge // 4 % len(asked)], wish.slip)


def _near(run: Run, request: Request) -> bool:
    law = LAWS.get(request.name)
    if law is None or (request.name == "resume" and run.status in PARKED):
        return law is not None
    return run.status in law.from_status or run.hops[run.seq].state in (law.from_delivery or ())


def _right(model: Model, run_id: uuid.UUID, name: str, wish: Wish) -> Request:
    run = model.runs[run_id]
    claim = run.hops[run.seq].claim
    if claim is None or name == "claim":
        claim = uuid.uuid5(run_id, f"claim {next(model.numbers)}")
    boot = run.hops[run.seq].boot if name == "reclaim" else model.boot
    parked = run.status in PARKED
    status = run.status if parked else list(KINDS)[wish.edge % len(KINDS)]
    owner = run.owner or model.owner_of(run_id)
    return Request(name, run_id, run.seq, claim, boot, owner, status, next(model.numbers))


def _slipped(model: Model, run: Run, request: Request, slip: int) -> Request:
    match slip:
        case 0 if run.seq > 0:
            return replace(request, seq=run.seq - 1, claim=run.hops[run.seq - 1].claim or request.claim)
        case 1:
            return replace(request, seq=run.seq + 1)
        case 2:
            return replace(request, claim=model.id("claim"))
        case 3:
            return replace(request, boot=model.id("boot"))
        case 4 if request.name in BOOT_ASKED - {"claim"}:
            return replace(request, boot=None)
        case 5:
            others = [owner for owner in model.owners if owner != request.owner]
            # Best one of the same Run, for which it waited before.
            others.sort(key=lambda owner: model.owners[owner][0] != request.run_id)
            return replace(request, owner=others[0] if others else model.id("owner"))
        case 6:
            return replace(request, status=next(status for status in KINDS if status is not request.status))
        case _:
            return request


def _edge(request: Request) -> tuple[Edge[Any, Any], Any] | None:
    """The statement and its argument; None for what is a script."""
    run_id, seq, claim, boot = request.run_id, request.seq, request.claim, request.boot
    if request.admission is not None:
        return ADMIT, request.admission
    match request.name:
        case "journal":
            digest = "a" * 64
            return RECORD_STEP, RecordStep(run_id, seq, claim, 0, "fetch", 0, digest, str(request.number))
        case "rotate":
            return ROTATE, Rotation(run_id, seq, boot, "spent")
        case "give_back":
            snapshots = "[]" if request.number % 2 else None
            back = GiveBack(run_id, seq, claim, bool(request.number % 3), "yields", snapshots, boot)
            return GIVE_BACK, back
        case "finish_cancel":
            return FINISH_CANCEL, FinishCancel(run_id, seq, boot)
        case name if name in CASES:
            case = CASES[name]
            return case.edge, case.request(Hop(run_id, seq, claim, boot or uuid.UUID(int=0)))
        case _:
            return None


def _script(request: Request) -> ScriptFactory[Outcome[Any]]:
    run_id, seq, claim, boot = request.run_id, request.seq, request.claim, request.boot
    kind = KINDS[request.status]
    match request.name:
        case "park":
            asked = Park(run_id, seq, claim, request.status, kind, request.owner, PARK_PROOF)
            return ScriptFactory(park, asked)
        case "resume":
            return ScriptFactory(resume, Resume(run_id, request.status, kind, request.owner, RESUME_PROOF, boot))
        case "elect":
            return ScriptFactory(elect, Election(run_id, "somebody", None, boot))
        case "contain":
            return ScriptFactory(contain, Guard(run_id, seq, claim), _withdraw, "model")
        case "contain_cancelled":
            return ScriptFactory(contain, Guard(run_id, seq, None), _withdraw, "model")
        case _:
            return ScriptFactory(quarantine, Quarantine(run_id, "bad" if request.name == "quarantine" else None))


def _withdraw(run_id: uuid.UUID, _principal: str) -> Script[int]:
    return len((yield Statement(WITHDRAW, {"run": str(run_id)})))


async def send(ledger: Ledger, request: Request) -> Outcome[Any]:
    """Try it on the async road."""
    found = _edge(request)
    return await (ledger.run(*found) if found is not None else ledger.script(_script(request)))


def send_sync(request: Request) -> Outcome[Any]:
    """Try it on Django's connection."""
    found = _edge(request)
    return run_once(*found) if found is not None else run_script(_script(request)())


def orders(count: int) -> Iterator[tuple[int, ...]]:
    """All orders in which so many requests may have happened."""
    return itertools.permutations(range(count))


def agree(
    model: Model, requests: list[Request], outcomes: list[Outcome[Any]], order: tuple[int, ...]
) -> tuple[list[bool], str | None]:
    """Move the model by these requests in this order.

    Returns:
        Which of them changed something, and where an outcome is not what the model says.
    """
    changed = [False] * len(requests)
    for place in order:
        request, outcome = requests[place], outcomes[place]
        if isinstance(outcome, Lost) and outcome.reason is Reason.BUSY and len(requests) > 1:
            continue
        wins = request.admission is not None or model.wins(request)
        if isinstance(outcome, Lost):
            if wins or model.repeated(request):
                return changed, f"{request} lost ({outcome.reason}) and should not"
            told = outcome.standing.status if outcome.standing is not None else None
            if len(requests) == 1 and told not in {None, model.runs[request.run_id].status}:
                return changed, f"{request} says that the Run is {told}"
            continue
        if not wins:
            if not (outcome.again and model.repeated(request)):
                return changed, f"{request} won ({outcome}) and should not"
            continue
        if outcome.again:
            return changed, f"{request} says that it had won before"
        changed[place] = True
        wanted, got = model.apply(request), _carried(outcome)
        if wanted is not None and got != wanted:
            return changed, f"{request} carries {got}, not {wanted}"
    return changed, None


def _carried(outcome: Won[Any]) -> Any:
    value = outcome.value
    match value:
        case Claimed():
            return ("claimed", value.claim_id, value.resume, value.snapshots is not None)
        case Recorded():
            return ("recorded", value.result, value.fresh)
        case Elected():
            return ("elected", value.seq)
        case Resumed():
            return value.seq
        case _:
            return value
