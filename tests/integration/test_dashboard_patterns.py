"""Patterns on the dashboard: figures of a bounded past, the graph, the form and what it makes of values."""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pydantic import BaseModel, ConfigDict, Field

from lychd.dashboard import drawing, fields, outcomes, patterns
from lychd.dashboard.fields import Kind
from runs.errors import Invalid
from runs.models import Run
from runs.patterns import Context, Finish, Goto, Pattern, PatternRegistry
from tests.support.admin_consents import a_user, logged_in
from tests.support.admin_runs import a_run, many_runs
from tests.support.dashboards import EVIL, assert_harmless, text_of

PAGE = "/patterns/inventory/"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    depth: int


class Everything(BaseModel):
    """One field of each kind."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20, min_length=2)
    story: str = ""
    count: int = Field(3, ge=0, le=9)
    share: float | None = None
    sure: bool = False
    colour: Colour = Colour.RED
    side: Literal["left", "right"]
    paths: list[str] = []
    numbers: list[int] = Field(default_factory=list[int], max_length=3)
    day: date | None = None
    ident: UUID | None = None
    inner: Inner
    other: dict[str, int] = {}
    either: int | list[int] = 1


class Nothing(BaseModel):
    pass


def a_pattern(model: type[BaseModel] = Everything, key: str = "odd", **more: Any) -> Any:
    pattern: Any = Pattern(key, input=model, state=Nothing, output=Nothing, **more)

    @pattern.start
    async def begin(ctx: Context[Any, Nothing]) -> Goto[Literal["again", "leave"]]:
        """Begin."""
        return Goto("leave")

    @pattern.node(replay_safe=True)
    async def again(ctx: Context[Any, Nothing]) -> Goto[Literal["begin", "again", "leave"]]:
        return Goto("leave")

    @pattern.node
    async def leave(ctx: Context[Any, Nothing]) -> Finish[Nothing]:
        return Finish(Nothing())

    pattern.compile()
    return pattern


def filled(**changes: str) -> dict[str, str]:
    sent = {
        "name": "Anna",
        "count": "4",
        "colour": '"blue"',
        "side": '"left"',
        "paths": "a\r\n\r\n b \n",
        "numbers": "1\n2",
        "day": "2026-12-01",
        "inner/depth": "7",
        "other": '{"x": 1}',
        "either": "[1, 2]",
        **changes,
    }
    return {f"input/{name}": value for name, value in sent.items()}


def test_a_schema_becomes_one_field_of_the_right_kind_each() -> None:
    form = fields.form_of(Everything.model_json_schema())
    kinds = {one.pointer: one.kind for one in form.walk()}
    assert kinds == {
        "": Kind.GROUP,
        "/name": Kind.TEXT,
        "/story": Kind.LONG_TEXT,
        "/count": Kind.INTEGER,
        "/share": Kind.NUMBER,
        "/sure": Kind.FLAG,
        "/colour": Kind.CHOICE,
        "/side": Kind.CHOICE,
        "/paths": Kind.LINES,
        "/numbers": Kind.LINES,
        "/day": Kind.TEXT,
        "/ident": Kind.TEXT,
        "/inner": Kind.GROUP,
        "/inner/depth": Kind.INTEGER,
        "/other": Kind.JSON,
        "/either": Kind.JSON,
    }
    raw = {one.pointer: one.raw for one in form.walk()}
    assert (raw["/count"], raw["/colour"], raw["/share"], raw["/other"]) == ("3", '"red"', "", "{}")
    assert [one.pointer for one in form.walk() if one.must] == ["/name", "/side", "/inner/depth"]


def test_what_was_sent_becomes_exactly_the_value_that_the_pattern_takes() -> None:
    form = fields.form_of(Everything.model_json_schema())
    value = fields.read(form, filled())
    assert value == {
        "name": "Anna",
        "count": 4,
        "sure": False,
        "colour": "blue",
        "side": "left",
        "paths": ["a", "b"],
        "numbers": [1, 2],
        "day": "2026-12-01",
        "inner": {"depth": 7},
        "other": {"x": 1},
        "either": [1, 2],
    }
    parsed = a_pattern().parse_input(value)
    assert (parsed.inner.depth, parsed.colour, parsed.day) == (7, Colour.BLUE, date(2026, 12, 1))


@pytest.mark.parametrize("digits", ["123456789012345678901234567890", "-0", "1e2"])
def test_numbers_are_read_as_json_and_keep_their_digits(digits: str) -> None:
    form = fields.form_of(Everything.model_json_schema())
    value = fields.read(form, filled(**{"inner/depth": digits}))
    if digits == "1e2":
        assert "depth" not in value["inner"]
    else:
        assert value["inner"]["depth"] == int(digits)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("count", "many", "not a number"),
        ("count", "1.5", "not a whole number"),
        ("count", "true", "not a number"),
        ("share", "NaN", "not a number"),
        ("side", "", "needed"),
        ("inner/depth", "", "needed"),
        ("numbers", "1\nx", "“x” is not a number"),
        ("other", "{", "not JSON"),
        ("either", "NaN", "NaN is no JSON value"),
        ("other", "[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_value_is_said_beside_its_field(name: str, text: str, word: str) -> None:
    form = fields.form_of(Everything.model_json_schema())
    fields.read(form, filled(**{name: text}))
    wrong = {one.pointer: one.errors for one in form.walk() if one.errors}
    assert list(wrong) == [f"/{name}"]
    assert word in wrong[f"/{name}"][0]


def test_faults_that_the_pattern_finds_stand_beside_the_nearest_field() -> None:
    form = fields.form_of(Everything.model_json_schema())
    value = fields.read(form, filled(name="A", numbers="1\n2\n3\n4", other='{"x": "no"}')) | {"extra": 1}
    with pytest.raises(Invalid) as caught:
        a_pattern().parse_input(value)
    rest = fields.tell(form, caught.value.errors)
    wrong = {one.pointer: one.errors for one in form.walk() if one.errors}
    assert set(wrong) == {"/name", "/numbers", "/other"}
    assert wrong["/other"][0].startswith("x: ")
    assert len(rest) == 1
    assert rest[0].startswith("extra: ")


def test_a_model_that_contains_itself_ends_in_a_field_for_json() -> None:
    class Tree(BaseModel):
        name: str
        child: Tree | None = None
        twins: list[Tree] = []

    form = fields.form_of(Tree.model_json_schema())
    assert {one.kind for one in form.walk() if one.pointer.endswith(("child", "twins"))} <= {Kind.JSON}
    assert len(list(form.walk())) < 20


def test_the_drawing_has_every_node_and_way_within_its_frame_and_no_box_over_another() -> None:
    drawn = drawing.draw(a_pattern().manifest)
    assert drawn is not None
    assert {box.name for box in drawn.boxes} == {"begin", "again", "leave", "end"}
    assert {(way.source, way.target) for way in drawn.ways} == {
        ("begin", "again"),
        ("begin", "leave"),
        ("again", "begin"),
        ("again", "again"),
        ("again", "leave"),
        ("leave", "end"),
    }
    for box in drawn.boxes:
        assert box.x >= 0
        assert box.x + box.width <= drawn.width
        assert box.y + box.height <= drawn.height
        for other in drawn.boxes:
            apart = box.x + box.width <= other.x or other.x + other.width <= box.x
            assert box is other or apart or box.y + box.height <= other.y or other.y + other.height <= box.y
    for way in drawn.ways:
        numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", way.path)]
        assert all(0 <= x <= drawn.width for x in numbers[::2]), way
    assert drawing.draw(a_pattern().manifest) == drawn


pages = pytest.mark.django_db


@pages
def test_the_list_tells_how_the_newest_runs_went_in_ones_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    many_runs(6)
    many_runs(3, status="failed")
    many_runs(50, tenant="other", status="failed")
    text = text_of(logged_in(a_user("anna", "runs.view_run")), "/patterns/")
    assert "6 done" in text
    assert "3 failed" in text
    assert "of the newest 9" in text
    text = text_of(logged_in(a_user("bert", "runs.submit_run")), "/patterns/")
    assert "6 done" not in text
    assert text_of(logged_in(a_user("carl")), "/patterns/", 403)


@pages
def test_durations_are_percentiles_of_what_is_done() -> None:
    runs = [a_run() for _ in range(20)]
    with connection.cursor() as cursor:
        for number, run in enumerate(runs):
            cursor.execute(
                "update runs_run set finished_at = created_at + make_interval(secs => %s) where id = %s",
                [10 + number, str(run)],
            )
    text = text_of(logged_in(a_user("anna", "runs.view_run")), PAGE)
    assert re.search(r"waiting included</th><td class=\"number\">19.5 s</td><td class=\"number\">28.1 s</td>", text)


@pages
def test_figures_cost_the_same_however_many_runs_there_are() -> None:
    client = logged_in(a_user("anna", "runs.view_run", "runs.submit_run"))
    many_runs(3_000)
    many_runs(200, status="queued")
    for address in ("/patterns/", PAGE):
        with CaptureQueriesContext(connection) as seen:
            text_of(client, address)
        asked = [one["sql"] for one in seen.captured_queries if "runs_run" in one["sql"]]
        assert 0 < len(asked) <= 6
        assert all("limit" in sql.lower() for sql in asked), asked


@pages
def test_a_pattern_without_runs_is_found_to_have_none_without_a_walk_over_all_the_others() -> None:
    many_runs(8_000)
    with connection.cursor() as cursor:
        cursor.execute("analyze runs_run")
        params = {"tenant": "default", "keys": ["inventory", "reclaim"], "recent": outcomes.RECENT}
        cursor.execute(f"explain {outcomes._FIGURES}", params)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "runs_run_by_pattern" in plan, plan
    assert "runs_run_newest" not in plan, plan


@pages
def test_the_page_has_graph_nodes_schema_and_a_form_with_the_defaults() -> None:
    client = logged_in(a_user("anna", "runs.view_run", "runs.submit_run"))
    answer = client.get(PAGE)
    assert_harmless(answer)
    text = answer.content.decode()
    assert '<svg class="graph"' in text
    for name in ("scan", "compare", "report"):
        assert f">{name}</text>" in text
    assert 'name="input/root" value="."' in text
    assert 'name="input/largest" value="10"' in text
    assert 'max="100"' in text
    assert "Walk over the folder" in text
    assert "lychd submit inventory" in text
    assert text_of(client, "/patterns/inventry/", 404).count("did you mean")
    assert 'name="input/root"' not in text_of(logged_in(a_user("bert", "runs.view_run")), PAGE)


@pages
def test_submitting_needs_the_right_the_token_and_a_vessel() -> None:
    sent = {"how": "fields", "key": "k", "input/root": ".", "input/largest": "10", "input/duplicates": "20"}
    looks = logged_in(a_user("bert", "runs.view_run"))
    assert looks.post(PAGE, sent).status_code == 403
    assert Client().post(PAGE, sent).status_code == 302
    may = a_user("anna", "runs.view_run", "runs.submit_run")
    assert logged_in(may, enforce_csrf_checks=True).post(PAGE, sent).status_code == 403
    answer = logged_in(may).post(PAGE, sent)
    assert answer.status_code == 503
    assert "No Vessel is running behind this address" in answer.content.decode()
    assert not Run.objects.exists()


@pages
def test_a_form_that_is_wrong_comes_back_with_what_was_written_and_where_it_is_wrong() -> None:
    client = logged_in(a_user("anna", "runs.submit_run"))
    answer = client.post(
        PAGE, {"how": "fields", "key": EVIL, "input/root": EVIL, "input/largest": "x" + EVIL, "priority": "101"}
    )
    assert answer.status_code == 422
    assert_harmless(answer)
    text = answer.content.decode()
    assert "Nothing was submitted" in text
    assert re.search(
        r'id="in-2f-largest"[^>]*aria-describedby="[^"]*in-2f-largest-error"[^>]*aria-invalid="true"', text
    )
    assert "from 0 to 100" in text
    assert "img src=x onerror" in text
    answer = client.post(PAGE, {"how": "json", "key": "k", "whole": '{"root": NaN}'})
    assert answer.status_code == 422
    assert "NaN is no JSON value" in answer.content.decode()
    assert "{&quot;root&quot;: NaN}" in answer.content.decode()


@pages
def test_words_of_a_pattern_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad(BaseModel):
        """Words."""

        field: str = Field(EVIL, title=EVIL, description=EVIL)
        word: Literal["</select><script>alert(1)</script>"] = "</select><script>alert(1)</script>"

    registry = PatternRegistry([a_pattern(Bad, "bad", title=EVIL, description=EVIL)])
    monkeypatch.setattr(patterns, "registry_of", lambda _: registry)
    client = logged_in(a_user("anna", "runs.view_run", "runs.submit_run"))
    for address in ("/patterns/", "/patterns/bad/"):
        assert_harmless(client.get(address))
