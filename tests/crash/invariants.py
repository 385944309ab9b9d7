"""What must hold: at the moment of a death for what was promised, and after the quiet for everything.

`Wreck` is what the database holds between two lives. From it follows, by ruling 11 and without asking the product,
which Runs may be lost to the death and which must go on; `judge` holds the end against that.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.crash.scenario import PLANS, TERMINAL, Caller, Plan

LOST, UNRESOLVED = "ghoul_lost", "context_unresolved"
# Written down here once more, so that the judge does not believe what it judges.
NODES: dict[str, tuple[str, ...]] = {
    "finish": ("one", "two", "three"),
    "fail": ("begin", "break_"),
    "replay": ("gather", "store"),
    "mixed": ("look", "pay", "tell"),
    "twice": ("ask", "act", "close"),
    "question": ("wonder", "answered"),
    "linger": ("stay",),
    "again": ("stay_again",),
}
REPLAY_SAFE = frozenset({"gather", "store", "look", "tell", "wonder", "answered", "stay_again"})
DECIDED = {"grant": "granted", "deny": "denied"}

_WRECK = """
select r.id::text, r.idempotency_key, r.status, r.enqueue_seq, d.state, d.resume, c.snapshots
from runs_run r
left join runs_rundelivery d on d.run_id = r.id and d.enqueue_seq = r.enqueue_seq
left join runs_checkpoint c on c.run_id = r.id
"""
_JOURNAL = "select run_id::text, visit, name, occurrence, result from runs_journalentry"
_CONSENTS = "select id::text, run_id::text, status from consents_consent"


@dataclass(frozen=True, slots=True)
class Wreck:
    """The ledger after a death: who was where, and which steps had been recorded, as (run, visit, name) → result."""

    runs: dict[str, dict[str, Any]]
    steps: dict[tuple[str, int, str], Any]
    consents: dict[str, str]

    @staticmethod
    def of(eyes: psycopg.Connection[Any]) -> Wreck:
        """As it is now; nobody else may be connected."""
        names = ("id", "key", "status", "hop", "delivery", "resume", "snapshots")
        runs: dict[str, dict[str, Any]] = {row[1]: dict(zip(names, row, strict=True)) for row in eyes.execute(_WRECK)}
        steps = {(run, visit, name): result for run, visit, name, _, result in eyes.execute(_JOURNAL)}
        return Wreck(runs, steps, {consent: status for consent, _, status in eyes.execute(_CONSENTS)})

    @property
    def lost(self) -> set[str]:
        """Keys of the Runs that nothing declared brings back: they must become FAILED, all others must not."""
        return {key for key, run in self.runs.items() if run["status"] == "running" and not self._returns(run)}

    @property
    def unresolved(self) -> set[str]:
        """Keys of the Runs whose admission was held for a context that nobody keeps any more (REC-10)."""
        return {key for key, run in self.runs.items() if run["status"] == "queued" and run["delivery"] == "held"}

    def _returns(self, run: dict[str, Any]) -> bool:
        plan = next(plan for plan in PLANS if plan.key == run["key"])
        if not run["snapshots"]:
            return NODES[plan.pattern][0] in REPLAY_SAFE and not run["resume"]
        boundary = run["snapshots"][0]
        if boundary["wait"] is not None and boundary["hop"] == run["hop"]:
            return self.consents.get(boundary["wait"]["owner"], "cancelled") != "cancelled"
        return boundary["node"] in REPLAY_SAFE


def broken_promises(caller: Caller, wreck: Wreck) -> Iterator[str]:
    """What a caller had been answered and the ledger does not hold."""
    for key, run_id in caller.promised.items():
        if wreck.runs.get(key, {}).get("id") != run_id:
            yield f"submission {key} was answered with Run {run_id}, which is not there"
    for consent, verdict in caller.verdicts.items():
        if wreck.consents.get(consent) != DECIDED[verdict]:
            yield f"{verdict} on {consent} was answered, and it is {wreck.consents.get(consent)}"
    for key, status in caller.ended.items():
        if wreck.runs.get(key, {}).get("status") != status:
            yield f"{key} was answered to be {status}, and is {wreck.runs.get(key, {}).get('status')}"


_FACTS = """
select r.idempotency_key, r.status, r.error_code, r.output, r.id::text,
    (select count(*) from runs_rundelivery d where d.run_id = r.id and d.state <> 'settled'),
    (select array_agg(s.data ->> 'status') from runs_step s where s.run_id = r.id and s.kind = 'done'),
    exists (select 1 from runs_checkpoint c where c.run_id = r.id),
    exists (select 1 from runs_journalentry j where j.run_id = r.id),
    (select c.status from consents_consent c where c.id = r.wait_owner and c.run_id = r.id)
from runs_run r
"""
_RECEIPTS = """
select r.idempotency_key, r.status, c.status, c.decided_by, c.decided_at, c.surface, length(c.digest),
    (select array_agg(v.name || ' ' || v.granted || ' ' || (v.digest = c.digest)) from consents_consentvote v
     where v.consent_id = c.id)
from consents_consent c join runs_run r on r.id = c.run_id
"""
_JOBS = "select key, status from saq_jobs where status in ('queued', 'active', 'aborting')"
_TURNS = """
select t.status, t.reply, r.status, r.output, r.error_code
from runs_sessionturn t join runs_run r on r.id = t.run_id
"""


def judge(eyes: psycopg.Connection[Any], caller: Caller, wrecks: list[Wreck], effects: Path) -> list[str]:
    """Every violation, in words, once nothing moves any more."""
    lines = [json.loads(line) for line in effects.read_text().splitlines()] if effects.exists() else []
    runs = {row[0]: row for row in eyes.execute(_FACTS)}
    return [
        *caller.complaints,
        *broken_promises(caller, Wreck.of(eyes)),
        *_ends(runs, wrecks),
        *_receipts(eyes, runs),
        *(f"the broker still has {key} {status}" for key, status in eyes.execute(_JOBS)),
        *_effects(runs, wrecks, lines),
    ]


def _ends(runs: dict[str, Any], wrecks: list[Wreck]) -> Iterator[str]:
    lost = set[str]().union(*(wreck.lost for wreck in wrecks))
    unresolved = set[str]().union(*(wreck.unresolved for wreck in wrecks))
    for plan in PLANS:
        if plan.key not in runs:
            yield f"{plan.key} is lost"
            continue
        _, status, error, output, _, unsettled, told, checkpoint, journal, owner = runs[plan.key]
        yield from _end(plan, status, error, output, lost, unresolved)
        if status in TERMINAL:
            if unsettled:
                yield f"{plan.key} is {status} with {unsettled} unsettled deliveries"
            if told != [status]:
                yield f"{plan.key} is {status}, and its terminal Steps say {told}"
            if checkpoint or journal:
                yield f"{plan.key} is {status} and keeps a checkpoint or a journal"
        elif status == "awaiting_consent":
            if unsettled or told or owner != "pending" or not checkpoint:
                yield f"{plan.key} is parked wrongly: {unsettled=} {told=} {owner=} {checkpoint=}"
        else:
            yield f"{plan.key} is stuck as {status}"


def _end(
    plan: Plan, status: str, error: str | None, output: Any, lost: set[str], unresolved: set[str]
) -> Iterator[str]:
    if plan.key in lost:
        expected = {("failed", LOST)}
    elif plan.key in unresolved:
        expected = {("failed", UNRESOLVED)}
    else:
        expected = {(each, plan.error) for each in plan.ends}
    if plan.cancel_at is not None and plan.key in lost:
        # Nobody says that a cancel which was on its way came too late.
        expected |= {("cancelled", None)}
    if (status, error) not in expected:
        yield f"{plan.key} is {status} ({error}), expected {sorted(map(str, expected))}"
    if status == "done" and output["verdicts"] != [DECIDED[verdict] for verdict in plan.verdicts]:
        yield f"{plan.key} is done with the verdicts {output['verdicts']}"


def _receipts(eyes: psycopg.Connection[Any], runs: dict[str, Any]) -> Iterator[str]:
    for key, run, status, by, at, surface, digest, votes in eyes.execute(_RECEIPTS):
        if digest != 64:
            yield f"a Consent of {key} has no whole digest"
        if status == "pending":
            if run in TERMINAL:
                yield f"{key} is {run} and its Consent is still pending"
            continue
        if not by or at is None or not surface:
            yield f"the receipt of {key} is not whole: {status=} {by=} {at=} {surface=}"
        expected = {"granted": [f"{by} true true"], "denied": [f"{by} false true"]}.get(status)
        if votes != expected:
            yield f"a Consent of {key} is {status} with the votes {votes}, expected {expected}"
    for turn, reply, run, output, error in eyes.execute(_TURNS):
        if turn != (run if run in TERMINAL else "open"):
            yield f"the turn of a session's Run that is {run} is {turn}"
        if not _answers(run, reply, output, error):
            yield f"the turn of a session's Run that is {run} ({error}) was answered with {reply}"


def _answers(run: str, reply: Any, output: Any, error: str | None) -> bool:
    if run == "done":
        return reply == output
    # Only a worker's failure answers; a Run that was refused before any worker had it leaves no reply (SET-11).
    if run == "failed" and error != UNRESOLVED:
        return reply is not None and reply["error"] == error
    return reply is None


def _effects(runs: dict[str, Any], wrecks: list[Wreck], lines: list[dict[str, Any]]) -> Iterator[str]:
    names = {row[4]: key for key, row in runs.items()}
    patterns = {plan.key: plan.pattern for plan in PLANS}
    entered = Counter((line["run"], line["node"]) for line in lines if line["what"] == "entered")
    for (run, node), times in entered.items():
        if run not in names:
            yield f"node {node} ran for Run {run}, which does not exist"
        elif times > 1 and node not in REPLAY_SAFE:
            yield f"node {node} of {names[run]} is not replay-safe and ran {times} times"
        elif times > 1 + len(wrecks):
            yield f"node {node} of {names[run]} ran {times} times over {len(wrecks)} deaths"
    for key, row in runs.items():
        missing = [node for node in NODES[patterns[key]] if not entered[row[4], node]]
        if row[1] == "done" and missing:
            yield f"{key} is done and never entered {missing}"
    yield from _steps(names, wrecks, lines)


def _steps(names: dict[str, str], wrecks: list[Wreck], lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """BYD-4: one result a step, and never another run of what was recorded."""
    ran: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    saw: dict[tuple[str, int, str], set[str]] = defaultdict(set)
    effect_keys: dict[tuple[str, int, str], set[str]] = defaultdict(set)
    for line in lines:
        if "step" not in line:
            continue
        place = line["run"], line["visit"], line["step"]
        effect_keys[place].add(line["key"])
        if line["what"] == "ran":
            ran[place].append(line)
        else:
            saw[place].add(line["value"])
    for place, keys in effect_keys.items():
        what = f"step {place[2]} at visit {place[1]} of {names.get(place[0])}"
        values = [line["value"] for line in ran[place]]
        recorded = {wreck.steps[place] for wreck in wrecks if place in wreck.steps}
        if len(keys) != 1:
            yield f"{what} had the effect keys {keys}"
        if len(saw[place]) > 1 or not saw[place] <= set(values):
            yield f"{what} was seen as {saw[place]}, its function gave {values}"
        if len({line["pid"] for line in ran[place]}) != len(values):
            yield f"{what} ran twice in one life"
        if recorded and (recorded != {values[-1]} or not saw[place] <= recorded):
            yield f"{what} was recorded as {recorded}, its function gave {values}, seen was {saw[place]}"
        if saw[place] and saw[place] != {values[-1]}:
            yield f"{what} ran again after its result had been seen: {values}, seen was {saw[place]}"
