"""One emptied ledger a test, in the database that pytest-django made; other connections see what a test commits.

The tests here are transactional for `runs` alone: emptying that app is one TRUNCATE, where emptying all of Django
costs more than most of these tests.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from django.db import connection
from psycopg.conninfo import make_conninfo

from runs.ledger.ledger import Ledger
from tests.support.ledger import LedgerDesk

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and "desk" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.django_db(transaction=True, available_apps=["runs"]))


@pytest.fixture
def desk(transactional_db: None) -> Iterator[LedgerDesk]:
    dsn = make_conninfo(os.environ["DATABASE_URL"], dbname=str(connection.settings_dict["NAME"]))
    desk = LedgerDesk(dsn)
    yield desk
    desk.connection.close()


@pytest.fixture
async def ledger(desk: LedgerDesk) -> AsyncIterator[Ledger]:
    ledger = Ledger(desk.dsn)
    yield ledger
    await ledger.close()
