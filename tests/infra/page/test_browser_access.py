"""The page for everybody: by keyboard, with a screen reader, in the dark and on a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.infra.page.browsing import DESKTOP, PHONE, opened, rows, until
from tests.infra.page.fleet_records import name
from tests.infra.page.hostile import LETTER
from tests.infra.page.page_server import PageServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_no_serious_accessibility_finding_and_no_sideways_scrolling(
    browser: Browser, fleet: PageServer, size: dict[str, int], scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    with opened(browser, fleet.url, size, scheme) as page:
        # The driver hands axe in past the page's own policy, which would refuse it.
        for view in ("fleet", "workload", "health", "dead-letters", "settings"):
            if view == "fleet":
                rows(page).nth(5).wait_for()
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
            serious = [
                (v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")
            ]
            assert serious == []


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
