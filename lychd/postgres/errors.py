"""Why there is no database, each as one sentence that an operator can act on."""

from __future__ import annotations

from runs.errors import Degraded, Refused


class BadDatabaseUrl(Refused):
    """DATABASE_URL is not a PostgreSQL URL."""

    code, title = "bad_database_url", "Bad DATABASE_URL"


class DatabaseUnavailable(Degraded):
    """The database is not available."""

    code, title = "database_unavailable", "Database unavailable"


class FolderUnusable(DatabaseUnavailable):
    """The folder of the embedded database cannot be used."""

    code, title = "database_folder_unusable", "Database folder unusable"


class OtherVersion(DatabaseUnavailable):
    """The data was written by another major version of PostgreSQL."""

    code, title = "database_other_version", "Database of another version"


class PortTaken(DatabaseUnavailable):
    """The TCP port of the embedded database is taken."""

    code, title = "database_port_taken", "Database port taken"


class BinariesMissing(DatabaseUnavailable):
    """The programs of the embedded database are not installed."""

    code, title = "database_binaries_missing", "Database programs missing"


class DatabaseBusy(DatabaseUnavailable):
    """Another process holds the embedded database and does not let go."""

    code, title = "database_busy", "Database busy"


class TooFewConnections(DatabaseUnavailable):
    """PostgreSQL allows fewer connections than the Vessel needs."""

    code, title = "database_too_few_connections", "Too few database connections"
