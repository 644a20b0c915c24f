"""Every rule that makes an indicator of samples, in numbers that can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streams.records.facts import HistogramState
from tests.streams.ingest.ingest_log import Log, facts


def test_gauges_over_the_step_then_over_sources() -> None:
    log = Log()
    for ts, waiting, usage in ((0, 2.0, 0.5), (300, 4.0, 0.7)):
        log.sample(ts, {"num_requests_waiting": waiting, "kv_cache_usage_ratio": usage}, source="a")
    log.sample(100, {"num_requests_waiting": 10, "kv_cache_usage_ratio": None}, source="b")
    log.tick(1500)
    assert log.cells("engine.waiting") == [13.0]
    assert log.cells("engine.waiting_max") == [14.0]
    assert log.cells("engine.kv_cache_usage_ratio") == [pytest.approx(0.7)]
    assert log.cells("engine.running") == [None]
    assert facts(log.pages[0]).num_samples == 3
    assert facts(log.pages[0]).sources_seen == 2


def test_gpu_ratios() -> None:
    log = Log(source="gpu")
    log.sample(0, {"memory_used_bytes": 10, "memory_total_bytes": 40, "power_w": 300}, source="g0")
    log.sample(0, {"memory_used_bytes": 30, "memory_total_bytes": 40, "power_w": 500}, source="g1")
    log.sample(1, {"memory_used_bytes": 0, "memory_total_bytes": 0}, source="g2")
    log.tick(1500)
    assert log.cells("gpu.memory_used_ratio") == [0.5]
    assert log.cells("gpu.power_w") == [800.0]


def test_counters_of_devices_are_rates() -> None:
    log = Log(source="gpu")
    for ts, energy, errors in ((0, 7_000.0, 2.0), (1_000, 7_600.0, 2.0), (2_000, 8_200.0, 3.0), (3_000, 100.0, 3.0)):
        log.sample(ts, {"energy_total_j": energy, "ecc_errors_total": errors}, source="g0")
        log.sample(ts, {"energy_total_j": energy + 1_000}, source="g1")
    log.tick(4_500)
    # A counter that falls, as after a reload of the driver, masks the step.
    assert log.cells("gpu.energy_w") == [None, 1_200.0, 1_200.0, None]
    assert log.cells("gpu.ecc_error_rate") == [None, 0.0, 1.0, 0.0]


def test_clocks_are_averaged_and_the_worst_error_code_counts() -> None:
    log = Log(source="gpu")
    log.sample(0, {"sm_clock_mhz": 1_980, "throttled_ratio": 0, "xid_code": 0}, source="g0")
    log.sample(500, {"sm_clock_mhz": 1_000, "throttled_ratio": 1, "xid_code": 79}, source="g0")
    log.sample(0, {"sm_clock_mhz": 1_980, "throttled_ratio": 0, "xid_code": 43}, source="g1")
    log.tick(1500)
    assert log.cells("gpu.sm_clock_mhz") == [1_735.0]
    assert log.cells("gpu.throttled_ratio") == [0.25]
    assert log.cells("gpu.xid_code") == [79.0]


def test_work_of_the_prefill_and_what_it_costs_to_share_it() -> None:
    log = Log()
    for ts, prompt, uncached, preempted in ((0, 0, 0, 0), (1_000, 900, 300, 0), (2_000, 1_800, 600, 2)):
        counters = {"prompt_tokens_total": prompt, "uncached_prompt_tokens_total": uncached}
        log.sample(ts, {**counters, "preemptions_total": preempted, "inter_token_s": 0.02}, source="a")
        log.sample(ts, {"inter_token_s": 0.04}, source="b")
    log.tick(3_500)
    assert log.cells("request.prompt_token_rate") == [None, 900.0, 900.0]
    assert log.cells("request.uncached_prompt_token_rate") == [None, 300.0, 300.0]
    assert log.cells("engine.preemption_rate") == [None, 0.0, 2.0]
    assert log.cells("engine.inter_token_s") == [pytest.approx(0.03)] * 3


def test_a_rate_needs_two_samples_and_spans_the_time_between_them() -> None:
    log = Log()
    log.sample(500, {"requests_started_total": 100})
    log.sample(1500, {"requests_started_total": 130})
    log.sample(2000, {"requests_started_total": 131})
    log.sample(2500, {"requests_started_total": 150})
    log.sample(4500, {"requests_started_total": 190})
    log.tick(5500)
    assert log.cells("request.arrival_rate") == [None, 30.0, 20.0, None, 20.0]


def test_two_samples_of_a_new_source_in_one_slot_give_a_rate() -> None:
    log = Log()
    log.sample(100, {"requests_started_total": 100})
    log.sample(600, {"requests_started_total": 110})
    log.tick(1500)
    assert log.cells("request.arrival_rate") == [20.0]


def test_rates_add_up_over_sources() -> None:
    log = Log()
    for ts in (0, 1000):
        log.sample(ts, {"requests_started_total": ts / 100}, source="a")
        log.sample(ts, {"requests_started_total": ts / 50}, source="b")
    log.tick(2500)
    assert log.cells("request.arrival_rate") == [None, 30.0]


def test_a_reset_masks_the_indicator_and_is_told() -> None:
    log = Log()
    for source in ("a", "b"):
        log.sample(0, {"requests_started_total": 100, "prompt_tokens_total": 5}, source=source)
    log.sample(1000, {"requests_started_total": 3, "prompt_tokens_total": 9}, source="a")
    log.sample(1500, {"requests_started_total": 200, "prompt_tokens_total": 9}, source="a")  # above the old value again
    log.sample(1500, {"requests_started_total": 160, "prompt_tokens_total": 9}, source="b")
    log.sample(2500, {"requests_started_total": 260}, source="a")
    log.tick(3500)
    assert log.cells("request.arrival_rate") == [None, None, 60.0]
    assert log.cells("request.prompt_token_rate")[1] is not None
    assert [facts(p).reset for p in log.pages] == [False, True, False]


def test_completions_stand_in_for_arrivals_and_are_marked() -> None:
    log = Log()
    for ts in (0, 1000, 2000):
        log.sample(ts, {"requests_finished_total": ts / 100, "requests_started_total": None if ts < 2000 else 7.0})
    log.tick(3500)
    assert log.cells("request.arrival_rate") == [None, 10.0, None]
    assert [facts(p).censored for p in log.pages] == [True, True, False]


def test_miss_ratio_of_increases_over_all_sources() -> None:
    log = Log()
    log.sample(0, {"slo_good_total": 0, "slo_total": 0}, source="a")
    log.sample(0, {"slo_good_total": 50, "slo_total": 60}, source="b")
    log.sample(1000, {"slo_good_total": 90, "slo_total": 100}, source="a")
    log.sample(1000, {"slo_good_total": 50, "slo_total": 160}, source="b")
    log.sample(2000, {"slo_good_total": 90, "slo_total": 100}, source="a")
    log.tick(3500)
    assert log.cells("slo.miss_ratio") == [None, pytest.approx(0.55), None]


def hist(le: Sequence[float], counts: Sequence[int]) -> HistogramState:
    cumulative = tuple(float(sum(counts[: i + 1])) for i in range(len(le)))
    return HistogramState(tuple(le), cumulative, float(sum(counts)), 0.0)


def test_p95_of_what_was_added_merged_over_edges() -> None:
    log = Log()
    log.sample(0, {}, source="a", hist={"ttft_s": hist([1, 2, 4], [1000, 0, 0, 0])})
    log.sample(0, {}, source="b", hist={"ttft_s": hist([2, 8], [0, 0, 0])})
    log.sample(1000, {}, source="a", hist={"ttft_s": hist([1, 2, 4], [1010, 10, 20, 0])})
    log.sample(1000, {}, source="b", hist={"ttft_s": hist([2, 8], [0, 60, 0])})
    log.tick(2500)
    # 100 added; b's 60 lie evenly in (2, 8], so 40 + 60 x (t - 2)/6 = 95 at t = 7.5.
    assert log.cells("request.ttft_p95_s") == [None, 7.5]


def test_p95_beyond_every_edge_is_the_last_edge() -> None:
    log = Log()
    log.sample(0, {}, hist={"ttft_s": hist([1, 2], [0, 0, 0])})
    log.sample(1000, {}, hist={"ttft_s": hist([1, 2], [1, 0, 9])})
    log.sample(2000, {}, hist={"ttft_s": hist([1, 3], [9, 9, 9])})
    log.tick(3500)
    assert log.cells("request.ttft_p95_s") == [None, 2.0, None]
    assert [facts(p).reset for p in log.pages] == [False, False, True]  # new edges: the source started anew


def engine(log: Log, ts: int, requests: float, tokens: float, running: float, source: str = "a") -> None:
    values = {
        "requests_started_total": requests, "generation_tokens_total": tokens, "num_requests_running": running,
        "num_requests_waiting": 2.0, "slo_good_total": requests, "slo_total": requests,
    }  # fmt: skip
    log.sample(ts, values, source=source)


def test_an_exporter_that_repeats_itself_while_requests_run_is_not_read() -> None:
    """Read again, what happened meanwhile is one increase over all the time, not over one slot."""
    log = Log()
    engine(log, 500, 100, 1_000, 5)
    engine(log, 1_500, 110, 1_500, 5)
    for ts in (2_500, 3_200, 3_500, 4_500):
        engine(log, ts, 110, 1_500, 5)
    engine(log, 5_500, 150, 3_500, 6)
    engine(log, 6_500, 160, 4_000, 6)
    log.tick(7_500)
    assert log.cells("request.arrival_rate") == [None, 10.0, None, None, None, 10.0, 10.0]
    assert log.cells("request.output_token_rate") == [None, 500.0, None, None, None, 500.0, 500.0]
    assert log.cells("engine.running") == [5.0, 5.0, None, None, None, 6.0, 6.0]
    assert log.cells("engine.waiting_max") == [2.0, 2.0, None, None, None, 2.0, 2.0]
    assert log.cells("slo.miss_ratio") == [None, 0.0, None, None, None, 0.0, 0.0]
    told = [facts(page) for page in log.pages]
    assert [f.sources_seen for f in told] == [1, 1, 0, 0, 0, 1, 1]
    assert [f.sources_known for f in told] == [1] * 7
    assert [f.num_samples for f in told] == [1, 1, 1, 2, 1, 1, 1]


def test_others_are_read_on_and_the_one_that_repeats_itself_counts_as_missing() -> None:
    log = Log()
    for k in range(4):
        engine(log, 500 + 1_000 * k, 100 + 10 * k, 1_000 + 500 * k, 5, "a")
        engine(log, 500 + 1_000 * k, 100 + 10 * min(k, 1), 1_000 + 500 * min(k, 1), 5, "b")
    log.tick(4_500)
    assert log.cells("request.arrival_rate") == [None, 20.0, 10.0, 10.0]
    assert [(facts(p).sources_seen, facts(p).sources_known) for p in log.pages] == [(2, 2), (2, 2), (1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_requests_running": 0.0}, "an idle engine has nothing new to tell"),
        ({"num_requests_running": None}, "nobody says that requests run"),
        ({"requests_started_total": 111}, "a request came"),
        ({"generation_tokens_total": 1_501}, "a token was generated"),
        ({"generation_tokens_total": None}, "tokens are not told"),
    ],
)
def test_what_is_no_repetition_is_read(changes: dict[str, float | None], why: str) -> None:
    log = Log()
    engine(log, 500, 100, 1_000, 5)
    engine(log, 1_500, 110, 1_500, 5)
    last = {"requests_started_total": 110, "generation_tokens_total": 1_500, "num_requests_running": 5.0}
    log.sample(2_500, last | changes)
    log.tick(3_500)
    assert log.cells("request.arrival_rate")[-1] is not None, why
    assert facts(log.pages[-1]).sources_seen == 1
