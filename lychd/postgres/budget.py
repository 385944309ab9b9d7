"""The connections that a Vessel may open, added up and held against what the server allows. Opens none itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from lychd.postgres.errors import TooFewConnections

# One row; a role or a database may be allowed less than the server. The setting came with PostgreSQL 16.
LIMITS = """
SELECT current_setting('max_connections')::int,
       current_setting('superuser_reserved_connections')::int
           + coalesce(current_setting('reserved_connections', true), '0')::int,
       (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user AND NOT rolsuper),
       (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server allows.

    Attributes:
        most: `max_connections`.
        reserved: kept back for superusers and privileged roles.
        role, database: their own limits, None where there is none.
    """

    most: int
    reserved: int
    role: int | None = None
    database: int | None = None

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Limits:
        """From the row that `LIMITS` returns; for callers with a connection of their own kind."""
        return cls(*row)

    @classmethod
    def ask(cls, connection: psycopg.Connection[Any]) -> Limits:
        """Ask the server behind `connection`."""
        row = connection.execute(LIMITS).fetchone()
        if row is None:
            raise LookupError("the server returned no limits")
        return cls.of(tuple(row))

    @property
    def available(self) -> int:
        """How many connections a Vessel can count on when it is alone."""
        return min(limit for limit in (self.most - self.reserved, self.role, self.database) if limit is not None)


@dataclass(frozen=True, slots=True)
class Share:
    """One user of connections and the most that it opens."""

    name: str
    most: int


@dataclass(frozen=True, slots=True)
class ConnectionBudget:
    """All connections of one Vessel."""

    shares: tuple[Share, ...]

    @classmethod
    def of(cls, *, ledger: int, django: int, lanes: int, publication: int, guard: int = 1) -> ConnectionBudget:
        """The budget of a Vessel.

        Args:
            ledger: the ledger's edges and reads.
            django: Django's own pool.
            lanes: the pool from which the lanes dequeue.
            publication: the pool that publishes into the lanes.
            guard: the connection that proves that there is one Vessel.
        """
        return cls(
            (
                Share("ledger", ledger),
                Share("Django", django),
                Share("lanes", lanes),
                Share("publication", publication),
                Share("guard", guard),
            )
        )

    @property
    def total(self) -> int:
        return sum(share.most for share in self.shares)

    def check(self, limits: Limits) -> None:
        """Refuse a server that allows fewer connections than the Vessel needs.

        Raises:
            TooFewConnections: with the figures and what to change.
        """
        if limits.available >= self.total:
            return
        parts = ", ".join(f"{share.name} {share.most}" for share in self.shares)
        raise TooFewConnections(
            f"The Vessel needs {self.total} database connections ({parts}), PostgreSQL allows it {limits.available}: "
            f"{self._remedy(limits)}, or lower the Vessel's pools.",
            needed=self.total,
            available=limits.available,
        )

    def table(self, limits: Limits | None = None) -> str:
        """The budget as text, one share a line; with the server's limits below it where they are known."""
        rows = [(share.name, str(share.most)) for share in self.shares]
        rows.append(("together", str(self.total)))
        if limits is not None:
            rows.append(("PostgreSQL allows", f"{limits.available} (of {limits.most}, {limits.reserved} reserved)"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _remedy(self, limits: Limits) -> str:
        if limits.available == limits.role:
            return "raise the role's CONNECTION LIMIT"
        if limits.available == limits.database:
            return "raise the database's CONNECTION LIMIT"
        return f"raise max_connections to at least {self.total + limits.reserved}"
