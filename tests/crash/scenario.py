"""What is asked of the Vessel under fire, and the caller who asks: patient, and able to begin again after a death.

The caller watches the database itself, so that only its requests, and no polling, are statements of the Vessel.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psycopg

TERMINAL = frozenset({"done", "failed", "cancelled"})
PATIENCE = 40.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One submission and what becomes of it when nothing dies.

    Args:
        key: of the submission, under which its Run is found again.
        ends: the status it ends with; more than one where two requests race.
        verdicts: the answers to its questions, in their order; a question beyond them is never answered.
        cancel_at: it is cancelled as soon as it has this status; `any`: at once.
    """

    key: str
    pattern: str
    ends: frozenset[str] = frozenset({"done"})
    error: str | None = None
    verdicts: tuple[str, ...] = ()
    cancel_at: str | None = None
    session: uuid.UUID | None = None
    priority: int = 50


PLANS = (
    Plan("finish", "finish"),
    Plan("linger", "linger", frozenset({"cancelled"}), cancel_at="running"),
    Plan("again", "again", frozenset({"cancelled"}), cancel_at="running"),
    Plan("twice", "twice", verdicts=("grant", "deny")),
    Plan("fail", "fail", frozenset({"failed"}), error="node_failed"),
    Plan("replay", "replay", priority=10),
    Plan("mixed", "mixed"),
    Plan("in-session", "finish", session=uuid.UUID(int=7)),
    Plan("question", "question", verdicts=("grant",)),
    Plan("unanswered", "question", frozenset({"awaiting_consent"})),
    Plan("cancelled-parked", "question", frozenset({"cancelled"}), cancel_at="awaiting_consent"),
    Plan("cancelled-at-once", "replay", frozenset({"cancelled", "done"}), cancel_at="any"),
)

_RUNS = "select idempotency_key, id::text, status from runs_run"
_QUESTIONS = """
select r.idempotency_key, c.id::text, c.status, row_number() over (partition by c.run_id order by c.visit) - 1
from consents_consent c join runs_run r on r.id = c.run_id order by c.visit
"""
# Nothing moves any more: no Run on its way, nobody's job, and what follows an end has followed.
_RESTLESS = """
select 'run ' || idempotency_key || ' ' || status from runs_run
where status not in ('done', 'failed', 'cancelled', 'awaiting_consent')
union all
select 'job ' || key || ' ' || status from saq_jobs where status in ('queued', 'active', 'aborting')
union all
select 'end of ' || r.idempotency_key || ' not told' from runs_run r
where r.status in ('done', 'failed', 'cancelled')
  and not exists (select 1 from runs_step s where s.run_id = r.id and s.kind = 'done')
union all
select 'checkpoint of ' || r.idempotency_key || ' kept' from runs_run r join runs_checkpoint c on c.run_id = r.id
where r.status in ('done', 'failed', 'cancelled')
"""


class Died(Exception):
    """The Vessel is gone."""


@dataclass(slots=True)
class Caller:
    """Submits, answers and cancels; remembers what it was promised. Lives longer than any Vessel.

    `promised` maps a key to the id it was answered with, `verdicts` a Consent to the verdict that was acknowledged,
    `ended` a key to the status that an answer called its end.
    """

    eyes: psycopg.Connection[Any]
    promised: dict[str, str] = field(default_factory=dict[str, str])
    verdicts: dict[str, str] = field(default_factory=dict[str, str])
    ended: dict[str, str] = field(default_factory=dict[str, str])
    complaints: list[str] = field(default_factory=list[str])
    _cancelled: set[str] = field(default_factory=set[str])
    _asked: set[str] = field(default_factory=set[str])

    def work(self, client: httpx2.Client, alive: Callable[[], bool]) -> None:
        """Ask for everything and answer every question until nothing moves any more.

        Raises:
            Died: the Vessel ended meanwhile.
        """
        self._asked.clear()
        ask = _Asking(client, alive)
        for plan in PLANS:
            self._submit(ask, plan)
            if plan.cancel_at == "any" or plan.key in self._cancelled:
                self._cancel(ask, plan)
        deadline = time.monotonic() + PATIENCE
        while True:
            if not alive():
                raise Died
            moved = self._attend(ask)
            restless = self._restless()
            if not restless and not moved:
                return
            if time.monotonic() > deadline:
                self.complaints.append(f"not quiet after {PATIENCE:g} s: {', '.join(restless)}")
                return
            time.sleep(0.01)

    def _submit(self, ask: _Asking, plan: Plan) -> None:
        body = {"pattern": plan.pattern, "input": {}, "priority": plan.priority}
        if plan.session is not None:
            body["session"] = str(plan.session)
        code, answer = ask("/runs", body, {"Idempotency-Key": plan.key})
        if code not in {200, 201}:
            # The ledger may refuse an admission that died half-way; it may not forget one that it acknowledged.
            self.complaints.append(f"submission {plan.key} answered {code}: {answer}")
            return
        before = self.promised.setdefault(plan.key, answer["id"])
        if before != answer["id"]:
            self.complaints.append(f"submission {plan.key} was Run {before} and now is {answer['id']}")
        if answer["status"] in TERMINAL:
            self.ended.setdefault(plan.key, answer["status"])

    def _attend(self, ask: _Asking) -> bool:
        """Do what the plans ask for as things stand. Returns whether anything was asked."""
        before = len(self._asked)
        for key, _, status in self.eyes.execute(_RUNS).fetchall():
            plan = next(each for each in PLANS if each.key == key)
            if status == plan.cancel_at:
                self._cancel(ask, plan)
        for key, consent, status, number in self.eyes.execute(_QUESTIONS).fetchall():
            plan = next(each for each in PLANS if each.key == key)
            # One that was acknowledged is asked again in another life, and must be answered the same.
            if number < len(plan.verdicts) and (status == "pending" or consent in self.verdicts):
                self._decide(ask, consent, plan.verdicts[number])
        return len(self._asked) > before

    def _decide(self, ask: _Asking, consent: str, verdict: str) -> None:
        if consent in self._asked:
            return
        code, answer = ask(f"/consents/{consent}/decision", {"verdict": verdict, "comment": "as planned"})
        self._asked.add(consent)
        if code == 200:
            self.verdicts[consent] = verdict
        else:
            self.complaints.append(f"verdict {verdict} on {consent} answered {code}: {answer}")

    def _cancel(self, ask: _Asking, plan: Plan) -> None:
        if f"cancel {plan.key}" in self._asked or plan.key not in self.promised:
            return
        self._cancelled.add(plan.key)
        code, answer = ask(f"/runs/{self.promised[plan.key]}/cancel", None)
        self._asked.add(f"cancel {plan.key}")
        if code not in {200, 202}:
            self.complaints.append(f"cancel of {plan.key} answered {code}: {answer}")
        elif answer["status"] in TERMINAL:
            self.ended.setdefault(plan.key, answer["status"])

    def _restless(self) -> list[str]:
        missing = [f"no run {plan.key}" for plan in PLANS if plan.key not in self.promised]
        return missing + [what for (what,) in self.eyes.execute(_RESTLESS).fetchall()]


@dataclass(frozen=True, slots=True)
class _Asking:
    """One request at a time; a connection that breaks is the end of the Vessel, or a fault."""

    client: httpx2.Client
    alive: Callable[[], bool]

    def __call__(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        try:
            answer = self.client.post(f"/api/v1{path}", json=body, headers=headers)
        except httpx2.TransportError as error:
            deadline = time.monotonic() + 5
            while self.alive():
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            raise Died from error
        return answer.status_code, answer.json()
