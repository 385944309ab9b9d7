"""The supervisor of the relays, with relays that misbehave and a clock that does not move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from runs.relays import supervisor as module
from runs.relays.supervisor import Supervisor
from tests.support.waiting import eventually


@dataclass
class Scripted:
    """A relay whose passes a test writes."""

    script: Callable[[int], Awaitable[bool]]
    name: str = "scripted"
    interval: float = 7.0
    passes: int = 0

    async def tick(self) -> bool:
        self.passes += 1
        return await self.script(self.passes)


@dataclass
class Clock:
    """Notes how long somebody wanted to sleep and returns at once, until `most` sleeps were asked for."""

    most: int
    slept: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) >= self.most:
            await asyncio.Event().wait()
        await asyncio.sleep(0)


async def raises(_: int) -> bool:
    raise OSError("the broker is not there")


async def ends_early(_: int) -> bool:
    raise asyncio.CancelledError


@pytest.mark.contract("RLY-5")
@pytest.mark.parametrize("script", [raises, ends_early])
async def test_s177_a_relay_that_ends_is_started_again_ever_more_patiently(script: Any) -> None:
    clock = Clock(8)
    supervisor = Supervisor([Scripted(script)], sleep=clock)
    supervisor.start()
    await eventually(lambda: len(clock.slept) == 8)
    await supervisor.stop()
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    status = supervisor.status["scripted"]
    assert (status.restarts, status.failures, status.passes) == (8, 8, 0)
    assert status.last_error is not None


@pytest.mark.contract("RLY-5")
async def test_a_restart_is_logged_with_its_reason_and_delay() -> None:
    clock = Clock(1)
    supervisor = Supervisor([Scripted(raises)], sleep=clock)
    with structlog.testing.capture_logs() as logs:
        supervisor.start()
        await eventually(lambda: clock.slept)
        await supervisor.stop()
    assert [(line["event"], line["relay"], line["delay"]) for line in logs] == [("relay.restarting", "scripted", 0.1)]
    assert logs[0]["reason"] == "OSError: the broker is not there"


@pytest.mark.contract("RLY-5")
async def test_a_relay_that_ran_steadily_is_restarted_quickly_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEADY", -1.0)
    clock = Clock(3)
    supervisor = Supervisor([Scripted(raises)], sleep=clock)
    supervisor.start()
    await eventually(lambda: len(clock.slept) == 3)
    await supervisor.stop()
    assert clock.slept == [0.1, 0.1, 0.1]


async def test_a_pass_with_more_to_do_is_followed_at_once_and_others_wait_their_interval() -> None:
    async def more_until_the_third(number: int) -> bool:
        return number < 3

    clock = Clock(1)
    relay = Scripted(more_until_the_third)
    supervisor = Supervisor([relay], sleep=clock)
    supervisor.start()
    await eventually(lambda: clock.slept)
    assert (relay.passes, clock.slept) == (3, [7.0])
    assert supervisor.status["scripted"].last_pass is not None
    await supervisor.stop()


async def test_a_good_pass_forgets_the_last_error() -> None:
    async def fails_once(number: int) -> bool:
        if number == 1:
            raise OSError
        return False

    clock = Clock(2)
    supervisor = Supervisor([Scripted(fails_once)], sleep=clock)
    supervisor.start()
    await eventually(lambda: len(clock.slept) == 2)
    status = supervisor.status["scripted"]
    assert (status.last_error, status.failures, status.restarts, status.passes) == (None, 1, 1, 1)
    await supervisor.stop()


@pytest.mark.contract("RLY-4")
async def test_one_relays_failure_does_not_touch_another() -> None:
    async def well(_: int) -> bool:
        return False

    clock = Clock(1_000_000)
    healthy = Scripted(well, name="healthy", interval=0.0)
    supervisor = Supervisor([Scripted(raises), healthy], sleep=clock)
    supervisor.start()
    await eventually(lambda: supervisor.status["scripted"].restarts >= 3 and healthy.passes >= 3)
    await supervisor.stop()
    assert supervisor.status["healthy"].failures == 0


@pytest.mark.contract("SHUT-2")
async def test_s190_a_relay_that_ignores_its_cancellation_is_named_and_proved_later() -> None:
    release = asyncio.Event()

    async def stubborn(_: int) -> bool:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return False

    async def well(_: int) -> bool:
        return False

    supervisor = Supervisor([Scripted(stubborn, name="stubborn"), Scripted(well, name="well")])
    supervisor.start()
    await eventually(lambda: supervisor.status["well"].passes)
    with pytest.raises(TimeoutError, match=r"relay stubborn\.$"):
        await supervisor.stop(0.05)
    assert [task.get_name() for task in supervisor.alive] == ["relay stubborn"]
    release.set()
    await supervisor.stop()
    assert supervisor.alive == []


@pytest.mark.contract("SHUT-2")
async def test_a_relay_that_turns_its_cancellation_into_an_error_is_not_started_again() -> None:
    began = asyncio.Event()

    async def converts(_: int) -> bool:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise TimeoutError("took too long") from None
        return False

    supervisor = Supervisor([Scripted(converts)])
    supervisor.start()
    await began.wait()
    await supervisor.stop(5.0)
    assert (supervisor.alive, supervisor.status["scripted"].restarts) == ([], 0)


async def test_a_supervisor_can_be_stopped_before_it_started_and_twice() -> None:
    async def well(_: int) -> bool:
        return False

    supervisor = Supervisor([Scripted(well)])
    await supervisor.stop()
    supervisor.start()
    await supervisor.stop()
    await supervisor.stop()
    assert supervisor.alive == []
