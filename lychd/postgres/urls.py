"""PostgreSQL URLs: checked by libpq's own parser, and turned into what Django and psycopg want.

Never puts a password into a message. Only `ensure_database_exists` and `prove_answer` open a connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lychd.postgres.errors import BadDatabaseUrl, DatabaseUnavailable

__all__ = [
    "BadDatabaseUrl",
    "conninfo",
    "django_database",
    "embedded_url",
    "ensure_database_exists",
    "parse",
    "prove_answer",
]

EMBEDDED_DATABASE = "lychd"
EMBEDDED_ROLE = "postgres"

# A peer that vanished without a word is noticed after about 25 s, a write into the void after 20 s.
# libpq ignores all of them on a Unix socket.
KEEPALIVE = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "connect_timeout": "10",
}


def parse(url: str) -> dict[str, str]:
    """The parts of a PostgreSQL URL as libpq parameters.

    Raises:
        BadDatabaseUrl: not postgresql:// or postgres://, unreadable, or without a database name.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadDatabaseUrl("DATABASE_URL must begin with postgresql://")
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value not in {None, ""}}
    except (psycopg.ProgrammingError, UnicodeError) as error:
        # libpq quotes the part that it could not read, which may be the password.
        detail = "" if "@" in url else f": {str(error).strip()}"
        raise BadDatabaseUrl(f"DATABASE_URL cannot be read as a PostgreSQL URL{detail}") from None
    if "dbname" not in parts:
        raise BadDatabaseUrl("DATABASE_URL names no database; it ends with /name")
    for port in parts.get("port", "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise BadDatabaseUrl("DATABASE_URL has a port that is no number from 1 to 65535")
    return parts


def conninfo(url: str, *, application_name: str = "lychd", **overrides: str) -> str:
    """The connection string for psycopg: the URL's own options win over our keepalives, `overrides` over both."""
    return make_conninfo("", **{**KEEPALIVE, "application_name": application_name, **parse(url), **overrides})


def django_database(url: str, *, pool: int) -> dict[str, Any]:
    """The DATABASES entry for `url`, with Django's native pool of at most `pool` connections."""
    parts = parse(url)
    own = {"dbname", "user", "password", "host", "port"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password", ""),
        "HOST": parts.get("host", ""),
        "PORT": parts.get("port", ""),
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            **KEEPALIVE,
            "application_name": "lychd django",
            **{name: value for name, value in parts.items() if name not in own},
            "pool": {"min_size": 1, "max_size": pool, "timeout": 10},
        },
    }


def embedded_url(data: Path) -> str:
    """The URL of the embedded server that belongs to the data folder `data`, running or not."""
    from lychd.postgres.home import Home

    return Home(data).url()


def socket_url(folder: Path, *, database: str = EMBEDDED_DATABASE, port: int | None = None) -> str:
    """The URL of a server that listens on a Unix socket in `folder`."""
    tail = f"&port={port}" if port else ""
    return f"postgresql://{EMBEDDED_ROLE}@/{quote(database)}?host={quote(str(folder), safe='')}{tail}"


def ensure_database_exists(url: str, *, maintenance: str = "postgres") -> bool:
    """Create the database that `url` names if the server does not have it yet.

    Returns:
        True if it was created here.

    Raises:
        DatabaseUnavailable: the server does not answer or does not allow it.
    """
    name = parse(url)["dbname"]
    try:
        with psycopg.connect(conninfo(url, dbname=maintenance), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                return False
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
        return False  # another process was faster between the look and the act
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"The database {name!r} could not be created: {str(error).strip()}") from error
    return True


def prove_answer(url: str) -> None:
    """Open one connection and close it, so that a database which cannot be used is told at once and in one sentence.

    Raises:
        BadDatabaseUrl: `url` is none.
        DatabaseUnavailable: the server does not answer, or does not let us in.
    """
    try:
        psycopg.connect(conninfo(url), autocommit=True).close()
    except psycopg.Error as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DatabaseUnavailable(f"The database of DATABASE_URL cannot be used: {said.rstrip('.')}.") from error
