"""(g) Consents: from the commit of a verdict to the resumed node; what 10,000 parked Runs cost; 500 grants at once."""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from bench import patterns
from bench.common import CALLER, percentiles, resident, vessel_here
from consents.deciding import KIND, decide_here
from consents.decisions import DECIDE, Vote, Voter, decide
from lychd.graph import Vessel
from runs import ids
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.resume import Resume, resume
from runs.submission import Submission

# Brings a Run back whose Consent is granted.
type Back = Callable[[Vessel, uuid.UUID, uuid.UUID], Awaitable[None]]

ASKED = Submission("bench_gate", {})
SINGLES = 300
WARM = 30
AT_ONCE = 500
SUBMITTERS = 32
USER = """
insert into sigils_user (id, username, password, is_superuser, is_staff, is_active, first_name, last_name, email,
    date_joined)
values (%s, %s, '!', false, false, true, '', '', '', now())
"""


async def measure(parked: int) -> dict[str, Any]:
    """All figures of this part."""
    async with vessel_here() as vessel:
        voter = await _voter(vessel)
        here = [await _timed(vessel, voter, _on_the_vessel) for _ in range(WARM + SINGLES)][WARM:]
        surface = Ledger(vessel.conninfo)
        elsewhere = await _elsewhere(vessel, voter, surface)
        await surface.close()
        return {
            "return": percentiles(here),
            "return_elsewhere": percentiles(elsewhere),
            "parked": await _memory(vessel, parked),
            "at_once": await _at_once(vessel, voter),
        }


async def _voter(vessel: Vessel) -> Voter:
    name = f"bench {uuid.uuid4().hex[:8]}"
    user = ids.mint()
    async with await psycopg.AsyncConnection.connect(vessel.conninfo, autocommit=True) as connection:
        await connection.execute(USER, (user, name))
    return Voter(user, name, frozenset({CALLER.tenant}), frozenset({DECIDE}), frozenset())


async def _parked(vessel: Vessel) -> uuid.UUID:
    """A Run that waits."""
    run_id = (await vessel.engine.submit(CALLER, ASKED)).run_id
    await _until(vessel, [run_id])
    return run_id


async def _until(vessel: Vessel, runs: list[uuid.UUID], status: str = "awaiting_consent") -> None:
    while True:
        found = await vessel.reads.fetch_one(
            "select count(*) from runs_run where id = any(%(runs)s::uuid[]) and status = %(status)s::text",
            {"runs": [str(run) for run in runs], "status": status},
        )
        if found is not None and found[0] == len(runs):
            return
        # Asking about thousands costs what is measured.
        await asyncio.sleep(0.005 if len(runs) < 100 else 0.25)


async def _timed(vessel: Vessel, voter: Voter, back: Back) -> float:
    """Seconds from the moment at which the committed verdict is known to the first line of the resumed node."""
    run_id = await _parked(vessel)
    consent_id = ids.owner_id(run_id, 0, KIND.name)
    entered = patterns.entered[run_id] = asyncio.get_running_loop().create_future()
    await vessel.ledger.script(ScriptFactory[Any](decide, voter, Vote(consent_id, True, "code")))
    committed = time.perf_counter()
    await back(vessel, run_id, consent_id)
    at = await asyncio.wait_for(entered, 30)
    del patterns.entered[run_id]
    await _until(vessel, [run_id], "done")
    return at - committed


async def _on_the_vessel(vessel: Vessel, run_id: uuid.UUID, consent_id: uuid.UUID) -> None:
    await vessel.engine.resume(KIND, run_id, consent_id)


async def _elsewhere(vessel: Vessel, voter: Voter, surface: Ledger) -> list[float]:
    """The same for a surface without a broker, as the admin: it leaves a word in its transaction."""

    async def back(_: Vessel, run_id: uuid.UUID, consent_id: uuid.UUID) -> None:
        request = Resume(run_id, KIND.status, KIND.name, consent_id, KIND.resume_proof)
        await surface.script(ScriptFactory[Any](resume, request))

    return [await _timed(vessel, voter, back) for _ in range(WARM + SINGLES)][WARM:]


async def _memory(vessel: Vessel, parked: int) -> dict[str, Any]:
    """Growth of the process, its tasks and connections, by that many Runs that are parked at the same time."""
    await _park_many(vessel, 200)
    await _rest(vessel)
    memory, tasks, connections = resident(), len(asyncio.all_tasks()), await _connections(vessel)
    began = time.perf_counter()
    await _park_many(vessel, parked)
    seconds = time.perf_counter() - began
    await _rest(vessel)
    return {
        "runs": parked,
        "per_second": parked / seconds,
        "mb": (resident() - memory) / 1024 / 1024,
        "tasks": len(asyncio.all_tasks()) - tasks,
        "connections": await _connections(vessel) - connections,
    }


async def _park_many(vessel: Vessel, count: int) -> list[uuid.UUID]:
    numbers = iter(range(count))
    runs: list[uuid.UUID] = []

    async def submit() -> None:
        for _ in numbers:
            submitted = await vessel.engine.submit(CALLER, ASKED)
            runs.append(submitted.run_id)

    await asyncio.gather(*(submit() for _ in range(SUBMITTERS)))
    await _until(vessel, runs)
    return runs


async def _rest(vessel: Vessel) -> None:
    await vessel.evidence.drain()
    await asyncio.sleep(1)
    gc.collect()


async def _connections(vessel: Vessel) -> int:
    found = await vessel.reads.fetch_one(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'lychd %%'",
        {},
    )
    return found[0] if found else 0


async def _at_once(vessel: Vessel, voter: Voter) -> dict[str, Any]:
    """Grant many at the same time, with all the other parked Runs around: each returns exactly once."""
    runs = await _park_many(vessel, AT_ONCE)
    patterns.visits.clear()
    began = time.perf_counter()

    async def grant(run_id: uuid.UUID) -> None:
        vote = Vote(ids.owner_id(run_id, 0, KIND.name), True, "code")
        await decide_here(vessel.ledger, vessel.engine, voter, vote)

    await asyncio.gather(*(grant(run_id) for run_id in runs))
    granted = time.perf_counter() - began
    await _until(vessel, runs, "done")
    seconds = time.perf_counter() - began
    return {
        "runs": len(runs),
        "granted_seconds": granted,
        "done_seconds": seconds,
        "resumed": sum(1 for run_id in runs if patterns.visits.get(run_id)),
        "twice": sum(1 for run_id in runs if patterns.visits.get(run_id, 0) > 1),
    }
