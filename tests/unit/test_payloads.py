"""What may be stored as JSON, and what is said about the rest."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, computed_field

from runs import payloads
from runs.errors import Invalid, Refused, TooLarge
from runs.payloads import MAX_DEPTH, Malformed, canonical, check, digest, escaped, jsonable, parse, pointer

NAN, INFINITY = float("nan"), float("inf")
LONE = "\ud800"

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[]))
    | st.binary()
    | st.just(object()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=[])) | st.integers(), inner, max_size=4)
        | st.frozensets(st.floats(), max_size=3)
    ),
    max_leaves=20,
)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def refusal(value: Any, limit: int | None = None, what: str = "input") -> Invalid:
    with pytest.raises(Invalid) as caught:
        check(value, what, limit)
    return caught.value


def test_canonical_text_has_sorted_keys_and_no_spaces():
    assert canonical({"b": [1, "é"], "a": None}) == '{"a":null,"b":[1,"é"]}'


def test_equal_values_have_equal_digests_whatever_the_order_of_their_keys():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})
    assert len(digest(None)) == 64


@pytest.mark.parametrize("value", [NAN, object(), {"a": {1, 2}}, {1: 1, "a": 2}, LONE, nested(50_000)])
def test_what_has_no_json_text_has_no_digest(value: Any):
    with pytest.raises(Invalid):
        digest(value)


@settings(max_examples=100, deadline=None)
@given(plain)
def test_a_checked_value_survives_or_its_text_is_refused_for_a_named_place(value: Any):
    try:
        text, codes = check(value, "state"), set[str]()
    except Invalid as error:
        text, codes = None, {problem["code"] for problem in error.errors}
    if text is None:
        assert codes
        assert codes <= {"nul", "surrogate"}
    else:
        assert json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "where", "code", "words"),
    [
        ({"a": [1, "x\0y"]}, "/a/1", "nul", "NUL"),
        ({"a/b": {"c~d": LONE}}, "/a~1b/c~0d", "surrogate", "surrogate"),
        ([0.5, NAN], "/1", "not_finite", "finite"),
        ({"deep": [INFINITY]}, "/deep/0", "not_finite", "finite"),
        (-INFINITY, "", "not_finite", "finite"),
        ({"x": {"k\0": 1}}, "/x", "nul", "key that holds a NUL"),
        ({LONE: 1}, "", "surrogate", "key"),
        ({"x": {1: "one"}}, "/x", "key", "key that is not text"),
        ({"x": {1}}, "/x", "not_json", "set"),
        ({"x": b"bytes"}, "/x", "not_json", "bytes"),
        ([10**5000], "/0", "too_many_digits", "digits"),
    ],
)
def test_what_jsonb_cannot_hold_is_refused_with_its_place(value: Any, where: str, code: str, words: str):
    error = refusal(value, what="step result")

    assert [(problem["pointer"], problem["code"]) for problem in error.errors] == [(where, code)]
    assert words in error.errors[0]["detail"]
    assert error.detail.startswith("The step result cannot be stored: ")
    assert (error.code, error.status) == ("invalid", 422)


def test_every_bad_place_is_named_up_to_a_bound():
    error = refusal({"a": NAN, "b": "\0", "c": {"d": LONE}})
    assert [problem["pointer"] for problem in error.errors] == ["/a", "/b", "/c/d"]
    assert len(refusal([NAN] * 1000).errors) == 20
    assert len(refusal({f"{n}\0": 1 for n in range(100)}).errors) == 20


def test_what_is_said_about_a_hostile_value_can_itself_be_stored():
    error = refusal({"\0" + LONE + "k" * 5000: {"x": [NAN]}, LONE: {"y\0": {1: INFINITY}}})
    assert len(error.errors) >= 4
    assert check({"detail": error.detail, "errors": error.errors}, "error", 10_000)


def test_text_that_only_looks_like_an_escaped_nul_is_kept():
    value = {"path": "C:\\u0000", "smile": "\U0001f600", "quote": '"\\'}
    assert json.loads(check(value, "input")) == value


def test_big_integers_stay_exact():
    assert json.loads(check([2**80], "input")) == [2**80]
    assert parse(str(2**80)) == 2**80


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1_000, 10_000, 100_000])
def test_deep_nesting_is_refused_and_never_a_recursion_error(depth: int):
    assert refusal(nested(depth)).errors[0]["code"] == "too_deep"
    assert refusal({"a": nested(depth - 1)}).errors[0]["code"] == "too_deep"


def test_nesting_up_to_the_bound_passes_here_and_in_the_models():
    class Holder(BaseModel):
        a: Any = None

    text = check({"a": nested(MAX_DEPTH - 1)}, "state")
    assert Holder.model_validate_json(text, strict=True).model_dump(mode="json") == json.loads(text)
    assert check(nested(MAX_DEPTH), "state").startswith("[[[")


def test_a_cycle_is_refused_like_any_other_endless_nesting():
    cycle: list[Any] = []
    cycle.extend([cycle, cycle])
    table: dict[str, Any] = {}
    table["self"] = table

    assert refusal(cycle).errors[0]["code"] == "too_deep"
    assert refusal(table).errors[0]["code"] == "too_deep"


def test_a_value_that_unfolds_beyond_the_limit_is_refused_before_it_is_written_out():
    bomb: list[Any] = ["x"] * 10
    for _ in range(30):
        bomb = [bomb] * 10

    with pytest.raises(TooLarge, match="The output is larger"):
        check(bomb, "output", 1024 * 1024)


def test_the_limit_counts_bytes_of_utf8_and_is_inclusive():
    assert check("é" * 10, "event", 22) == '"' + "é" * 10 + '"'
    error = refusal("é" * 10, 21, "event")
    assert isinstance(error, TooLarge)
    assert error.detail == "The event is 22 bytes as JSON; at most 21 bytes are allowed."
    assert (error.code, error.errors[0]["code"]) == ("too_large", "too_large")


def test_subclasses_of_json_types_are_what_they_are():
    class Word(StrEnum):
        A = "a"

    class Number(IntEnum):
        ONE = 1

    text = check(OrderedDict({Word.A: Number.ONE, "t": (True, None), "w": Word.A}), "state")
    assert json.loads(text) == {"a": 1, "t": [True, None], "w": "a"}


# -- parse


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a":}', b"nul", b'"\x00"', b'"a\nb"', b"\xff", b"\xef\xbb\xbf1", "[1,]"]
)
def test_what_is_no_json_is_malformed_and_says_why(text: str | bytes):
    with pytest.raises(Malformed, match="The text is not") as caught:
        parse(text)
    assert isinstance(caught.value, Refused)
    assert (caught.value.code, caught.value.status) == ("malformed_json", 400)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}', "1e999", "[-1e400]", "9" * 5000])
def test_numbers_that_are_none_are_invalid_input(text: str):
    with pytest.raises(Invalid) as caught:
        parse(text)
    assert caught.value.status == 422


@pytest.mark.parametrize("depth", [MAX_DEPTH + 9, 5_000, 10_000, 200_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deeply_nested_text_is_refused_and_never_a_recursion_error(depth: int, opening: str):
    closing = "]" if opening == "[" else "}"
    with pytest.raises(Invalid, match="nested deeper"):
        parse(opening * depth + "1" + closing * depth)


def test_a_body_around_a_payload_of_the_greatest_depth_parses():
    body = parse(b'{"pattern":"x","input":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}")
    assert check(body["input"], "input")


def test_text_beyond_its_limit_is_not_even_read():
    with pytest.raises(TooLarge):
        parse(b"[" * 100, limit=50)
    assert parse('{"a":1,"a":2}', limit=50) == {"a": 2}
    assert parse(bytearray(b'"\\ud83d\\ude00"')) == "\U0001f600"


def test_lone_surrogates_in_text_reach_the_check():
    with pytest.raises(Invalid, match="surrogate"):
        check(parse('{"a":"\\ud800"}'), "input")


# -- escaped


@settings(max_examples=150, deadline=None)
@given(anything)
def test_whatever_is_escaped_can_be_stored(value: Any):
    check(escaped(value), "event")


@settings(max_examples=50, deadline=None)
@given(plain)
def test_escaping_leaves_what_can_be_stored_as_it_is(value: Any):
    try:
        check(value, "event")
    except Invalid:
        return
    assert escaped(value) == value


def test_escapes_are_readable():
    assert escaped({"a\0": ["b\0", LONE + "c", NAN, INFINITY, -INFINITY, (1, True, None)]}) == {
        "a\\u0000": ["b\\u0000", "\\ud800c", "NaN", "Infinity", "-Infinity", [1, True, None]]
    }
    assert escaped(10**5000) == "a number of 16610 bits"
    assert escaped(date(2026, 1, 2)) == "2026-01-02"


def test_escaping_never_raises():
    class Rude:
        def __str__(self) -> str:
            raise ZeroDivisionError

    cycle: list[Any] = []
    cycle.extend([cycle, cycle])

    assert escaped(Rude()) == "<Rude: no text, ZeroDivisionError>"
    check(escaped(cycle), "event")
    check(escaped(nested(100_000)), "event")


# -- jsonable


class Report(BaseModel):
    day: date = date(2026, 1, 2)
    pair: tuple[int, ...] = (1, 2)
    anything: Any = None

    @computed_field
    @property
    def total(self) -> int:
        return sum(self.pair)


@dataclass
class Row:
    at: datetime
    of: UUID


def test_models_dataclasses_and_dates_become_json():
    row = Row(datetime(2026, 1, 2, tzinfo=UTC), UUID(int=1))
    assert jsonable({"row": row, "report": Report(), "for": timedelta(hours=1)}, "step result") == {
        "row": {"at": "2026-01-02T00:00:00Z", "of": "00000000-0000-0000-0000-000000000001"},
        "report": {"day": "2026-01-02", "pair": [1, 2], "anything": None},
        "for": "PT1H",
    }
    assert jsonable(Report(), "output", round_trip=False)["total"] == 3


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (Report(anything=NAN), "/anything"),
        (Report(anything={"x": [1, INFINITY]}), "/anything/x/1"),
        ({"rows": [Report(anything=(NAN,))]}, "/rows/0/anything/0"),
        (Report(anything={5: NAN}), "/anything/5"),
    ],
)
def test_a_number_is_never_silently_turned_into_null(value: Any, where: str):
    with pytest.raises(Invalid) as caught:
        jsonable(value, "state")
    assert caught.value.errors[0]["pointer"] == where
    assert caught.value.errors[0]["code"] == "not_finite"


@pytest.mark.parametrize("value", [object(), Report(anything=object()), b"\xff", nested(5_000)])
def test_what_has_no_json_form_is_refused_with_the_payloads_name(value: Any):
    with pytest.raises(Invalid, match="The step result cannot"):
        jsonable(value, "step result")


def test_pointers_escape_their_separators():
    assert pointer(["a/b", 0, "c~d", ""]) == "/a~1b/0/c~0d/"
    assert pointer([]) == ""


def test_the_limits_fit_the_largest_setting():
    assert payloads.HARD_LIMIT == 64 * 1024 * 1024
