"""The pictures of the documentation, taken of a page that runs: `python -m tests.infra.page.screenshots URL DIRECTORY`.

The pictures there are show `harmony run --scenario endless --duration 10m`, an hour and a half of its time after the
context was full.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

PHONE = (390, 844)
WORKLOAD = "#/w/demo%2Fchat-70b"
DESK = (1280, 680)
# Name, place on the page, size, theme, what is at its top (else the page's beginning), what is the last that it holds.
PICTURES = (
    ("page-fleet", "", DESK, "light", None, None),
    ("page-workload", WORKLOAD, DESK, "light", None, ".card.half"),
    ("page-workload-dark", WORKLOAD, DESK, "dark", None, ".card.half"),
    ("page-phone", "", PHONE, "light", ".tools", None),
    ("page-phone-dark", WORKLOAD, PHONE, "dark", ".card", None),
)
MARGIN = 14


def take(browser: Browser, url: str, directory: Path) -> None:
    """All of them."""
    for name, place, (width, height), theme, first, last in PICTURES:
        size, dark = {"width": width, "height": height}, theme == "dark"
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", bypass_csp=True)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{url}/{place}")
        page.locator("canvas").first.wait_for(timeout=60_000)
        # No scroll bar is in the picture, so no room is kept for one.
        page.add_style_tag(content="html { scrollbar-gutter: auto }")
        page.wait_for_timeout(2_000)
        if last:
            bottom = page.locator(last).first.evaluate("(node) => node.getBoundingClientRect().bottom")
            page.set_viewport_size({"width": width, "height": int(bottom) + MARGIN})
        if first:
            # Below the header, which stays in sight.
            page.locator(first).first.evaluate(
                "(node, margin) => scrollTo(0, node.getBoundingClientRect().top - margin)",
                MARGIN + page.locator(".top").evaluate("(header) => header.offsetHeight"),
            )
        page.wait_for_timeout(500)
        page.screenshot(path=directory / f"{name}.png")
        shrink(directory / f"{name}.png")
        print(directory / f"{name}.png", file=sys.stderr)
        context.close()


def shrink(picture: Path) -> None:
    """A third of the bytes, to the eye the same."""
    # The method that keeps colours of which there is little, such as that of a small mark.
    few = (
        Image.open(picture).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
    )
    few.save(picture, optimize=True)


def main() -> None:
    """Usage: URL of the page's root, directory to write to."""
    url, directory = sys.argv[1].rstrip("/"), Path(sys.argv[2])
    path = os.environ.get("HARMONY_TEST_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        take(browser, url, directory)
        browser.close()


if __name__ == "__main__":
    main()
