"""Cursors: opaque to clients, strict at the door."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.errors import Refused
from runs.events.cursor import Cursor, parse


@pytest.mark.contract("BYD-12")
@pytest.mark.parametrize("cursor", [Cursor("ab12", 0), Cursor("ab12", -1), Cursor("0", 2**31)])
def test_a_cursor_survives_the_way_through_a_client(cursor: Cursor) -> None:
    assert parse(str(cursor)) == cursor


@pytest.mark.contract("BYD-12")
@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "-5", "ab12", "ab12-", "ab12--2", "ab12-05", "ab12-5 ", "ab12-5\n", "AB-1", "a b-1", "ab-1-2"),
        *("x" * 17 + "-1", "ab-" + "9" * 11, "ab-1\0", "../../etc-1", "ab-\N{ARABIC-INDIC DIGIT FIVE}"),
    ],
)
def test_what_is_no_cursor_is_refused_with_400(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse(text)
    assert refusal.value.status == 400
    assert refusal.value.code == "bad_cursor"


@pytest.mark.contract("BYD-12")
@given(st.text())
def test_any_text_is_a_cursor_that_reads_back_or_is_refused(text: str) -> None:
    try:
        cursor = parse(text)
    except Refused:
        return
    assert str(cursor) == text
