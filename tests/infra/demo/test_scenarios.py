"""The scenarios of `harmony run`, and the page that it writes at the end."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from infra.console.errors import HarmonyError
from infra.console.svg import COLOURS
from infra.demo.fleet import SeriesRow
from infra.demo.scenarios import DEFAULT_SCENARIO, SCENARIOS
from infra.demo.summary import _STYLE, PolicyResult, RunSummary, check_writable, taken_back, write_run_report
from infra.demo.workloads import DEMO_STREAM, demo_policy
from infra.simulator.closed_loop import ClosedLoop

HOUR_S = 3_600.0
SUMMARY = RunSummary(
    "day", 120.0, attainment=0.9951, gpu_hours=40.0, cost=110.0,
    shadows={"static_peak": PolicyResult(0.9999, 62.5, 170.0), "hpa": PolicyResult(0.981, 41.0, 112.0)},
)  # fmt: skip


def rate(name: str, seed: int = 0) -> np.ndarray:
    """Requests/s of all services by ten minutes after the warm-up."""
    scenario = SCENARIOS[name]
    fleet = scenario.fleet(seed)
    begin_s = DEMO_STREAM.context_steps * scenario.step_s
    end_s = begin_s + (scenario.length_s or 2 * HOUR_S)
    edges = np.arange(begin_s, end_s + 1, 600.0)
    arrivals = [w.source.between(0.0, end_s).arrival_s for w in fleet.workloads]
    return np.histogram(np.concatenate(arrivals), edges)[0] / 600.0


def test_a_day_goes_from_night_to_night_in_six_hours_and_some_minutes() -> None:
    day = SCENARIOS[DEFAULT_SCENARIO]
    assert day.name == "day"
    assert day.length_s is not None
    assert day.length_s >= 6 * HOUR_S
    assert day.length_s / day.speed <= 5 * 60
    load = rate("day")
    peak = int(load.argmax())
    assert len(load) // 4 < peak < 3 * len(load) // 4
    assert max(load[0], load[-1]) < 0.6 * load[peak]


def test_each_scenario_does_what_it_says() -> None:
    surge, ramp, cold, failing = (rate(name) for name in ("surge", "ramp", "cold-start", "gpu-failure"))
    assert surge.max() > 1.8 * np.median(surge)  # of ten minutes, of which the surge has eight
    assert ramp.max() > 5 * ramp[0]
    (slow,) = SCENARIOS["cold-start"].fleet(0).workloads
    assert slow.spec.lead_time_s == 240.0
    assert cold.max() > 2 * cold.min()
    (node,) = SCENARIOS["gpu-failure"].fleet(0).workloads
    assert [failure.share for failure in node.failures] == [pytest.approx(1 / 3)] * 2
    assert failing.max() < 2 * failing.min()
    for name, scenario in SCENARIOS.items():
        fleet = scenario.fleet(3, 2.5)
        assert (fleet.length_s is None) is (name == "endless")
        if fleet.length_s is not None:
            assert fleet.length_s == pytest.approx(DEMO_STREAM.context_steps * 2.5 + (scenario.length_s or 0))


def test_failures_count_from_the_end_of_the_warm_up() -> None:
    short, long = (SCENARIOS["gpu-failure"].fleet(0, step_s).workloads[0] for step_s in (5.0, 10.0))
    later_s = DEMO_STREAM.context_steps * 5.0
    assert [f.at_s + later_s for f in short.failures] == [f.at_s for f in long.failures]


def test_a_failure_takes_ready_replicas_from_every_policy_and_starts_as_many() -> None:
    (workload,) = SCENARIOS["gpu-failure"].fleet(0).workloads
    loop = ClosedLoop(workload, 0, 0, 5.0, 0.0, 600.0)
    at_s = workload.failures[0].at_s
    loop.live_slot(0.0, at_s - 5.0)
    clusters = [loop.cluster, *(shadow.cluster for shadow in loop.shadows)]
    before = [(c.num_ready, c.num_current) for c in clusters]
    loop.live_slot(at_s - 5.0, at_s)
    for cluster, (ready, current) in zip(clusters, before, strict=True):
        lost = -(-ready // 3)
        assert cluster.num_ready <= ready - lost + 1
        assert cluster.num_pending >= lost - 1
        assert cluster.num_current >= current - 1


@pytest.mark.parametrize(
    ("held", "expected"),
    [([5, 5, 5], (0, 0)), ([5, 4, 3], (2, 0)), ([5, 4, 5], (1, 1)), ([5, 4, 4, 4, 5], (1, 0)), ([3, 2, 4, 2], (2, 1))],
)
def test_shrinks_that_are_taken_back_are_counted(held: list[int], expected: tuple[int, int]) -> None:
    assert taken_back(held, [10.0 * k for k in range(len(held))], 20.0) == expected


class Tags(HTMLParser):
    """Counts the tags of a page, and keeps every address that it asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]


def series(workload: str, num: int = 1_000) -> dict[str, list[SeriesRow]]:
    rows = [
        SeriesRow(10.0 * k, 5.0 + k % 7, {"harmony": 3 + k // 300, "hpa": 4, "static_peak": 6}, (4.0, 6.0, 9.0), 60.0)
        for k in range(num)
    ]
    return {workload: rows}


def test_every_line_has_a_colour_for_dark_paper() -> None:
    dark = _STYLE.split("prefers-color-scheme:dark")[1]
    assert all(f'[stroke="{colour}"]' in dark for colour in COLOURS.values())


def test_the_page_stands_alone_and_shows_all_three(tmp_path: Path) -> None:
    policy = demo_policy(SCENARIOS["surge"].fleet(0))
    page = tmp_path / "report.html"
    assert write_run_report(page, "surge: <twice>", SUMMARY, series("demo/chat-70b"), policy)
    text = page.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.addresses == []
    assert "script" not in tags.counts
    assert "<twice>" not in text
    assert text.count("<polyline") == 4
    assert "HARMONY kept the objective of 99.00 %: 99.51 % of the requests" in text
    assert "0.64 times those of a fixed fleet that is told the peak (99.99 % within the SLO)" in text
    assert "</b> 98.10 %" in text
    for points in re.findall(r'points="([^"]+)"', text):
        numbers = [float(n) for pair in points.split() for n in pair.split(",")]
        assert min(numbers) >= 0
        assert max(numbers) <= 900
    assert len(text) < 120_000


def test_nothing_is_written_where_nothing_was_scored(tmp_path: Path) -> None:
    policy = demo_policy(SCENARIOS["surge"].fleet(0))
    page = tmp_path / "report.html"
    assert not write_run_report(page, "surge", SUMMARY, {"demo/chat-70b": []}, policy)
    assert not page.exists()


def test_a_place_that_takes_no_report_is_told_before_the_run(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "report.html")
    assert not (tmp_path / "new" / "report.html").exists()
    with pytest.raises(HarmonyError, match="--report: cannot write"):
        check_writable(tmp_path)
