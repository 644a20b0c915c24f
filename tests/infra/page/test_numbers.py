"""Numbers as the page writes them, by its own code in a real Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.infra.page.browsing import opened
from tests.infra.page.page_server import page_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NO_BREAK = "\u00a0"
ASK = """async ([name, given]) => {
  const all = await import("/static/format.js");
  return given.map((arguments_) => all[name](...arguments_));
}"""


def written(browser: Browser, name: str, *given: list[Any]) -> list[Any]:
    """What a function of format.js makes of these arguments."""
    with page_server() as server, opened(browser, server.url) as page:
        answer: list[Any] = page.evaluate(ASK, [name, list(given)])
        return answer


def test_a_share_below_its_objective_is_never_rounded_up_to_it(browser: Browser) -> None:
    shares = [0.98996, 0.99, 0.990049, 0.999, 0.99989, 0.99995, 1.0, 0.5, 0.0]
    assert written(browser, "attained", *[[share] for share in shares]) == [
        text.replace(" ", NO_BREAK)
        for text in ("98.99 %", "99 %", "99 %", "99.9 %", "99.98 %", "> 99.99 %", "100 %", "50 %", "0 %")
    ]


def test_no_line_ends_between_a_number_and_its_unit(browser: Browser) -> None:
    said = "the allowed 15 %; 8 within 300 s, 1.5 min or 2 h and 3 steps of 4 hours"
    assert written(browser, "together", [said]) == [
        said.replace(" %", f"{NO_BREAK}%").replace(" s,", f"{NO_BREAK}s,").replace(" min", f"{NO_BREAK}min")
        .replace(" h ", f"{NO_BREAK}h ")
    ]  # fmt: skip


def test_marks_of_an_axis_have_the_digits_of_their_step(browser: Browser) -> None:
    steps = [
        ([0, 2.5, 5, 7.5], 2.5),
        ([0, 5, 10], 5),
        ([0, 0.25, 0.5], 0.25),
        ([0, 0.1, 0.2], 0.1),
        ([0, 0.002], 0.002),
    ]
    assert written(browser, "marks", *[[values, step] for values, step in steps]) == [
        ["0.0", "2.5", "5.0", "7.5"],
        ["0", "5", "10"],
        ["0.00", "0.25", "0.50"],
        ["0.0", "0.1", "0.2"],
        ["0.000", "0.002"],
    ]
