"""The page in a real Chromium: what it shows, on a desk and a phone, in the dark, by keyboard, and on bad input."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agents.decide_records import encode_decision
from agents.records import GuardStep
from infra.kafka_tail import TailRecord
from infra.page.fleet import GONE_AFTER_STEPS
from infra.page.peers import Peer
from tests.page.fleet_records import TOPICS, decision, forecast, name, step_records
from tests.page.page_server import PageServer, page_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
EVIL = {
    "html": "<img src=x onerror=document.body.dataset.owned=1>",
    "script": "</td><script>document.body.dataset.owned=1</script>",
    "quotes": "\"'`&<>\\ ${document.body.dataset.owned=1} %3Cb%3E #/?&=%",
    "newlines": "one\ntwo\r\nthree\tfour\x00five",
    "long": "n" * 10_000,
    "wide": "ﷺ𒐫" * 200,
    "rtl": "\u202eevil\u202c \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "tilde": "~0123456789abcdef",
    "dots": "../../etc/passwd",
}


LETTER = TailRecord(
    0, 7, 1_760_000_000_000, b"k", b"{", (("topic", b"harmony.telemetry.gpu"), ("reason", EVIL["html"].encode()))
)


@contextmanager
def opened(browser: Browser, url: str, size: dict[str, int] = DESKTOP, scheme: str = "light") -> Iterator[Page]:
    """A page that fails the test when anything is logged as an error or refused by the security policy."""
    context = browser.new_context(viewport=size, color_scheme=scheme, has_touch=size is PHONE)  # type: ignore[arg-type]
    context.set_default_timeout(30_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        # A server that is stopped on purpose makes the browser log failed loads.
        lambda m: complaints.append(m.text) if m.type == "error" and "Failed to load resource" not in m.text else None,
    )
    page.goto(url)
    try:
        yield page
        assert complaints == []
    finally:
        context.close()


@pytest.fixture
def fleet() -> Iterator[PageServer]:
    with page_server() as server:
        for step in range(60):
            server.fold(*step_records(6, step))
        yield server


def until(page: Page, condition: str, argument: Any = None) -> None:
    """Wait for a condition. The driver's own way needs `eval`, which the page's policy forbids."""
    deadline_s = monotonic() + 30
    while not page.evaluate(condition, argument):
        assert monotonic() < deadline_s, condition
        page.wait_for_timeout(25)


def rows(page: Page) -> Any:
    return page.locator("#rows tr:not([hidden])")


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


def test_a_row_says_what_was_decided_and_why(browser: Browser, fleet: PageServer) -> None:
    with opened(browser, fleet.url) as page:
        row = rows(page).filter(has_text=name(5))
        row.wait_for()
        words = row.inner_text()
        assert "act" in words
        assert "holds at 7 replicas" in words
        assert "the largest recent proposal counts" in words
        assert "objective 99 %" in words
        canvas = row.locator("canvas")
        assert canvas.evaluate("(c) => c.width === Math.round(c.clientWidth * devicePixelRatio)")
        label = canvas.get_attribute("aria-label") or ""
        assert re.search(r"load between [\d.]+ and [\d.]+ requests/s; forecast at its end [\d.]+, 90 % between", label)
        assert page.locator("#link-text").inner_text() == "live"


def test_rows_change_as_decisions_arrive_without_moving(browser: Browser, fleet: PageServer) -> None:
    with opened(browser, fleet.url) as page:
        row = rows(page).filter(has_text=name(1))
        row.wait_for()
        page.evaluate(
            "window.shift = 0;"
            "new PerformanceObserver((l) => l.getEntries().forEach((e) => { window.shift += e.value; }))"
            ".observe({ type: 'layout-shift', buffered: true })"
        )
        for step in range(60, 80):
            fleet.fold(*step_records(6, step))
        row.filter(has_text="grows from 6 to 7 replicas").wait_for()
        assert page.evaluate("window.shift") < 0.02


def test_the_workload_view_explains_the_count(browser: Browser, fleet: PageServer) -> None:
    with opened(browser, f"{fleet.url}/#/w/{name(2).replace('/', '%2F')}") as page:
        page.locator(".risk tbody tr").first.wait_for()
        assert page.locator("h1#workload-title").inner_text() == name(2)
        assert page.title().startswith(name(2))
        chosen = page.locator(".risk tr.chosen").inner_text()
        assert "decided" in chosen
        assert "✓" in chosen
        assert page.locator(".uplot").count() == 2
        page.locator(".turns summary").nth(1).click()
        inside = page.locator(".turns .inside").nth(1).inner_text()
        assert "stabilization" in inside
        assert "→" in inside
        skill = page.locator("section.card", has_text="Forecast skill").locator("tbody tr")
        assert skill.count() == 3
        assert "%" in skill.first.inner_text()


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


def test_filter_order_and_theme(browser: Browser, fleet: PageServer) -> None:
    with opened(browser, fleet.url) as page:
        rows(page).nth(5).wait_for()
        page.fill("#filter", "service-0003")
        until(page, "document.querySelectorAll('#rows tr:not([hidden])').length === 1")
        assert page.locator("#count").inner_text() == "1 of 6"
        page.fill("#filter", "no such thing")
        page.get_by_text("No workload matches the filter.").wait_for()
        page.fill("#filter", "")
        page.select_option("#order", "load")
        page.wait_for_timeout(200)
        shown = [float(v) for v in page.locator("#rows tr:not([hidden]) .value").all_inner_texts()]
        assert shown == sorted(shown, reverse=True)
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.click("#theme")
        page.click("#theme")
        assert page.locator("#theme").inner_text() == "Theme: dark"
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark != light
        page.reload()
        rows(page).first.wait_for()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_hostile_names_and_reasons_stay_text(browser: Browser, size: dict[str, int]) -> None:
    with page_server() as server:
        for step in range(30):
            for evil in EVIL.values():
                guards = (GuardStep("stabilization", 4, 5, evil), GuardStep(evil, 5, 5, evil))
                made = decision(evil, step, guards=guards, proposer=evil, reason=evil if step % 2 else "stabilization")
                server.fold((TOPICS.decisions, encode_decision(made)))
                server.fold((TOPICS.forecasts, msgspec.json.encode(forecast(evil, step))))
        with opened(browser, server.url, size) as page:
            rows(page).nth(len(EVIL) - 1).wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            for at in range(len(EVIL)):
                # Order by name is the order of code units; the link itself must lead to its own row.
                link = rows(page).nth(at).locator("a.name")
                shown = link.get_attribute("title") or ""
                link.click()
                page.locator(".risk tbody tr").first.wait_for()
                page.locator(".turns summary").first.click()
                assert page.locator("#workload-title").evaluate("(n) => n.textContent") == shown
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                page.reload()
                page.locator(".risk tbody tr").first.wait_for()
                assert page.locator("#workload-title").evaluate("(n) => n.textContent") == shown
                page.keyboard.press("Escape")
                rows(page).first.wait_for()
            assert page.evaluate("document.body.dataset.owned") is None
            assert page.locator("img:not(.brand img), table script").count() == 0


def test_a_workload_that_vanishes_leaves_and_its_open_view_says_so(browser: Browser, fleet: PageServer) -> None:
    with opened(browser, fleet.url) as fleet_page, opened(browser, f"{fleet.url}/#/w/doomed") as view:
        view.get_by_text("No decision of this workload is known here").wait_for()
        fleet.fold((TOPICS.decisions, encode_decision(decision("doomed", 60))))
        rows(fleet_page).filter(has_text="doomed").wait_for()
        view.locator(".risk tbody tr").first.wait_for()
        fleet.fold((TOPICS.decisions, encode_decision(decision(name(0), 61 + GONE_AFTER_STEPS, 0))))
        rows(fleet_page).filter(has_text="doomed").wait_for(state="hidden")
        view.get_by_text("This workload has left").wait_for()
        assert view.locator(".uplot").count() == 2


def test_an_open_page_outlives_a_restart_of_the_worker(browser: Browser) -> None:
    with page_server(boot="first") as server:
        port = server.server.port
        server.fold(*step_records(2, 0))
        url = server.url
        page_context = opened(browser, url)
        page = page_context.__enter__()
        rows(page).nth(1).wait_for()
    page.get_by_text("No connection to the worker. Reconnecting").wait_for()
    assert page.locator("#link-text").inner_text() == "reconnecting …"
    assert rows(page).count() == 2  # what was known stays in sight
    with page_server(boot="second", port=port) as server:
        for step in range(3):
            server.fold(*step_records(3, step))
        page.get_by_text("The worker was restarted").wait_for()
        rows(page).nth(2).wait_for()
        assert page.locator("#link-text").inner_text() == "live"
        server.fold(*step_records(4, 3))
        rows(page).nth(3).wait_for()
        page_context.__exit__(None, None, None)


def test_a_worker_of_one_role_names_it_and_links_the_others(browser: Browser) -> None:
    with page_server(role="ingest") as server:
        server.meet(
            Peer("http://127.0.0.1:9465", "decide", "host-2", "t", 1, ""), Peer("javascript:1", "x", "y", "t", 1, "")
        )
        with opened(browser, server.url) as page:
            page.get_by_text("This worker's role: ingest.").wait_for()
            link = page.get_by_role("link", name="host-2 (decide)")
            assert link.get_attribute("href") == "http://127.0.0.1:9465"
            assert page.get_by_role("link", name="y (x)").get_attribute("href") == "#/"
            page.get_by_text("No decision has been published yet.").wait_for()


def test_a_thousand_workloads_come_in_pages_and_stay_fast(browser: Browser, record_property: Any) -> None:
    with page_server() as server:
        for step in range(48):
            server.fold(*step_records(1_000, step) if step >= 46 else step_records(60, step))
        with opened(browser, server.url) as page:
            rows(page).nth(49).wait_for()
            assert rows(page).count() == 50
            assert "Page 1 of 20" in page.locator("#pager").inner_text()
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            page.evaluate("performance.clearMeasures('harmony-draw')")
            newest = list(step_records(1_000, 48))
            started = monotonic()
            server.fold(*newest)
            fold_s = monotonic() - started
            until(page, "performance.getEntriesByName('harmony-draw').length > 0")
            update_s = monotonic() - started
            draw_ms = page.evaluate("Math.max(...performance.getEntriesByName('harmony-draw').map((e) => e.duration))")
            page.click("#next")
            page.get_by_text("Page 2 of 20").wait_for()
            page.fill("#filter", name(999))
            until(page, "document.querySelectorAll('#rows tr:not([hidden])').length === 1")
    print(
        f"1,000 workloads: first paint {paint:.0f} ms, update drawn in {draw_ms:.0f} ms, "
        f"{update_s:.2f} s after the records were handed in, of which {fold_s:.2f} s to take them in"
    )
    record_property("first_paint_ms", paint)
    record_property("draw_ms", draw_ms)
    # Generous: other work shares the machine.
    assert paint < 5_000
    assert draw_ms < 1_500


def test_dead_letters_and_settings_have_views_of_their_own(browser: Browser, fleet: PageServer) -> None:
    fleet.letters.take(LETTER)
    fleet.view.letters = 1
    with opened(browser, fleet.url) as page:
        page.get_by_role("link", name="Dead letters (1)").click()
        page.locator("#other tbody tr").wait_for()
        words = page.locator("#other").inner_text()
        assert EVIL["html"] in words
        assert "harmony.telemetry.gpu" in words
        assert page.evaluate("document.body.dataset.owned") is None
        assert page.evaluate("document.activeElement.id") == "other-title"
        page.get_by_role("link", name="Health").click()
        page.locator("#other tbody tr", has_text="lag_records").filter(has_text="ingest").wait_for()
        page.get_by_role("link", name="Settings").click()
        page.get_by_label("Show defaults too").check()
        page.locator("#other tbody tr", has_text="advanced.guards.lease_steps").wait_for()
        assert page.locator(".views [aria-current]").inner_text() == "Settings"
        page.keyboard.press("Escape")
        rows(page).nth(5).wait_for()
        assert page.locator("#other").is_hidden()


def test_the_workload_view_says_what_would_have_been_held(browser: Browser, fleet: PageServer) -> None:
    with opened(browser, f"{fleet.url}/#/w/{name(4).replace('/', '%2F')}") as page:
        card = page.locator(".card", has_text="Beside what is held")
        card.locator("p", has_text="HARMONY would have held").wait_for()
        assert "replica-hours were held beyond it" in card.inner_text()
        page.goto(f"{fleet.url}/#/")
        tile = page.locator(".tile", has_text="Beside what is held")
        tile.filter(has_text="observed").wait_for()
