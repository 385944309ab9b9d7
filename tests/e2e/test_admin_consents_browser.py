"""A person decides in a browser: a real Vessel, a headless Chromium, with and without JavaScript, by keyboard alone.

Skipped with its reason where no Chromium is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsing import Served, a_browser, a_served_vessel, chromium, submitted
from tests.support.waiting import eventually_sync

pytest_plugins = ["tests.support.vessel_fixtures"]
pytestmark = pytest.mark.timeout(180)

LIST = "/admin/consents/consent/"
APPROVES = (
    "consents.view_consent",
    "consents.decide_consent",
    "runs.view_run",
    "runs.view_step",
)
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture
def served(vessel_url: str, tmp_path: Path) -> Iterator[Served]:
    chromium()
    with a_served_vessel(vessel_url, tmp_path, "tests.support.asks") as served:
        yield served


def asked(data: Path, served: Served, **wish: Any) -> tuple[str, str]:
    """A Run that waits, and its Consent."""
    run = submitted(data, served, "tidy", **wish)
    eventually_sync(lambda: served.status(run) == "awaiting_consent", within=20)
    return run, served.one("select id::text from consents_consent where run_id = %s::uuid", run)


def someone(browser: Any, served: Served, name: str, password: str, **how: Any) -> Any:
    """A page of somebody who has logged in by the form, and what the browser complained about."""
    page = browser.new_context(**{"viewport": DESK, **how}).new_page()
    page.complaints = []
    page.on("console", lambda told: page.complaints.append(told.text) if told.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(f"{served.url}{LIST}")
    page.fill("#id_username", name)
    page.fill("#id_password", password)
    page.click("[type=submit]")
    page.wait_for_selector("#changelist")
    return page


def test_an_operator_reads_grants_and_sees_the_run_end(served: Served, tmp_path: Path) -> None:
    password = served.a_person("anna", *APPROVES)
    run, consent = asked(tmp_path, served, title="Move 3 duplicate photos")
    with a_browser() as browser:
        page = someone(browser, served, "anna", password)
        page.click("text=Move 3 duplicate photos")
        page.wait_for_selector("#comment")
        text = page.inner_text("main")
        for part in ("One copy of each stays where it is.", "photos/2026/beach.jpg", "quarantine/0192/002", "answered"):
            assert part in text, part
        digest = served.one("select digest from consents_consent where id = %s::uuid", consent)
        assert digest in text
        page.fill("#comment", "Looked at two of them.")
        page.click("button:has-text('Grant')")
        page.wait_for_selector("text=You granted this, and the Run goes on.")
        eventually_sync(lambda: served.status(run) == "done", within=20)
        page.reload()
        text = page.inner_text("main")
        assert "Granted by anna in the admin" in text
        assert "Looked at two of them." in text
        assert "It was done" in text
        assert page.query_selector("button[name=verdict]") is None
        page.goto(f"{served.url}{LIST}")
        assert "Nothing waits for an answer." in page.inner_text("main")
        assert page.complaints == []
    assert served.one("select output->>'moved' from runs_run where id = %s::uuid", run) == "3"


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_without_javascript_and_by_keyboard_alone_on_any_screen(
    served: Served, tmp_path: Path, viewport: dict[str, int], scheme: str
) -> None:
    password = served.a_person("anna", *APPROVES)
    run, _ = asked(tmp_path, served, files=40, risk="critical", title="Delete the archive " + "for good " * 18)
    with a_browser() as browser:
        page = someone(
            browser, served, "anna", password, viewport=viewport, color_scheme=scheme, java_script_enabled=False
        )
        assert "Delete the archive" in page.inner_text("#result_list")
        page.focus("#result_list th a")
        page.keyboard.press("Enter")
        page.wait_for_selector("#comment")
        box = page.query_selector("main").bounding_box()
        assert box["width"] <= viewport["width"]
        for button in page.query_selector_all("button[name=verdict]"):
            room = button.bounding_box()
            assert room["height"] >= 44
            assert 0 <= room["x"] <= viewport["width"] - room["width"]
        page.focus("#comment")
        page.keyboard.type("Not today.")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=You denied this, and the Run goes on.")
        eventually_sync(lambda: served.status(run) == "done", within=20)
    told = served.rows("select status, decided_by, comment from consents_consent where run_id = %s::uuid", run)
    assert told == [("denied", "anna", "Not today.")]
    assert served.one("select output->>'answer' from runs_run where id = %s::uuid", run) == "denied"


def test_the_second_of_two_people_sees_who_was_faster(served: Served, tmp_path: Path) -> None:
    anna, bert = served.a_person("anna", *APPROVES), served.a_person("bert", *APPROVES)
    run, consent = asked(tmp_path, served)
    address = f"{served.url}{LIST}{consent}/change/"
    with a_browser() as browser:
        first, second = someone(browser, served, "anna", anna), someone(browser, served, "bert", bert)
        first.goto(address)
        second.goto(address)
        first.click("button[value=grant]")
        first.wait_for_selector("text=You granted this, and the Run goes on.")
        second.fill("#comment", "No, never.")
        second.click("button[value=deny]")
        alert = second.wait_for_selector("[role=alert]").inner_text()
        assert "You were too late" in alert
        assert re.search(r"anna granted it .* before you, at .* UTC\. That stands\. Your no was not recorded\.", alert)
        eventually_sync(lambda: served.status(run) == "done", within=20)
    assert served.rows("select status, decided_by, comment from consents_consent where id = %s::uuid", consent) == [
        ("granted", "anna", "")
    ]


def test_several_are_granted_from_the_list_after_a_look_at_each(served: Served, tmp_path: Path) -> None:
    password = served.a_person("anna", *APPROVES)
    runs = [asked(tmp_path, served, title=f"Question {n}")[0] for n in range(3)]
    mine, _ = asked(tmp_path, served, title="Only for Finance", group="Finance")
    with a_browser() as browser:
        page = someone(browser, served, "anna", password)
        page.check("#action-toggle")
        page.select_option("select[name=action]", "grant_selected")
        page.click(".actions button")
        page.wait_for_selector("text=Grant 3 Consents?")
        text = page.inner_text("main")
        assert "Left out: 1" in text
        page.fill("#comment", "All fine.")
        page.click("button:has-text('Grant 3')")
        page.wait_for_selector("text=3 granted; their Runs go on.")
        for run in runs:
            eventually_sync(lambda run=run: served.status(run) == "done", within=20)
        assert page.complaints == []
    assert served.status(mine) == "awaiting_consent"
