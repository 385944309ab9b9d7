"""Scratch databases on the server of the tests."""

from __future__ import annotations

import logging

import psycopg
from psycopg import sql

log = logging.getLogger(__name__)

# Dropping waits for every process of the server to hear of it, also for one whose client stopped in mid-login.
PATIENCE_MS, TRIES = 20_000, 3


def drop(server: str, name: str) -> None:
    """Drop a database with its connections; one that the server does not let go of in time is left behind, and told.

    Args:
        server: the URL of another database there.
    """
    options = f"-c statement_timeout={PATIENCE_MS}"
    with psycopg.connect(server, autocommit=True, options=options) as connection:
        for _ in range(TRIES):
            try:
                connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
            except psycopg.errors.QueryCanceled:
                continue
            else:
                return
    log.error("the server does not let go of the scratch database %s", name)
