"""A bounded sample of the crash sweep (`make crash` does all of it), and a proof that the judge sees what is wrong."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tests.crash.harness import Template, Verdict, attempt
from tests.crash.sweep import NEVER, at, spread, template

# Vessels beside Vessels on two cores would only wait for each other.
pytestmark = pytest.mark.xdist_group("crash")

POINTS = 9
TWICE = 2


@pytest.fixture(scope="module")
def made() -> Generator[Template]:
    with template() as ours:
        yield ours


@pytest.fixture(scope="module")
def unharmed(made: Template) -> Verdict:
    """The scenario from its first statement to its last, with nobody killed."""
    return attempt(made, NEVER)


def test_the_scenario_ends_as_planned_when_nothing_dies(unharmed: Verdict) -> None:
    assert unharmed.violations == []
    assert unharmed.killed == 0


def test_the_statements_of_every_pool_are_counted(unharmed: Verdict) -> None:
    pools = " ".join(unharmed.pools)
    for name in ("lychd django", "lychd guard", "lychd lane", "lychd ledger", "lychd publication", "lychd reads"):
        assert name in pools


@pytest.mark.contract("BYD-3", "BYD-4", "REC-1", "REC-23", "REC-26", "TOP-11")
@pytest.mark.parametrize("place", range(POINTS))
def test_a_vessel_killed_at_a_statement_loses_nothing_and_repeats_nothing(
    made: Template, unharmed: Verdict, place: int
) -> None:
    verdict = attempt(made, *at(spread(POINTS, unharmed.statements)[place]))
    assert verdict.killed == 1
    assert verdict.violations == [], str(verdict)


@pytest.mark.contract("BYD-3", "BYD-4", "REC-1", "REC-23", "REC-26")
@pytest.mark.parametrize("place", range(TWICE))
def test_a_vessel_killed_again_while_it_recovers_loses_nothing_and_repeats_nothing(
    made: Template, unharmed: Verdict, place: int
) -> None:
    verdict = attempt(made, *at(spread(TWICE, unharmed.statements)[place], again=True))
    assert verdict.killed == 2
    assert verdict.violations == [], str(verdict)


# Each breaks one promise, as a faulty Vessel might have.
SPOILING: tuple[LiteralString, ...] = (
    "delete from runs_step where kind = 'done' and run_id = (select id from runs_run where idempotency_key = 'finish')",
    """update runs_rundelivery set state = 'published', settled_at = null
    where run_id = (select id from runs_run where idempotency_key = 'in-session')""",
    "update saq_jobs set status = 'active' where key = (select min(key) from saq_jobs)",
    """delete from consents_consentvote v using consents_consent c, runs_run r
    where c.id = v.consent_id and r.id = c.run_id and r.idempotency_key = 'question'""",
    "update runs_run set error_code = 'ghoul_lost' where idempotency_key = 'fail'",
    """insert into runs_checkpoint (run_id, tenant, enqueue_seq, claim_id, snapshots, created_at, updated_at)
    select id, tenant, enqueue_seq, gen_random_uuid(), '[]', now(), now() from runs_run
    where idempotency_key = 'replay'""",
    """update consents_consent set status = 'cancelled', decided_at = now(), decided_by = 'x', surface = 'rest'
    where run_id = (select id from runs_run where idempotency_key = 'unanswered')""",
)


def spoil(eyes: psycopg.Connection[Any], folder: Path) -> None:
    """Break one promise of each kind."""
    effects = folder / "effects"
    lines = [json.loads(line) for line in effects.read_text().splitlines()]
    again = next(line for line in lines if line["what"] == "entered" and line["node"] == "pay")
    other = next(line for line in lines if line.get("step") == "credit" and line["what"] == "ran") | {"value": "other"}
    with effects.open("a") as out:
        out.writelines(f"{json.dumps(line)}\n" for line in (again, other))
    for statement in SPOILING:
        eyes.execute(statement)


def test_the_judge_sees_each_kind_of_broken_promise(made: Template) -> None:
    found = attempt(made, NEVER, before_judging=spoil).violations
    for words in (
        "node pay of mixed is not replay-safe and ran 2 times",
        "ran twice in one life",
        "finish is done, and its terminal Steps say None",
        "in-session is done with 1 unsettled deliveries",
        "the broker still has run:",
        "a Consent of question is granted with the votes None",
        "fail is failed (ghoul_lost), expected",
        "replay is done and keeps a checkpoint",
        "unanswered is parked wrongly",
    ):
        assert any(words in each for each in found), (words, found)
