"""(f) What 10,000 queued Runs cost in the memory of the Vessel: the claim gate is held, so none starts."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from bench.common import CALLER, resident, vessel_here
from bench.vessel import ASKED


async def measure(runs: int) -> dict[str, Any]:
    """Growth of the process, in all and for each Run."""
    async with vessel_here() as vessel:
        vessel.claim_gate.close("bench", "Runs are counted while they are queued")
        numbers = iter(range(200))

        async def submit() -> None:
            for _ in numbers:
                await vessel.engine.submit(CALLER, ASKED)

        await asyncio.gather(*(submit() for _ in range(32)))
        await vessel.evidence.drain()
        gc.collect()
        before = resident()
        numbers = iter(range(runs))
        await asyncio.gather(*(submit() for _ in range(32)))
        await vessel.evidence.drain()
        gc.collect()
        grown = resident() - before
        vessel.claim_gate.open("bench")
        return {"runs": runs, "mb": grown / 1024 / 1024, "bytes_per_run": grown / runs}
