"""Many requests in one statement: each answered for itself, once a Run, within bounds, whoever stands beside it."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from runs import ids
from runs.ledger.admit import ADMIT
from runs.ledger.claim import CLAIM, Claim
from runs.ledger.coalescer import Coalescer, SlowRoad
from runs.ledger.connection import LedgerConnection
from runs.ledger.ledger import Ledger
from runs.ledger.outcomes import Lost, Reason, Won
from runs.ledger.release import RELEASE, Release
from runs.ledger.settle import SETTLE, Settlement
from runs.states import DeliveryState, RunStatus
from tests.support.ledger import CASES, Hop, LedgerDesk

S, D = RunStatus, DeliveryState


def ready_for(desk: LedgerDesk, name: str) -> Hop:
    """A Run that this edge may change."""
    match name:
        case "release" | "refuse":
            return desk.a_run(delivery=D.HELD)
        case "reclaim" | "checkpoint" | "journal" | "enter_hardware" | "settle_done" | "settle_failed" | "give_back":
            return desk.a_run(status=S.RUNNING)
        case "finish_cancel":
            return desk.a_run(status=S.CANCELLING)
        case "leave_hardware":
            return desk.a_run(status=S.AWAITING_HARDWARE)
        case "discard_checkpoint":
            return desk.a_run(status=S.DONE)
        case _:
            return desk.a_run(delivery=D.PENDING)


@pytest.mark.contract("CLM-5")
@pytest.mark.parametrize("name", CASES)
def test_the_same_request_twice_in_one_statement_wins_exactly_once(desk: LedgerDesk, name: str) -> None:
    twice, once = ready_for(desk, name), ready_for(desk, name)
    case = CASES[name]
    bystander = ready_for(desk, name)
    won = desk.statement(case.edge, case.request(twice), case.request(twice), case.request(bystander))
    assert sorted(found[0] for found in won) == [1, 3]
    assert len(desk.statement(case.edge, case.request(once))) == 1
    nameless: list[str] = []
    for hop in (twice, once):
        text = json.dumps(desk.row(hop).timeless(), default=str)
        nameless.append(text.replace(str(hop.run_id), "run").replace(str(hop.claim_id), "claim"))
    assert nameless[0] == nameless[1]


@pytest.mark.contract("ADM-3")
def test_the_same_admission_twice_in_one_statement_makes_one_run_with_one_delivery(desk: LedgerDesk) -> None:
    asked = desk.admission()
    other = replace(asked, input_json='{"x":2}')
    assert [found[0] for found in desk.statement(ADMIT, asked, other)] == [1]
    assert desk.execute("select input->>'x' from runs_run") == [("1",)]
    assert desk.value("select count(*) from runs_rundelivery") == 1


@pytest.mark.contract("CLM-4", "CLM-5")
def test_two_claimants_of_one_hop_in_one_statement_leave_it_to_the_first(desk: LedgerDesk) -> None:
    hop = desk.a_run()
    first, second = uuid.uuid4(), uuid.uuid4()
    requests = [Claim(hop.run_id, 0, claim, desk.boot) for claim in (first, second)]
    assert [found[0] for found in desk.statement(CLAIM, *requests)] == [1]
    assert desk.row(hop).deliveries[0]["claim_id"] == str(first)


@pytest.mark.contract("CLM-5")
async def test_a_second_request_for_a_run_waits_for_the_next_statement(desk: LedgerDesk, ledger: Ledger) -> None:
    hop, other = desk.a_run(), desk.a_run()
    claims = [Claim(hop.run_id, 0, uuid.uuid4(), desk.boot) for _ in range(3)]
    outcomes = await asyncio.gather(
        *(ledger.run(CLAIM, claim) for claim in claims),
        ledger.run(CLAIM, Claim(other.run_id, 0, uuid.uuid4(), desk.boot)),
    )
    assert [type(outcome) for outcome in outcomes] == [Won, Lost, Lost, Won]
    assert {outcome.reason for outcome in outcomes if isinstance(outcome, Lost)} == {Reason.CLAIMED}
    assert next((use.requests, use.statements) for use in ledger.uses() if use.name == "claim") == (4, 3)


class Counting(LedgerConnection):
    """Remembers how many rows and bytes went together."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, "counting")
        self.batches: list[tuple[int, int]] = []

    async def fetch(self, sql: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        text = str(params["batch"])
        self.batches.append((len(json.loads(text)), len(text.encode())))
        return await super().fetch(sql, params)


async def admitted(desk: LedgerDesk, inputs: list[str], *, rows: int, size: int) -> list[tuple[int, int]]:
    own = Counting(desk.dsn)
    slow = SlowRoad(LedgerConnection(desk.dsn, "slow"))
    coalescer = Coalescer(ADMIT, own, slow, rows=rows, size=size)
    outcomes = await asyncio.gather(*(coalescer.submit(desk.admission(input_json=text)) for text in inputs))
    await coalescer.close()
    await slow.close()
    assert all(isinstance(outcome, Won) for outcome in outcomes)
    return own.batches


async def test_a_batch_is_bounded_in_rows_and_in_bytes_and_a_large_row_goes_alone(desk: LedgerDesk) -> None:
    batches = await admitted(desk, ["1"] * 25, rows=10, size=1024 * 1024)
    assert [rows for rows, _ in batches] == [10, 10, 5]
    large = json.dumps("x" * 50_000)
    batches = await admitted(desk, ["1", "2", large, "3", "4"], rows=10, size=20_000)
    assert [rows for rows, _ in batches] == [2, 1, 2]


async def test_the_bytes_of_a_batch_are_bytes_and_not_characters(desk: LedgerDesk) -> None:
    wide = json.dumps("\N{GRINNING FACE}" * 2_000, ensure_ascii=False)
    batches = await admitted(desk, [wide] * 6, rows=10, size=20_000)
    assert max(size for _, size in batches) <= 20_000
    assert len(batches) == 3


async def test_a_row_that_the_database_refuses_spoils_nothing_but_itself(desk: LedgerDesk, ledger: Ledger) -> None:
    hops = [desk.a_run(status=S.RUNNING) for _ in range(5)]
    outputs = ['{"n":1}'] * 5
    # What the door would have refused: jsonb holds no NUL, and this is no JSON at all.
    outputs[1], outputs[3] = '"\\u0000"', '{"n":'
    outcomes = await asyncio.gather(
        *(
            ledger.run(SETTLE, Settlement(hop.run_id, 0, hop.claim_id, "done", output_json=output))
            for hop, output in zip(hops, outputs, strict=True)
        ),
        return_exceptions=True,
    )
    assert [isinstance(outcome, Won) for outcome in outcomes] == [True, False, True, False, True]
    assert isinstance(outcomes[1], psycopg.errors.UntranslatableCharacter)
    assert isinstance(outcomes[3], psycopg.errors.InvalidTextRepresentation)
    assert [desk.row(hop).run["status"] for hop in hops] == ["done", "running", "done", "running", "done"]


async def claims_of_a_bad_and_a_good_row(desk: LedgerDesk, ledger: Ledger, bad: Hop) -> None:
    good = desk.a_run()
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(
            *(ledger.run(CLAIM, Claim(hop.run_id, 0, hop.claim_id, desk.boot)) for hop in (bad, good)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], ValueError)
        assert isinstance(outcomes[1], Won)
        late = desk.a_run()
        assert isinstance(await ledger.run(CLAIM, Claim(late.run_id, 0, late.claim_id, desk.boot)), Won)


async def test_a_winner_that_cannot_be_read_fails_its_own_caller_and_hangs_nobody(
    desk: LedgerDesk, ledger: Ledger
) -> None:
    bad = desk.a_run()
    # A number that jsonb holds and Python refuses to read.
    desk.execute("update runs_run set input = '1e5000' where id = %s", bad.run_id)
    await claims_of_a_bad_and_a_good_row(desk, ledger, bad)


async def test_a_loser_that_cannot_be_read_fails_its_own_caller_and_hangs_nobody(
    desk: LedgerDesk, ledger: Ledger
) -> None:
    with desk.without_check("runs_run_status"):
        bad = desk.a_run()
        desk.execute("update runs_run set status = 'unheard_of' where id = %s", bad.run_id)
        await claims_of_a_bad_and_a_good_row(desk, ledger, bad)


@pytest.mark.contract("SET-1")
@pytest.mark.parametrize("name", ["settle_done", "claim", "release", "rotate"])
async def test_the_edge_of_a_cancelled_caller_completes(desk: LedgerDesk, ledger: Ledger, name: str) -> None:
    case, hop = CASES[name], ready_for(desk, name)
    before = desk.row(hop)

    async def caller() -> None:
        await ledger.run(case.edge, case.request(hop))

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ledger.close()
    assert desk.row(hop) != before


async def test_an_edge_whose_caller_went_away_leaves_no_noise_when_it_fails(desk: LedgerDesk, ledger: Ledger) -> None:
    noise: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: noise.append(context))
    hop = desk.a_run(status=S.RUNNING)
    refused = ledger.run(SETTLE, Settlement(hop.run_id, 0, hop.claim_id, "done", output_json='"\\u0000"'))
    late = ledger.run(RELEASE, Release(ids.mint(), 0))
    for waiter in (refused, late):
        task = asyncio.ensure_future(waiter)
        await asyncio.sleep(0)
        task.cancel()
    await ledger.close()
    assert noise == []
