"""PostgreSQL URLs: what is refused, and what Django and psycopg get."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from lychd.postgres import urls
from lychd.postgres.errors import BadDatabaseUrl


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("sqlite:///db.sqlite3", "postgresql://"),
        ("", "postgresql://"),
        ("host=localhost dbname=x", "postgresql://"),
        ("postgresql://localhost", "names no database"),
        ("postgresql://localhost/", "names no database"),
        ("postgresql://localhost:http/db", "port"),
        ("postgresql://localhost:99999/db", "port"),
        ("postgresql://localhost/db?nonsense=1", "nonsense"),
    ],
)
def test_a_url_that_is_none_is_refused_with_the_reason(url: str, word: str) -> None:
    with pytest.raises(BadDatabaseUrl, match=word) as refused:
        urls.parse(url)
    assert refused.value.detail.count("\n") == 0


def test_a_refusal_never_shows_the_password() -> None:
    with pytest.raises(BadDatabaseUrl) as refused:
        urls.parse("postgresql://me:s3cr%zzt@localhost/db")
    assert "s3cr" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_url_is_read_as_libpq_reads_it() -> None:
    assert urls.parse("postgres://me:p%40ss@db.example:6543/my%20db?sslmode=require") == {
        "user": "me",
        "password": "p@ss",
        "host": "db.example",
        "port": "6543",
        "dbname": "my db",
        "sslmode": "require",
    }
    assert urls.parse("postgresql://postgres@/lychd?host=%2Fvar%2Flib%2Fx")["host"] == "/var/lib/x"
    assert urls.parse("postgresql://[::1]/db")["host"] == "::1"


def test_a_dead_peer_is_noticed_unless_the_url_says_otherwise() -> None:
    ours = conninfo_to_dict(urls.conninfo("postgresql://h/db", application_name="lychd guard"))
    assert (ours["keepalives_idle"], ours["tcp_user_timeout"]) == ("10", "20000")
    assert ours["application_name"] == "lychd guard"
    theirs = conninfo_to_dict(urls.conninfo("postgresql://h/db?keepalives_idle=99&application_name=mine", dbname="x"))
    assert (theirs["keepalives_idle"], theirs["application_name"], theirs["dbname"]) == ("99", "mine", "x")


def test_django_gets_a_bounded_pool_and_no_persistent_connections() -> None:
    entry = urls.django_database("postgresql://me:pw@h:1234/db?sslmode=require", pool=7)
    assert (entry["NAME"], entry["USER"], entry["PASSWORD"], entry["HOST"], entry["PORT"]) == (
        "db",
        "me",
        "pw",
        "h",
        "1234",
    )
    assert entry["CONN_MAX_AGE"] == 0
    assert entry["OPTIONS"]["pool"]["max_size"] == 7
    assert entry["OPTIONS"]["sslmode"] == "require"
    assert entry["OPTIONS"]["keepalives"] == "1"


def test_the_embedded_url_is_known_before_the_server_runs() -> None:
    parts = urls.parse(urls.embedded_url(Path("/var/lib/lychd")))
    assert parts == {"user": "postgres", "dbname": "lychd", "host": "/var/lib/lychd/postgres/socket"}


@pytest.mark.parametrize("root", ["/srv/" + "long" * 40, "/srv/a,b", "/srv/a'b", '/srv/a"b'])
def test_a_path_that_no_socket_can_have_gets_a_short_folder(root: str) -> None:
    host = urls.parse(urls.embedded_url(Path(root)))["host"]
    assert len(host) < 60
    assert "," not in host
    assert host == urls.parse(urls.embedded_url(Path(root)))["host"]
    assert host != urls.parse(urls.embedded_url(Path(root + "x")))["host"]
