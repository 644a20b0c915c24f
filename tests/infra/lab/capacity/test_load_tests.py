"""Load tests as their tools write them: what counts as good, which rates are told, what mistakes are answered."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.policy import Slo
from infra.console.errors import HarmonyError
from infra.lab.capacity.load_tests import LoadTest, capacity_of_load_tests, read_load_tests
from model.capacity.grid import LOAD_TEST_OFF_BY

SLO = Slo(ttft_s=1.0, tpot_s=0.1, objective=0.99)
SUMMARY = {
    "request_rate": 4.0, "burstiness": 1.0, "max_concurrency": None, "num_prompts": 1000, "duration": 250.0,
    "completed": 1000, "request_throughput": 3.9, "mean_ttft_ms": 200.0, "p99_ttft_ms": 800.0, "mean_tpot_ms": 40.0,
    "p99_tpot_ms": 90.0,
}  # fmt: skip
AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 13.2},
    "time_to_first_token": {"unit": "ms", "avg": 300.0, "p50": 250.0, "p99": 900.0},
    "inter_token_latency": {"unit": "ms", "avg": 30.0, "p50": 28.0, "p99": 60.0},
    "request_count": {"unit": "requests", "avg": 500.0},
    "error_summary": [],
}


def read(folder: Path, *objects: Any, slo: Slo = SLO) -> list[LoadTest]:
    path = folder / "result.json"
    path.write_text("\n".join(json.dumps(each) for each in objects), encoding="utf-8")
    return read_load_tests(path, slo)


def record(start_s: float, ttft_s: float, tpot_s: float | None, failed: bool = False) -> dict[str, Any]:
    metrics: dict[str, Any] = {"time_to_first_token": {"value": ttft_s * 1000, "unit": "ms"}}
    if tpot_s is not None:
        metrics["inter_token_latency"] = {"value": tpot_s * 1000, "unit": "ms"}
    return {
        "metadata": {"request_start_ns": round(start_s * 1e9)},
        "metrics": None if failed else metrics,
        "error": {"code": 500} if failed else None,
    }


def test_percentiles_of_a_summary_decide(tmp_path: Path) -> None:
    (good,) = read(tmp_path, SUMMARY)
    assert (good.rate_rps, good.requests, good.kept, good.missed) == (4.0, 1000, True, None)
    for name, ms in (("p99_ttft_ms", 1_001.0), ("p99_tpot_ms", 101.0)):
        assert not read(tmp_path, SUMMARY | {name: ms})[0].kept
    assert not read(tmp_path, SUMMARY | {"completed": 980})[0].kept


def test_several_lines_are_several_tests(tmp_path: Path) -> None:
    told = read(tmp_path, SUMMARY, SUMMARY | {"request_rate": 8.0, "p99_ttft_ms": 5_000.0})
    assert [(test.rate_rps, test.kept) for test in told] == [(4.0, True), (8.0, False)]
    assert told[1].source.endswith("line 2")


def test_a_closed_loop_came_at_the_rate_that_it_was_served(tmp_path: Path) -> None:
    (told,) = read(tmp_path, SUMMARY | {"request_rate": "inf", "max_concurrency": 32})
    assert told.rate_rps == 3.9


def test_aiperf_tells_the_same_in_its_own_words(tmp_path: Path) -> None:
    (told,) = read(tmp_path, AIPERF)
    assert (told.rate_rps, told.requests, told.kept) == (13.2, 500, True)
    assert not read(tmp_path, AIPERF | {"error_summary": [{"count": 6, "error_details": {}}]})[0].kept


REQUESTS = st.lists(
    st.tuples(st.floats(0.0, 2.0), st.lists(st.floats(0.0, 0.2), max_size=4), st.booleans()), min_size=2, max_size=60
)


@given(REQUESTS, st.sampled_from((0.5, 0.9, 0.99)))
def test_every_requests_times_are_counted_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[float, list[float], bool]], objective: float
) -> None:
    """As vLLM saves them and as AIPerf does: the same requests miss."""
    folder, slo = tmp_path_factory.mktemp("times"), Slo(1.0, 0.1, objective)
    missed = sum(
        failed or ttft > 1.0 or (len(gaps) > 0 and math.fsum(gaps) / len(gaps) > 0.1) for ttft, gaps, failed in requests
    )
    saved = {
        "ttfts": [ttft for ttft, _, _ in requests],
        "itls": [gaps for _, gaps, _ in requests],
        "errors": ["broken" if failed else "" for _, _, failed in requests],
        "completed": len(requests), "num_prompts": len(requests), "request_rate": 3.0,
        "request_throughput": 2.9,
    }  # fmt: skip
    (told,) = read(folder, saved, slo=slo)
    assert (told.missed, told.requests, told.rate_rps) == (missed, len(requests), 3.0)
    assert told.kept == (missed <= (1.0 - objective) * len(requests))
    records = [
        record(k / 3.0, ttft, math.fsum(gaps) / len(gaps) if gaps else None, failed)
        for k, (ttft, gaps, failed) in enumerate(requests)
        if all(abs(limit - value) > 1e-9 for limit, value in ((1.0, ttft), (0.1, math.fsum(gaps) / max(len(gaps), 1))))
    ]
    if len(records) == len(requests):
        (same,) = read(folder, *records, slo=slo)
        assert (same.missed, same.kept) == (told.missed, told.kept)
        assert same.rate_rps == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([], "is empty"),
        ([[1, 2]], "holds a list, not an object"),
        ([{"a": 1}], "is no result that is known"),
        ([SUMMARY | {"request_rate": "inf"}], "all sent at once"),
        ([SUMMARY | {"request_rate": 0}], "requests per second above 0"),
        ([{**SUMMARY, "completed": None}], "Expected `int`, got `null` - at `$.completed`"),
        ([{k: v for k, v in SUMMARY.items() if k != "p99_tpot_ms"}], "tells no percentile of 99 or more"),
        ([SUMMARY | {"ttfts": [1.0], "itls": []}], "one entry for each request"),
        ([SUMMARY | {"ttfts": [None], "itls": [[]]}], "Expected `float`, got `null` - at `$.ttfts[0]`"),
        ([record(1.0, 0.1, 0.1), record(1.0, 0.1, 0.1)], "all began at once"),
        ([{"metadata": {}, "metrics": {}}], "missing required field `request_start_ns` - at `$.metadata`"),
    ],
)
def test_a_file_that_tells_nothing_gets_a_sentence(told: list[Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(HarmonyError, match=re.escape(says)) as raised:
        read(tmp_path, *told)
    assert raised.value.exit_code == 2
    assert str(tmp_path) in raised.value.message


def test_an_objective_above_the_percentiles_needs_the_requests(tmp_path: Path) -> None:
    with pytest.raises(HarmonyError, match=r"of 99\.9 or more"):
        read(tmp_path, SUMMARY, slo=Slo(1.0, 0.1, 0.999))
    assert read(tmp_path, SUMMARY | {"p99.9_ttft_ms": 900.0, "p99.9_tpot_ms": 95.0}, slo=Slo(1.0, 0.1, 0.999))[0].kept


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["avg", "p99", "value", "x"]), inner),
    max_leaves=5,
)
KEYS = [*SUMMARY, *AIPERF, "ttfts", "itls", "errors", "failed", "metadata", "metrics", "error"]


@given(
    st.sampled_from((SUMMARY, AIPERF, record(1.0, 0.1, 0.1))), st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=5)
)
def test_whatever_a_file_holds_the_answer_is_a_test_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, body: dict[str, Any], junk: dict[str, Any]
) -> None:
    told: list[LoadTest] = []
    with contextlib.suppress(HarmonyError):
        told = read(tmp_path_factory.mktemp("junk"), body | junk)
    assert all(0 < test.rate_rps < math.inf and test.requests >= 0 for test in told)


def test_capacity_lies_between_what_was_kept_and_what_was_not() -> None:
    def tests(*rates: tuple[float, bool]) -> list[LoadTest]:
        return [LoadTest("t", rate, 5_000, kept) for rate, kept in rates]

    found = capacity_of_load_tests(tests((2.0, True), (8.0, True), (12.0, False), (16.0, False)), SLO, replicas=4)
    assert found.capacity_rps == pytest.approx(math.sqrt(8.0 * 12.0) / 4)
    assert (found.off_by, found.remarks) == (LOAD_TEST_OFF_BY, ())
    wide = capacity_of_load_tests(tests((2.0, True), (16.0, False)), SLO, 1)
    assert wide.off_by == pytest.approx(math.sqrt(8.0))
    # A rate that was kept above one that was not is luck.
    assert capacity_of_load_tests(tests((2.0, True), (4.0, False), (6.0, True)), SLO, 1).capacity_rps < 4.0
    open_end = capacity_of_load_tests(tests((2.0, True), (4.0, True)), SLO, 1)
    assert open_end.capacity_rps == 4.0
    assert "test higher ones" in open_end.remarks[0]
    with pytest.raises(HarmonyError, match=r"Even at 4 requests/s too many missed 1 s or 0\.1 s"):
        capacity_of_load_tests(tests((4.0, False), (6.0, False)), SLO, 1)
    few = capacity_of_load_tests([LoadTest("t", 3.0, 50, kept=True)], SLO, 1)
    assert "A test of 50 requests cannot tell 99.00%" in few.remarks[0]
