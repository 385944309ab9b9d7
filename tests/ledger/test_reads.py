"""Reads over a connection that was lost, or that lives and says nothing: answered over another one, never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from runs.connections import Reads
from runs.errors import Degraded
from tests.support.ledger import LedgerDesk
from tests.support.proxy import Wire, a_wire


@pytest.fixture
async def wire(desk: LedgerDesk) -> AsyncIterator[Wire]:
    async with a_wire(desk.dsn) as wire:
        yield wire


@pytest.fixture
async def reads(wire: Wire) -> AsyncIterator[Reads]:
    reads = Reads(wire.dsn, size=1, answer_within=0.3)
    await reads.open()
    yield reads
    await reads.close()


async def test_a_read_whose_answer_was_lost_is_asked_once_more(wire: Wire, reads: Reads) -> None:
    wire.cut_answers(1)
    assert await reads.fetch_all("select 1") == [(1,)]
    assert wire.cut == 1


async def test_a_read_without_an_answer_is_asked_again_over_another_connection(wire: Wire, reads: Reads) -> None:
    wire.mute = True
    call = asyncio.ensure_future(reads.fetch_all("select 2"))
    await wire.swallowed.wait()
    wire.mute = False
    async with asyncio.timeout(10):
        assert await call == [(2,)]


async def test_a_cancelled_read_without_an_answer_ends_and_gives_its_place_back(wire: Wire, reads: Reads) -> None:
    wire.mute = True
    call = asyncio.ensure_future(reads.fetch_all("select 3"))
    await wire.swallowed.wait()
    call.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait({call})
    assert call.cancelled()
    wire.mute = False
    assert await reads.fetch_all("select 4") == [(4,)]


async def test_a_database_that_went_away_is_a_sentence_and_one_that_returns_is_asked_again(
    wire: Wire, reads: Reads
) -> None:
    await wire.close_door()
    with pytest.raises(Degraded, match="cannot be asked"):
        await reads.fetch_all("select 5")
    await wire.open_door()
    assert await reads.fetch_all("select 6") == [(6,)]
