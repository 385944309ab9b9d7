"""The connection budget: added up, held against the server, told in figures."""

from __future__ import annotations

import pytest

from lychd.postgres.budget import ConnectionBudget, Limits
from lychd.postgres.errors import TooFewConnections

BUDGET = ConnectionBudget.of(ledger=8, django=8, lanes=10, publication=4)


def test_the_budget_is_the_sum_of_all_pools_and_the_guard() -> None:
    assert BUDGET.total == 31


def test_a_server_with_enough_connections_passes() -> None:
    BUDGET.check(Limits(most=34, reserved=3))


@pytest.mark.parametrize(
    ("limits", "remedy"),
    [
        (Limits(most=33, reserved=3), "raise max_connections to at least 34"),
        (Limits(most=100, reserved=3, role=10), "role's CONNECTION LIMIT"),
        (Limits(most=100, reserved=3, database=20), "database's CONNECTION LIMIT"),
    ],
)
def test_a_server_with_too_few_connections_is_one_sentence_with_the_remedy(limits: Limits, remedy: str) -> None:
    with pytest.raises(TooFewConnections) as refused:
        BUDGET.check(limits)
    assert "needs 31" in refused.value.detail
    assert remedy in refused.value.detail
    assert refused.value.facts == {"needed": 31, "available": limits.available}


def test_the_table_names_every_share_the_sum_and_what_the_server_allows() -> None:
    assert BUDGET.table(Limits(most=100, reserved=3)).splitlines() == [
        "ledger             8",
        "Django             8",
        "lanes              10",
        "publication        4",
        "guard              1",
        "together           31",
        "PostgreSQL allows  97 (of 100, 3 reserved)",
    ]
