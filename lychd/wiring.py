"""Collects what apps declare, and turns the configuration into values: Patterns, routes, connections, authority."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field

from django.apps import apps
from django.utils.module_loading import import_string

from lychd.config import BadSetting, Config
from lychd.postgres.budget import ConnectionBudget
from lychd.sigils.authenticate import scopes_now
from runs.authority import Scope
from runs.broker.pools import LANE_CONNECTIONS, PUBLICATION_CONNECTIONS
from runs.connections import POOL_SIZE, Reads
from runs.errors import LychdError
from runs.ledger.claim import Claimed
from runs.ledger.ledger import CONNECTIONS
from runs.patterns import PatternRegistry, discover
from runs.routing import QUEUES, Router, Rule
from runs.waits import WaitKinds


def registry() -> PatternRegistry:
    """All Patterns of all installed apps.

    Raises:
        PatternError: one of them is not written correctly.
    """
    return PatternRegistry(discover())


def wait_kinds() -> WaitKinds:
    """The kinds of wait that the installed apps declare on their AppConfigs (ruling 24).

    Raises:
        Corrupt: two of them contradict each other.
    """
    declared = (getattr(config, "wait_kind", None) for config in apps.get_app_configs())
    return WaitKinds(import_string(path)() for path in declared if path)


def router(config: Config) -> Router:
    """The routing rules of the settings over the default ones.

    Raises:
        BadSetting: a rule is not one.
    """
    try:
        return Router([Rule(**rule) for rule in config.routes], QUEUES)
    except (TypeError, LychdError) as error:
        raise BadSetting(f"LYCHD_ROUTES: {error}") from error


def budget(config: Config) -> ConnectionBudget:
    """Every connection that a Vessel may open; guard and the listener for wake-ups count as one each."""
    return ConnectionBudget.of(
        ledger=CONNECTIONS + POOL_SIZE,
        django=config.django_pool,
        lanes=LANE_CONNECTIONS * len(QUEUES),
        publication=PUBLICATION_CONNECTIONS,
        guard=2,
    )


@dataclass(slots=True)
class Authority:
    """Revalidates the recorded authority of claimed Runs against the Sigil as it is now (CLM-15, ruling 29).

    Claims that ask while a look-up of the same Sigil is being started share it; none gets an answer that was read
    before it asked.
    """

    reads: Reads
    _next: dict[uuid.UUID, asyncio.Task[frozenset[str]]] = field(
        default_factory=dict[uuid.UUID, "asyncio.Task[frozenset[str]]"]
    )

    async def __call__(self, claimed: Claimed) -> frozenset[str] | None:
        """The scopes that the Run has now; None when its Sigil was revoked or may not submit any more."""
        recorded = frozenset(claimed.scopes)
        if claimed.sigil_id is None:
            return recorded
        task = self._next.get(claimed.sigil_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(claimed.sigil_id), name="authority")
            self._next[claimed.sigil_id] = task
        now = await asyncio.shield(task)
        return recorded & now if Scope.RUNS_SUBMIT in now else None

    async def _ask(self, sigil_id: uuid.UUID) -> frozenset[str]:
        # Claims of this turn of the loop join; whoever comes once the query has begun starts another.
        await asyncio.sleep(0)
        self._next.pop(sigil_id, None)
        return await scopes_now(sigil_id, self.reads)
