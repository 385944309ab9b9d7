"""Runs Patterns on a whole Vessel inside a test and tells what became of them.

The Vessel is the one of production, started by the same lifespan: ledger, queue, lanes, relays, evidence. Only the
listening host is left out.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection, connections
from pydantic import BaseModel

from lychd import lifespan
from lychd.config import Config
from lychd.graph import Vessel
from lychd.postgres import urls
from lychd.testing.record import RunRecord, recorded
from lychd.testing.waiting import eventually
from runs import reads as rows
from runs.authority import Caller, Scope, Surface
from runs.patterns import AnyPattern, PatternRegistry
from runs.states import TERMINAL
from runs.submission import Submission

WITHIN = 30.0
# For what ends at the moment of the stop; what still works then is not waited for.
DRAIN = 0.2


class VesselKit:
    """A started Vessel and the ways of a test to use it.

    Attributes:
        vessel: the object graph, for what the kit has no word for.
        tenant: of all its Runs.
    """

    def __init__(self, vessel: Vessel, tenant: str = "default") -> None:
        self.vessel = vessel
        self.tenant = tenant

    async def submit(
        self,
        pattern: AnyPattern | str,
        input: BaseModel | Mapping[str, Any] | None = None,  # noqa: A002 - the word that authors know from the Run
        *,
        priority: int | None = None,
        session: uuid.UUID | None = None,
        key: str | None = None,
        scopes: Iterable[str] | None = None,
    ) -> uuid.UUID:
        """Admit a Run; the Vessel carries it from here.

        Args:
            pattern: itself or its key.
            input: a model, or the JSON value of one; default: empty.
            priority: 0 to 100; default: what the routing says.
            session: the Run is a turn of this session.
            key: idempotency key.
            scopes: authority of the caller; default: every scope.

        Returns:
            The id of the Run.

        Raises:
            LychdError: refused, with the error that a client would be told.
        """
        caller = Caller(
            tenant=self.tenant,
            name="test",
            scopes=frozenset(scope.value for scope in Scope) if scopes is None else frozenset(scopes),
            surface=Surface.CODE,
        )
        value = input.model_dump(mode="json") if isinstance(input, BaseModel) else dict(input or {})
        name = pattern if isinstance(pattern, str) else pattern.key
        submitted = await self.vessel.engine.submit(
            caller, Submission(name, value, priority=priority, session=session, key=key)
        )
        return submitted.run_id

    async def ended(self, run_id: uuid.UUID, *, within: float = WITHIN) -> RunRecord:
        """Wait until a Run has ended and its evidence is stored, whatever its end.

        Args:
            within: seconds.

        Raises:
            AssertionError: it did not end in time; the message tells its Steps so far.
        """

        async def over() -> bool:
            found = await rows.terminal(self.vessel.reads, run_id)
            return found is not None and found.status in TERMINAL and found.step_status is not None

        try:
            await eventually(over, within)
        except AssertionError:
            await self.vessel.evidence.barrier(run_id)
            record = await self.record(run_id)
            raise AssertionError(f"The Run did not end within {within:g} s.\n{record.story()}") from None
        return await self.record(run_id)

    async def run(
        self,
        pattern: AnyPattern | str,
        input: BaseModel | Mapping[str, Any] | None = None,  # noqa: A002 - the word that authors know from the Run
        *,
        ends: str = "done",
        within: float = WITHIN,
        **asked: Any,
    ) -> RunRecord:
        """Submit a Run, wait for its end, and prove that it ended as expected.

        Args:
            ends: the expected status, `done` or `failed`.
            within: seconds.
            asked: further arguments of `submit`.

        Raises:
            AssertionError: it ended otherwise, or not in time; the message tells its Steps.
            LychdError: the submission was refused.
        """
        record = await self.ended(await self.submit(pattern, input, **asked), within=within)
        if record.status != ends:
            raise AssertionError(f"The Run ended as {record.status}, not as {ends}.\n{record.story()}")
        return record

    async def record(self, run_id: uuid.UUID) -> RunRecord:
        """What is stored of a Run now.

        Raises:
            AssertionError: there is no such Run.
        """
        return await recorded(self.vessel.reads, run_id)


@asynccontextmanager
async def running(patterns: Iterable[AnyPattern] | None = None, **changes: Any) -> AsyncGenerator[VesselKit]:
    """A Vessel on Django's default database, in this loop. One at a time, as in production.

    A Run that is still under way at the end is not waited for: its node is cancelled, its threads are told to stop.

    Args:
        patterns: default: those of all installed apps.
        changes: settings that differ from the environment's, by field name.

    Raises:
        LychdError: one sentence why it cannot start.
    """
    config: Config = settings.CONFIG.model_copy(update={"drain_seconds": DRAIN, **changes})
    registry = None if patterns is None else PatternRegistry(patterns)
    asked: list[tuple[int, str]] = []

    def stop(code: int, reason: str) -> None:
        asked.append((code, reason))

    async with AsyncExitStack() as stack:
        vessel = await lifespan.start(config, _url(), stop, stack, registry=registry)
        try:
            yield VesselKit(vessel)
        finally:
            await lifespan.shut_down(vessel, stack)
            # Those of this loop's async queries; the database of the tests cannot be dropped while they are open.
            await sync_to_async(connections.close_all)()
        if asked:
            raise AssertionError(f"The Vessel asked to be ended: {asked[0][1]}")


def _url() -> str:
    """The database that Django uses now, which under pytest-django is the one of the tests."""
    parts = {**urls.parse(settings.DATABASE_URL), "dbname": str(connection.settings_dict["NAME"])}
    return "postgresql://?" + urlencode(parts, quote_via=quote)
