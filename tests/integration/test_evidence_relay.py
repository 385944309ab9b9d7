"""Evidence that could not be written at a Run's end is written while the Vessel lives."""

from __future__ import annotations

import pytest

from runs.recovery.custody import Patience
from runs.recovery.evidence import EvidenceRelay
from tests.support.vessel_parts import Parts

pytest_plugins = ["tests.support.vessel_parts_fixtures"]


def relay_of(parts: Parts) -> EvidenceRelay:
    return EvidenceRelay(parts.dead.aftermath, parts.evidence, patience=Patience(clock=iter(range(10**6)).__next__))


@pytest.mark.contract("EVT-12", "SET-5")
async def test_the_missing_end_of_a_run_is_written_as_soon_as_it_can_be(parts: Parts) -> None:
    relay = relay_of(parts)
    async with parts.refusing("runs_step", "new.kind = 'done'"):
        run_id = await parts.carried()
        assert (await parts.run(run_id))["status"] == "done"
        assert parts.evidence.unwritten == (run_id,)
        await relay.tick()
        assert (await parts.ends(run_id), relay.errors) == ([], 1)
    for _ in range(5):
        await relay.tick()
    assert await parts.ends(run_id) == ["done"]
    assert (relay.repaired, parts.evidence.unwritten) == (1, ())


@pytest.mark.contract("EVT-17")
async def test_an_end_that_says_something_else_is_left_as_it_is_and_told_once(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    relay = relay_of(parts)
    async with parts.refusing("runs_step", "new.kind = 'done'"):
        run_id = await parts.carried()
    await parts.rows(
        "insert into runs_step (id, run_id, tenant, epoch, seq, tokens_before, kind, data, meta, at)"
        " values (gen_random_uuid(), %s, 'default', 'e', 900, 0, 'done', '{\"status\": \"failed\"}', '{}', now())",
        run_id,
    )
    for _ in range(3):
        await relay.tick()
    assert await parts.ends(run_id) == ["failed"]
    assert (relay.repaired, relay.errors, parts.evidence.unwritten) == (0, 1, ())
