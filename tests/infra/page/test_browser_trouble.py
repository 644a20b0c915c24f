"""The page on bad input and on bad days: hostile text, workloads that vanish, a worker that restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from agents.decide.records import encode_decision
from agents.records import GuardStep
from infra.page.memory import STALE_AFTER_STEPS
from tests.infra.page.browsing import DESKTOP, PHONE, opened, rows
from tests.infra.page.fleet_records import TOPICS, decision, forecast, name, step_records
from tests.infra.page.hostile import EVIL
from tests.infra.page.page_server import PageServer, page_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


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
        fleet.fold((TOPICS.decisions, encode_decision(decision(name(0), 61 + STALE_AFTER_STEPS, 0))))
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
