"""The ledger against a model of it: edges in random order, from several connections, alone and several at once.

The model is the table of `runs.states` put to work on a few Runs. After each step the outcome and every row must be
what the model says; of edges that went at the same time, what the model says for one order of them.

`LYCHD_MODEL=deep` tries many more sequences, and others each time.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from runs.ledger.ledger import Ledger
from runs.states import EDGES
from tests.support.ledger import LedgerDesk
from tests.support.ledger_model import MODELLED, Model, Request, Wish, agree, orders, request_for, send, send_sync

DEEP = os.environ.get("LYCHD_MODEL") == "deep"
PROFILE = settings(
    max_examples=500 if DEEP else 150,
    stateful_step_count=100 if DEEP else 60,
    derandomize=not DEEP,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
    print_blob=True,
)
# Plain numbers, whatever the ledger answers: what a number means is looked up in the model as it then stands.
WISHES = st.builds(
    Wish,
    run=st.integers(0, 2),
    edge=st.integers(0, 9999),
    lawful=st.booleans(),
    slip=st.integers(0, 15),
    owner=st.integers(0, 3),
)
VIOLATIONS = """
select r.id::text, 'more than one unsettled delivery' from runs_run r
where (select count(*) from runs_rundelivery d where d.run_id = r.id and d.state <> 'settled') > 1
union all
select r.id::text, 'wait columns' from runs_run r
where (r.status like 'awaiting\\_%%' and r.status <> 'awaiting_hardware')
    is distinct from (r.wait_kind is not null and r.wait_owner is not null and r.wait_since is not null)
   or num_nonnulls(r.wait_kind, r.wait_owner, r.wait_since) not in (0, 3)
union all
select r.id::text, 'finished_at' from runs_run r
where (r.status in ('done', 'failed', 'cancelled')) is distinct from (r.finished_at is not null)
union all
select r.id::text, 'an end with an open hop' from runs_run r join runs_rundelivery d on d.run_id = r.id
where r.status in ('done', 'failed', 'cancelled') and d.state <> 'settled'
union all
select r.id::text, 'a receipt that is not whole' from runs_run r
where (r.status = 'failed' and (r.error_code is null or r.error_message is null))
   or (r.status in ('cancelling', 'cancelled') and (r.cancelled_by is null or r.cancel_requested_at is null))
   or (r.quarantined_at is not null and r.quarantine_reason is null)
union all
select d.run_id::text, 'a claim that is not whole' from runs_rundelivery d
where (d.state = 'claimed' and (d.claim_id is null or d.boot_id is null or d.claimed_at is null))
   or (d.state = 'settled') is distinct from (d.settled_at is not null)
"""


class Stage:
    """What all sequences share: the desk, one loop, two Ledgers on it, and a count of what happened."""

    def __init__(self, desk: LedgerDesk, runner: asyncio.Runner) -> None:
        self.desk, self.runner = desk, runner
        self.ledgers = runner.run(self._open())
        self.won: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    async def _open(self) -> tuple[Ledger, Ledger]:
        return Ledger(self.desk.dsn), Ledger(self.desk.dsn)

    async def close(self) -> None:
        for ledger in self.ledgers:
            await ledger.close()

    def alone(self, place: int, request: Request) -> Any:
        return self.runner.run(send(self.ledgers[place], request))

    async def at_once(self, requests: list[Request]) -> list[Any]:
        return await asyncio.gather(
            *(send(self.ledgers[place % len(self.ledgers)], request) for place, request in enumerate(requests))
        )


@pytest.fixture
def stage(desk: LedgerDesk) -> Iterator[Stage]:
    desk.execute("create table model_owner (id uuid primary key, run_id uuid not null, status text not null)")
    with asyncio.Runner() as runner:
        stage = Stage(desk, runner)
        try:
            yield stage
        finally:
            runner.run(stage.close())
            desk.execute("drop table model_owner")


class Edges(RuleBasedStateMachine):
    """Three Runs, and what may be tried on them."""

    stage: Stage

    @initialize(held=st.lists(st.booleans(), min_size=3, max_size=3))
    def admit(self, held: list[bool]) -> None:
        desk = self.stage.desk
        self.model = Model(boot=uuid.uuid4())
        desk.take_slot(self.model.boot)
        for place, retains in enumerate(held):
            request = self.model.admission(desk.admission(retains=retains, boot_id=self.model.boot), place)
            self._compare([request], [self.stage.alone(0, request)])

    @rule(wish=WISHES, road=st.integers(0, 2))
    def one(self, wish: Wish, road: int) -> None:
        """One request, on one of three roads; it may not touch the other Runs, nor any if it loses."""
        request = self._request(wish)
        before = self.stage.desk.rows({*self.model.runs, request.run_id})
        outcome = send_sync(request) if road == 2 else self.stage.alone(road, request)
        after = self.stage.desk.rows({*self.model.runs, request.run_id})
        for run_id in self.model.runs:
            assert run_id == request.run_id or before[run_id] == after[run_id], (request, "touched another Run")
        changed = self._compare([request], [outcome])[0]
        # Set aside once more, it is for the newer reason.
        assert changed or before == after or request.name == "quarantine", (request, outcome)

    @rule(wishes=st.lists(WISHES, min_size=2, max_size=4), same=st.booleans())
    def at_once(self, wishes: list[Wish], same: bool) -> None:
        """Several requests at the same time on the connections of two Ledgers, for one Run or for any."""
        requests = [self._request(wish.on(wishes[0].run) if same else wish) for wish in wishes]
        self._compare(requests, self.stage.runner.run(self.stage.at_once(requests)))

    @rule(chance=st.integers(0, 5))
    def another_boot(self, chance: int) -> None:
        """Now and then another Vessel takes the slot: what the earlier one still sends in its name must lose."""
        if chance == 0:
            self.model.boot = self.model.id("boot")
            self.stage.desk.take_slot(self.model.boot)

    def teardown(self) -> None:
        found = self.stage.desk.execute(VIOLATIONS)
        assert found == [], found

    def _request(self, wish: Wish) -> Request:
        for sql, params in self.model.owner_moves(wish):
            self.stage.desk.connection.execute(sql, params)
        return request_for(self.model, wish, self.stage.desk.admission)

    def _compare(self, requests: list[Request], outcomes: list[Any]) -> list[bool]:
        """Bring the model to where the ledger is; which of the requests changed something."""
        stored = self.stage.desk.rows(sorted({*self.model.runs, *(request.run_id for request in requests)}))
        tried: list[str] = []
        for order in orders(len(requests)):
            model = self.model.copy()
            changed, doubt = agree(model, requests, outcomes, order)
            doubt = doubt or model.differs(stored)
            if doubt is None:
                self.model = model
                for request, won in zip(requests, changed, strict=True):
                    (self.stage.won if won else self.stage.lost)[request.name] += 1
                return changed
            tried.append(f"{[requests[place].name for place in order]}: {doubt}")
        raise AssertionError(
            "\n".join(["No order of these explains what the ledger did:", *map(str, outcomes), *tried])
        )


@pytest.mark.timeout(3600 if DEEP else 600)
@pytest.mark.contract("ADM-11", "CLM-4", "CLM-5", "CLM-6", "SET-3", "WAIT-2", "WAIT-5", "WAIT-12", "CAN-2", "CAN-4")
def test_whatever_order_the_edges_come_in_the_ledger_is_where_the_table_of_edges_says(stage: Stage) -> None:
    machine = type("Machine", (Edges,), {"stage": stage})
    run_state_machine_as_test(machine, settings=PROFILE)
    # A sequence that never leads to an edge proves nothing of it.
    assert set(stage.won) >= set(MODELLED), set(MODELLED) - set(stage.won)
    assert set(stage.lost) >= set(EDGES) | {"park", "resume"}, set(MODELLED) - set(stage.lost)


def test_the_model_knows_every_edge_of_the_table() -> None:
    assert set(EDGES) | {"park", "resume"} <= set(MODELLED)


def test_ids_of_the_model_do_not_repeat() -> None:
    model = Model(boot=uuid.uuid4())
    assert model.id("claim") != model.id("claim")
    assert model.copy().id("claim") != model.id("claim")
