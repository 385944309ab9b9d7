"""PostgreSQL restarts under a Vessel that works: what was admitted comes to its end, and new work is taken again."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from lychd.postgres import launcher
from runs.errors import LychdError
from tests.support.clusters import migrate
from tests.support.vessels import Life, living, watching
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("processes")


async def crowd(life: Life, admitted: list[uuid.UUID], enough: asyncio.Event) -> None:
    """Submit without a pause; what is refused, and what nobody knows the outcome of, is not counted as admitted."""
    while not enough.is_set():
        try:
            admitted.append(await life.submit("three"))
        except LychdError:
            await asyncio.sleep(0.05)


@pytest.mark.contract("BYD-6", "BYD-1", "REC-26")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
async def test_what_was_admitted_comes_to_its_end_over_a_restart_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any, how: signal.Signals
) -> None:
    monkeypatch.setattr("runs.recovery.custody.SETTLE_SECONDS", 0.5)
    cluster = await asyncio.to_thread(launcher.ensure, tmp_path)
    second = None
    try:
        with django_db_blocker.unblock():
            await asyncio.to_thread(migrate, cluster.url)
        async with living(cluster.url, monkeypatch=monkeypatch) as life:
            admitted: list[uuid.UUID] = []
            enough = asyncio.Event()
            crowds = [asyncio.create_task(crowd(life, admitted, enough)) for _ in range(8)]
            await eventually(lambda: len(admitted) > 50, within=20)
            os.kill(cluster.pid, how)
            await asyncio.to_thread(lambda: cluster.process and cluster.process.wait(30))
            second = await asyncio.to_thread(launcher.ensure, tmp_path)
            await eventually(lambda: life.vessel.claim_gate.is_open and life.vessel.engine.admitting, within=20)
            # Whoever went on submitting is served again, without anybody's doing.
            before = len(admitted)
            await eventually(lambda: len(admitted) > before + 50, within=20)
            enough.set()
            await asyncio.gather(*crowds)
            async with watching(second.url) as eyes:
                admitted.append(await life.submit("quick"))

                async def over() -> bool:
                    left = await eyes.one("select count(*) from runs_run where status not in ('done', 'failed')")
                    return left == 0

                await eventually(over, within=60, every=0.1)
                ends = await eyes.rows("select id, status, error_code from runs_run")
                assert {run for run, _, _ in ends} >= set(admitted)
                # Its nodes may not run twice, so a hop that was lost in the middle may only end as lost.
                assert {(status, code) for _, status, code in ends} <= {("done", None), ("failed", "ghoul_lost")}

                async def proved() -> bool:
                    return await eyes.one("select count(*) from runs_step where kind = 'done'") == len(ends)

                await eventually(proved, within=30, every=0.1)
                unsettled = await eyes.one("select count(*) from runs_rundelivery where state <> 'settled'")
                assert unsettled == 0
            assert life.asked == []
    finally:
        if second is not None:
            second.stop()
        cluster.stop()
