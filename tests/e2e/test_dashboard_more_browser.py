"""The dashboard's Home, Consents, Patterns and System in a headless Chromium, through a real Vessel.

Skipped with its reason where no Chromium is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsing import Served, a_browser, a_served_vessel, chromium, submitted
from tests.support.dashboards import a_line
from tests.support.waiting import eventually_sync

pytest_plugins = ["tests.support.vessel_fixtures"]
pytestmark = pytest.mark.timeout(180)

OPERATES = (
    "consents.view_consent",
    "consents.decide_consent",
    "runs.view_run",
    "runs.view_step",
    "runs.submit_run",
    "runs.view_boot",
    "runs.view_vesselslot",
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
    page.goto(f"{served.url}/login/")
    page.fill("#id_username", name)
    page.fill("#id_password", password)
    page.click("main button[type=submit]")
    page.wait_for_selector("#needs-heading")
    return page


def test_an_operator_is_told_at_home_grants_from_the_inbox_and_sees_the_run_end(served: Served, tmp_path: Path) -> None:
    password = served.a_person("anna", *OPERATES)
    with a_browser() as browser:
        page = someone(browser, served, "anna", password)
        page.wait_for_selector(".live[data-state=live]")
        assert "Nothing needs you" in page.inner_text("[data-part=needs]")
        run, consent = asked(tmp_path, served, title="Move 3 duplicate photos")
        # Without a reload.
        page.wait_for_selector("[data-part=needs] >> text=Move 3 duplicate photos")
        assert page.title().startswith("(1) Home")
        page.click("nav.places >> text=Consents")
        page.wait_for_url("**/consents/")
        page.wait_for_selector("#inbox")
        # The keys are the module's, which then follows the feed.
        page.wait_for_selector(".live[data-state=live]")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector("#comment")
        assert served.one("select digest from consents_consent where id = %s::uuid", consent) in page.inner_text("main")
        page.fill("#comment", "Looked at two of them.")
        page.click("button:has-text('Grant')")
        page.wait_for_selector("text=You granted this, and the Run goes on.")
        # The end of the Run comes to the page by itself.
        page.wait_for_selector("[data-part=run] .lychd-done")
        assert "Granted by anna on the dashboard" in page.inner_text("main")
        assert page.complaints == []
    assert served.status(run) == "done"
    told = served.rows("select decided_by, surface, comment from consents_consent where id = %s::uuid", consent)
    assert told == [("anna", "dashboard", "Looked at two of them.")]


def test_an_open_inbox_tells_what_was_settled_elsewhere_and_what_is_new_without_moving(
    served: Served, tmp_path: Path
) -> None:
    anna, bert = served.a_person("anna", *OPERATES), served.a_person("bert", *OPERATES)
    _, first = asked(tmp_path, served, title="First question")
    _, second = asked(tmp_path, served, title="Second question")
    with a_browser() as browser:
        watching, acting = someone(browser, served, "anna", anna), someone(browser, served, "bert", bert)
        watching.goto(f"{served.url}/consents/")
        watching.wait_for_selector(".live[data-state=live]")
        before = watching.query_selector(f"[data-consent='{second}']").bounding_box()
        reading = watching.context.new_page()
        reading.goto(f"{served.url}/consents/{first}/")
        reading.wait_for_selector(".live[data-state=live]")
        reading.fill("#comment", "Half a thou")
        acting.goto(f"{served.url}/consents/{first}/")
        acting.click("button[value=deny]")
        acting.wait_for_selector("text=You denied this, and the Run goes on.")
        watching.wait_for_selector(f"[data-consent='{first}'] >> text=denied by bert")
        reading.wait_for_selector("#settled >> text=Meanwhile it was denied by bert.")
        assert reading.is_disabled("button[value=grant]")
        assert reading.input_value("#comment") == "Half a thou"
        asked(tmp_path, served, title="Third question")
        watching.wait_for_selector("text=1 new: show it")
        assert watching.title().startswith("(1) ")
        assert watching.query_selector("text=Third question") is None
        now = watching.query_selector(f"[data-consent='{second}']").bounding_box()
        assert now["y"] >= before["y"]
        watching.click("#news-show")
        watching.wait_for_selector("text=Third question")
        assert [*watching.complaints, *acting.complaints] == []


def fill_in(page: Any) -> None:
    page.get_by_label("Title").fill("Tidy by hand")
    page.get_by_label("Files").fill("7")
    page.get_by_label("Risk").select_option("high")
    if not page.get_by_label("Priority").is_visible():
        page.click("summary:has-text('Priority')")
    page.get_by_label("Priority").fill("80")


def test_a_run_is_submitted_from_the_form_once_and_faults_stand_beside_their_fields(served: Served) -> None:
    password = served.a_person("anna", *OPERATES)
    with a_browser() as browser:
        page = someone(browser, served, "anna", password)
        page.goto(f"{served.url}/patterns/")
        page.click("h2 >> text=Tidy")
        page.wait_for_selector("svg.graph")
        assert page.text_content(".graph-label text") == "waits: consent"
        page.get_by_label("Title").fill("Tidy by hand")
        page.get_by_label("Files").fill("2000")
        # As a browser without such checks would send it.
        page.eval_on_selector("form.submission", "form => { form.noValidate = true }")
        page.click("button[value=fields]")
        page.wait_for_selector("text=Nothing was submitted")
        assert "less than or equal to 1000" in page.inner_text("#in-2f-files-error")
        assert page.get_by_label("Title").input_value() == "Tidy by hand"
        assert served.one("select count(*) from runs_run") == 0
        fill_in(page)
        key = page.input_value("input[name=key]")
        page.click("button[value=fields]")
        page.wait_for_url("**/runs/*/")
        run = page.url.rstrip("/").rpartition("/")[2]
        eventually_sync(lambda: served.status(run) == "awaiting_consent", within=20)
        found = served.rows(
            "select surface, source, sigil_name, priority, input->>'title', input->>'risk', input->'files',"
            " user_id::text from runs_run"
        )
        anna = served.one("select id::text from sigils_user where username = 'anna'")
        assert found == [("dashboard", "dashboard", "anna", 80, "Tidy by hand", "high", 7, anna)]
        # The same form again makes no second Run; changed, it says so and offers another.
        for title, sentence in (("Tidy by hand", "This form had been sent before"), ("Another", "Send it once more")):
            page.goto(f"{served.url}/patterns/tidy/")
            fill_in(page)
            page.get_by_label("Title").fill(title)
            page.eval_on_selector("input[name=key]", "(field, key) => { field.value = key }", key)
            page.click("button[value=fields]")
            page.wait_for_selector(f"text={sentence}")
            assert run in page.url or run in page.inner_text("[role=alert]")
        assert served.one("select count(*) from runs_run") == 1
        page.click("button[value=fields]")
        page.wait_for_url("**/runs/*/")
        assert run not in page.url
        page.goto(f"{served.url}/patterns/tidy/")
        page.click("summary:has-text('whole input')")
        page.fill("#in-whole", '{"title": "By JSON", "files": 1}')
        page.click("button[value=json]")
        page.wait_for_url("**/runs/*/")
    assert served.one("select count(*) from runs_run where input->>'title' = 'By JSON'") == 1


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_without_javascript_on_any_screen_every_page_shows_the_state_and_acts(
    served: Served, tmp_path: Path, viewport: dict[str, int], scheme: str
) -> None:
    password = served.a_person("anna", *OPERATES)
    run, _ = asked(tmp_path, served, files=40, risk="critical", title="Delete the archive " + "for good " * 18)
    with a_browser() as browser:
        page = someone(
            browser, served, "anna", password, viewport=viewport, color_scheme=scheme, java_script_enabled=False
        )
        assert "As of" in page.inner_text("#live-words")
        for path in ("/", "/consents/", "/patterns/", "/patterns/tidy/", "/patterns/reclaim/", "/system/"):
            page.goto(f"{served.url}{path}")
            for box in (page.query_selector("main").bounding_box(), page.query_selector("h1").bounding_box()):
                assert box["x"] + box["width"] <= viewport["width"] + 0.5, path
        assert "Ready: all" in page.inner_text("[data-part=ready]")
        assert "serves" in page.inner_text("[data-part=vessel]")
        assert "delivery" in page.inner_text("[data-part=relays]")
        page.goto(f"{served.url}/")
        page.focus("[data-part=needs] .row-main")
        page.keyboard.press("Enter")
        page.wait_for_selector("#comment")
        page.focus("#comment")
        page.keyboard.type("Not today.")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=You denied this, and the Run goes on.")
        eventually_sync(lambda: served.status(run) == "done", within=20)
    told = served.rows("select status, decided_by, comment from consents_consent where run_id = %s::uuid", run)
    assert told == [("denied", "anna", "Not today.")]


def test_an_inbox_that_is_cut_off_says_so_and_catches_up_without_a_reload(served: Served, tmp_path: Path) -> None:
    password = served.a_person("anna", *OPERATES)
    _, before = asked(tmp_path, served, title="Before")
    with a_line(served.url) as line, a_browser() as browser:
        through = Served(line.url, served.database_url, served.process)
        page = someone(browser, through, "anna", password)
        page.goto(f"{line.url}/consents/")
        page.wait_for_selector(".live[data-state=live]")
        line.cut()
        page.wait_for_selector(".live[data-state=offline] >> text=Offline since")
        asked(tmp_path, served, title="While away")
        served.rows(
            "update consents_consent set status = 'denied', decided_by = 'bert', decided_at = now(), surface = 'rest',"
            " updated_at = now() where id = %s::uuid",
            before,
        )
        assert page.query_selector("#news:not([hidden])") is None
        line.mend()
        page.wait_for_selector("text=1 new: show it")
        page.wait_for_selector(f"[data-consent='{before}'] >> text=denied by bert")
        page.wait_for_selector(".live[data-state=live]")
        assert page.locator("[data-consent]").count() == 1
