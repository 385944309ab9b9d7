"""An authority that does not acknowledge until a test lets it: what a cancellation or a failure then says of itself."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from consents.wait import ConsentWait


class Stubborn:
    """Stands in the way of the consents' containment."""

    def __init__(self) -> None:
        self.refuses = True
        self.hold = asyncio.Event()
        self.hold.set()
        self.asked = 0

    async def halt(self, _kind: ConsentWait, _run_id: uuid.UUID, _principal: str) -> None:
        self.asked += 1
        await self.hold.wait()
        if self.refuses:
            raise ConnectionError("the authority is away")


def stubborn(monkeypatch: pytest.MonkeyPatch) -> Stubborn:
    """Every Vessel of this process meets it from now on."""
    one = Stubborn()

    async def halt(kind: ConsentWait, run_id: uuid.UUID, principal: str) -> None:
        await one.halt(kind, run_id, principal)

    monkeypatch.setattr(ConsentWait, "halt", halt)
    return one
