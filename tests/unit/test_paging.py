"""Cursors: what went out comes back, and nothing else is one."""

from __future__ import annotations

import base64
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.paging import BadCursor, Cursor, decode, decode_optional, page

SOME = Cursor(datetime(2026, 12, 1, 3, 4, 5, 678901, tzinfo=UTC), uuid.UUID(int=7))


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)), st.uuids())  # noqa: DTZ001 made aware below
def test_a_cursor_survives_its_journey_to_the_microsecond(at: datetime, identity: uuid.UUID) -> None:
    cursor = Cursor(at.replace(tzinfo=UTC), identity)
    assert decode(cursor.encode()) == cursor


def test_the_zone_of_the_writer_does_not_matter() -> None:
    elsewhere = Cursor(SOME.at.astimezone(timezone(timedelta(hours=5))), SOME.id)
    assert elsewhere.encode() == SOME.encode()


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "!!!!",
        "none",
        SOME.encode() + "=",
        SOME.encode() + "\n",
        " " + SOME.encode(),
        SOME.encode()[:-1],
        SOME.encode() * 9,
        "ä" * 8,
        encoded("[]"),
        encoded("{}"),
        encoded("null"),
        encoded('["2026-12-01T00:00:00+00:00"]'),
        encoded('["2026-12-01T00:00:00", "00000000-0000-0000-0000-000000000007"]'),
        encoded('["2026-12-01T00:00:00+00:00", "00000000-0000-0000-0000-000000000007"]'),
        encoded('["2026-12-01T00:00:00+00:00","7"]'),
        encoded("[1,2]"),
        encoded('["0001-01-01T00:00:00+23:59","00000000-0000-0000-0000-000000000007"]'),
        encoded("[" * 140),
    ],
)
def test_anything_else_is_refused_as_a_bad_cursor(text: str) -> None:
    with pytest.raises(BadCursor) as refused:
        decode(text)
    assert (refused.value.status, refused.value.code) == (400, "bad_cursor")


@given(st.text(max_size=300))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        assert decode(text).encode() == text
    except BadCursor:
        pass


def test_no_cursor_is_the_first_page() -> None:
    assert decode_optional(None) is None
    assert decode_optional("") is None
    assert decode_optional(SOME.encode()) == SOME


def test_a_page_names_the_next_one_only_when_there_is_a_row_too_many() -> None:
    def key(number: int) -> Cursor:
        return Cursor(SOME.at, uuid.UUID(int=number))

    assert page([3, 2, 1], 3, key).next is None
    first = page([3, 2, 1], 2, key)
    assert list(first.items) == [3, 2]
    assert first.next is not None
    assert decode(first.next) == key(2)
    assert page([], 2, key) == page((), 2, key) or page([], 2, key).next is None
