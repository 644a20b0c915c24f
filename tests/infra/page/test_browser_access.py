"""The page for everybody: by keyboard, with a screen reader, in the dark and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra.demo.scenarios import SCENARIOS
from infra.demo.summary import write_run_report
from infra.demo.workloads import demo_policy
from infra.lab.report import ReportPage
from infra.page.live import PolicyLine
from tests.infra.demo.test_scenarios import SUMMARY, series
from tests.infra.page.browsing import DESKTOP, PHONE, opened, rows, until
from tests.infra.page.fleet_records import name
from tests.infra.page.hostile import LETTER
from tests.infra.page.page_server import PageServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_no_accessibility_finding_and_no_sideways_scrolling(
    browser: Browser, fleet: PageServer, size: dict[str, int], scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    fleet.view.policies = [
        PolicyLine("harmony", 61.2, 0.9954, 164.0),
        PolicyLine("static_peak", 94.0, 1.0, 255.3),
    ]
    with opened(browser, fleet.url, size, scheme) as page:
        # The driver hands axe in past the page's own policy, which would refuse it.
        for view in ("fleet", "workload", "health", "dead-letters", "settings"):
            if view == "fleet":
                rows(page).nth(5).wait_for()
                told = page.locator("#policy-rows tr").all_inner_texts()
                assert [row.split()[0] for row in told] == ["HARMONY", "Fixed"]
                assert "94.0 (1.54 ×)" in told[1]
            elif view != "workload":
                fleet.letters.take(LETTER)
                page.goto(f"{fleet.url}/#/{view}")
                if view == "settings":
                    page.get_by_label("Show defaults too").check()
                page.locator("#other table").wait_for()
            else:
                page.goto(f"{fleet.url}/#/w/{name(1).replace('/', '%2F')}")
                page.locator(".turns summary").first.click()
                page.locator(".inside table").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            found = axe.Axe().run(page).response["violations"]
            assert [(v["id"], v["impact"], [n["target"] for n in v["nodes"]]) for v in found] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_reports_have_no_accessibility_finding_and_fit(
    browser: Browser, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    demo, lab = tmp_path / "demo.html", tmp_path / "lab.html"
    assert write_run_report(demo, "surge", SUMMARY, series("demo/chat-70b"), demo_policy(SCENARIOS["surge"].fleet(0)))
    lines = [("your replicas, simulated", "100.00%", "22.3"), ("HARMONY, simulated", "99.88%", "13.2")]
    headings = ("replicas of", "good requests", "GPU-hours of the whole part that is scored, with all its days")
    report = ReportPage("t", "Title", "In short.", headings, lines, None, "", "Terms.", "Limits", ["one", "two"])
    lab.write_text(report.to_html())
    for file in (demo, lab):
        with opened(browser, file.as_uri(), size, scheme) as page:
            page.locator("table").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            found = axe.Axe().run(page).response["violations"]
            assert [(v["id"], v["impact"], [n["target"] for n in v["nodes"]]) for v in found] == []


def test_everything_can_be_reached_with_the_keyboard(browser: Browser, fleet: PageServer) -> None:
    with opened(browser, fleet.url) as page:
        rows(page).nth(5).wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.classList.contains('name')"):
                break
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        chosen = page.evaluate("document.activeElement.textContent")
        page.keyboard.press("Enter")
        page.locator(".risk tbody tr").first.wait_for()
        assert page.evaluate("document.activeElement.id") == "workload-title"
        page.locator(".load-plot").focus()
        before = page.locator(".readout").first.inner_text()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        until(page, "(t) => document.querySelector('.readout').textContent !== t", before)
        page.locator(".turns summary").first.focus()
        page.keyboard.press("Enter")
        page.locator(".turns details[open]").wait_for()
        page.keyboard.press("Escape")
        rows(page).first.wait_for()
        until(page, "(t) => document.activeElement.textContent === t", chosen)


def test_on_a_phone_a_figure_of_the_worker_has_the_whole_width_for_its_words(
    browser: Browser, fleet: PageServer
) -> None:
    with opened(browser, f"{fleet.url}/#/health", PHONE) as page:
        row = page.locator("#other tbody tr").first
        row.wait_for()
        assert row.locator("td").nth(3).evaluate("(cell) => cell.clientWidth") > 0.75 * PHONE["width"]
        assert row.evaluate("(node) => node.clientHeight") < 150
