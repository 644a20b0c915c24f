"""A page opened in a real Chromium, and how tests look at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


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


def until(page: Page, condition: str, argument: Any = None) -> None:
    """Wait for a condition. The driver's own way needs `eval`, which the page's policy forbids."""
    deadline_s = monotonic() + 30
    while not page.evaluate(condition, argument):
        assert monotonic() < deadline_s, condition
        page.wait_for_timeout(25)


def rows(page: Page) -> Any:
    return page.locator("#rows tr:not([hidden])")
