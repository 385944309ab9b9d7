"""Input, state and output of a Pattern: read strictly, written so that they read back, faults named by place."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator

from runs.errors import Invalid
from runs.patterns import Finish, Pattern, PatternError
from runs.payloads import check


class Colour(StrEnum):
    RED = "red"


class Row(BaseModel):
    name: str
    size: int = Field(0, ge=0)


class Input(BaseModel):
    model_config = ConfigDict(extra="forbid")

    root: Path
    day: date = date(2026, 1, 1)
    rows: list[Row] = []
    by_name: dict[str, Row] = {}
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (1, "a")
    id: UUID = UUID(int=1)
    price: Decimal = Decimal("1.50")
    wait: timedelta = timedelta(minutes=1)
    tags: frozenset[str] = frozenset()
    ratio: float = 1

    @field_validator("root")
    @classmethod
    def _known(cls, value: Path) -> Path:
        if value == Path("/forbidden"):
            raise ValueError("not that one\0")
        return value


class State(BaseModel):
    count: int = Field(0, alias="n")
    seen: list[str] = []
    anything: Any = None


class Report(BaseModel):
    total: int = 0

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.total


class Longer(Report):
    title: str = "x"


class Unschemed(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    thing: Pattern[Any, Any, Any] | None = None


def a_pattern(**options: Any) -> Pattern[Any, Any, Any]:
    return Pattern(
        **{"key": "tidy", "input": Input, "state": State, "output": Report, **options},
    )


tidy = Pattern("tidy", input=Input, state=State, output=Report)


def places(error: Invalid) -> list[tuple[str, str]]:
    return [(problem["pointer"], problem["code"]) for problem in error.errors]


def test_json_spellings_of_rich_types_are_read():
    given = tidy.parse_input(
        {
            "root": "/tmp",
            "day": "2026-02-03",
            "rows": [{"name": "a", "size": 2}],
            "by_name": {"b": {"name": "b"}},
            "colour": "red",
            "pair": [2, "b"],
            "id": str(UUID(int=2)),
            "price": "2.50",
            "wait": "PT5M",
            "tags": ["x"],
            "ratio": 2,
        }
    )
    assert given == Input(
        root=Path("/tmp"),
        day=date(2026, 2, 3),
        rows=[Row(name="a", size=2)],
        by_name={"b": Row(name="b")},
        pair=(2, "b"),
        id=UUID(int=2),
        price=Decimal("2.50"),
        wait=timedelta(minutes=5),
        tags=frozenset({"x"}),
        ratio=2.0,
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, [("/root", "missing")]),
        ({"root": "/", "rows": [{"name": 1}, {"name": "a", "size": -1}]}, None),
        ({"root": "/", "pair": ["2", "b"]}, [("/pair/0", "int_type")]),
        ({"root": "/", "ratio": "2"}, [("/ratio", "float_type")]),
        ({"root": "/", "by_name": {"a/b": {}}}, [("/by_name/a~1b/name", "missing")]),
        ({"root": "/", "more": 1}, [("/more", "extra_forbidden")]),
        ({"root": "/forbidden"}, [("/root", "value_error")]),
        ([], [("", "model_type")]),
        (None, [("", "model_type")]),
        ("text", [("", "model_type")]),
    ],
)
def test_what_does_not_fit_is_refused_with_json_pointers(value: Any, expected: list[tuple[str, str]] | None):
    with pytest.raises(Invalid, match="The input does not fit: ") as caught:
        tidy.parse_input(value)
    assert places(caught.value) == expected or [("/rows/0/name", "string_type"), ("/rows/1/size", "greater_than_equal")]
    assert all(set(problem) == {"pointer", "detail", "code"} for problem in caught.value.errors)
    assert (caught.value.status, caught.value.__cause__, caught.value.__context__) == (422, None, None)


def test_faults_can_themselves_be_stored_and_are_few():
    for value in ({"root": "/forbidden"}, {"root": "/", "rows": [1] * 5000}, {"root": "/", "x" * 10_000: 1}):
        with pytest.raises(Invalid) as caught:
            tidy.parse_input(value)
        assert check({"detail": caught.value.detail, "errors": caught.value.errors}, "error", 10_000)
        assert 1 <= len(caught.value.errors) <= 20


def test_a_fault_does_not_repeat_the_value_that_was_sent():
    with pytest.raises(Invalid) as caught:
        tidy.parse_input({"root": "/", "rows": "secret-word"})
    assert "secret-word" not in f"{caught.value.detail}{caught.value.errors}"


@pytest.mark.parametrize("value", [{"root": "a\0"}, {"root": "\ud800"}, {"root": "/", "ratio": float("nan")}])
def test_input_that_cannot_be_stored_is_refused_before_it_is_read(value: Any):
    with pytest.raises(Invalid, match="The input cannot be stored"):
        tidy.parse_input(value)


def test_a_state_reads_back_as_it_was_written():
    state = State(n=3, seen=["a"], anything={"x": [1, None]})
    dumped = tidy.dump_state(state)
    assert dumped == {"n": 3, "seen": ["a"], "anything": {"x": [1, None]}}
    assert tidy.parse_state(dumped) == state


def test_a_state_that_was_assigned_nonsense_is_refused_at_the_checkpoint():
    state = State()
    state.count = "many"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Invalid, match="The state does not fit") as caught:
        tidy.dump_state(state)
    assert places(caught.value) == [("/n", "int_type")]


@pytest.mark.parametrize(
    ("anything", "code"),
    [
        (float("nan"), "not_finite"),
        ([{"x": float("inf")}], "not_finite"),
        ("a\0", "nul"),
        ({"\ud800": 1}, "surrogate"),
        ([10**5000], "too_many_digits"),
    ],
)
def test_a_state_that_jsonb_cannot_hold_is_refused_and_never_altered(anything: Any, code: str):
    with pytest.raises(Invalid, match="The state cannot be stored") as caught:
        tidy.dump_state(State(anything=anything))
    assert caught.value.errors[0]["code"] == code


def test_a_state_without_a_json_form_is_refused():
    with pytest.raises(Invalid, match="The state cannot be written as JSON"):
        tidy.dump_state(State(anything=object()))
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(Invalid, match="The state cannot be written as JSON"):
        tidy.dump_state(State(anything=cycle))


@pytest.mark.parametrize(("wrong", "words"), [(Report(), "a Report"), (None, "None"), ({}, "a dict"), (5, "an int")])
def test_only_the_patterns_own_state_is_a_state(wrong: Any, words: str):
    with pytest.raises(Invalid, match=f"The state is {words}, but the Pattern's state is State"):
        tidy.dump_state(wrong)


def test_an_output_is_published_with_its_computed_fields():
    assert tidy.dump_output(Report(total=2)) == {"total": 2, "twice": 4}
    assert tidy.dump_output(Longer(total=1)) == {"total": 1, "twice": 2, "title": "x"}
    assert tidy.parse_output({"total": 2}) == Report(total=2)


def test_an_output_is_proved_at_the_end():
    report = Report()
    report.total = 1.5  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Invalid, match="The output does not fit: /total"):
        tidy.dump_output(report)
    with pytest.raises(Invalid, match="The output is a State, but the Pattern's output is Report"):
        tidy.dump_output(State())  # pyright: ignore[reportArgumentType]


def test_the_schemas_stand_in_the_manifest():
    pattern = a_pattern()

    @pattern.start
    async def begin(ctx: Any) -> Finish[Report]:
        return Finish(Report())

    schemas = pattern.manifest.schemas
    assert schemas["input"]["required"] == ["root"]
    assert schemas["input"]["additionalProperties"] is False
    assert "n" in schemas["state"]["properties"]
    assert "twice" in schemas["output"]["properties"]


def test_a_model_without_a_schema_is_refused_when_the_graph_is_compiled():
    pattern = a_pattern(state=Unschemed)

    @pattern.start
    async def begin(ctx: Any) -> Finish[Report]:
        return Finish(Report())

    with pytest.raises(PatternError, match="the state model Unschemed has no JSON schema"):
        pattern.compile()
