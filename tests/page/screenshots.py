"""The pictures of the documentation, taken of a page that runs: `python -m tests.page.screenshots URL DIRECTORY`.

The pictures there are show `harmony run --duration 10m`, about an hour of its time after the context was full.
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
# Name, place on the page, size, theme.
PICTURES = (
    ("page-fleet", "", (1280, 680), "light"),
    ("page-workload", WORKLOAD, (1280, 1180), "light"),
    ("page-workload-dark", WORKLOAD, (1280, 1180), "dark"),
    ("page-phone", "", PHONE, "light"),
    ("page-phone-dark", WORKLOAD, PHONE, "dark"),
)


def take(browser: Browser, url: str, directory: Path) -> None:
    """All of them."""
    for name, place, (width, height), theme in PICTURES:
        size, dark = {"width": width, "height": height}, theme == "dark"
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", bypass_csp=True)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{url}/{place}")
        page.locator("canvas").first.wait_for(timeout=60_000)
        # No scroll bar is in the picture, so no room is kept for one.
        page.add_style_tag(content="html { scrollbar-gutter: auto }")
        page.wait_for_timeout(2_000)
        page.screenshot(path=directory / f"{name}.png")
        shrink(directory / f"{name}.png")
        print(directory / f"{name}.png", file=sys.stderr)
        context.close()


def shrink(picture: Path) -> None:
    """A third of the bytes, to the eye the same."""
    Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)


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
