"""What the stages measure of themselves is true: real kernels in real lanes, scraped."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents.decide.records import decode_decision, encode_decision
from agents.forecast.scoring import NAIVE
from agents.ingest import IngestLane
from agents.records import ReplicaView
from infra.observability.metrics import PrometheusMeter
from infra.observability.stage_metrics import DecideMetrics, IngestMetrics
from infra.worker.watch import SourceWatch, closed_slots
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import LATENESS_BOUNDS_MS
from streams.ingest.kernel import IngestKernel, LatenessHistogram
from streams.log import Emission, LogRecord, OutRecord
from streams.pages.codec import PageAssembler
from streams.records.schema import encode_sample
from tests.infra.observability.memory_loop import DELAY_MS, START_SLOT, STREAM, MemoryLoop
from tests.infra.page.fleet_records import TOPICS, decision

DEMAND = "request.arrival_rate"
SLOT_MS = START_SLOT * STREAM.step_ms


def scrape(meter: PrometheusMeter) -> dict[str, dict[tuple[str, ...], float]]:
    """Metric -> label values in order of label names -> value; without the prefix."""
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(meter.exposition()[0].decode()):
        for s in family.samples:
            labels = tuple(value for _, value in sorted(s.labels.items()))
            samples.setdefault(s.name.removeprefix("harmony_"), {})[labels] = s.value
    return samples


def up(samples: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    return {labels: value for labels, value in samples.items() if value}


async def test_every_sample_is_counted_once_by_what_became_of_it() -> None:
    loop = MemoryLoop()
    await loop.publish_slot()
    await loop.publish_slot()
    late = encode_sample("requests", "a", "r", SLOT_MS - 60_000, {"num_requests_waiting": 0.0})
    await loop.feed("requests", b"a", late, SLOT_MS + 16_000)
    for bad in (b"{bad", b"{bad", b"[]"):
        await loop.feed("requests", b"a", bad, SLOT_MS + 16_000)
    seen = scrape(loop.meter)
    # Two slots, two workloads: a sample of each source and the fleet facts.
    assert up(seen["samples_total"]) == {("accepted",): 12.0, ("late",): 1.0, ("dead",): 3.0}
    assert up(seen["dead_letters_total"]) == loop_dead_letters(loop)
    assert sum(up(seen["dead_letters_total"]).values()) == 3
    pages = [PageAssembler(STREAM, 1, DEFAULT_CATALOGUE).feed(r) for r in loop.logs[loop.topics.pages]]
    assert sum(map(len, pages)) == sum(seen["pages_total"].values())
    assert seen["slots_total"][()] == seen["pages_total"]["gpu",] == seen["pages_total"]["requests",]


def loop_dead_letters(loop: MemoryLoop) -> dict[tuple[str, ...], float]:
    kernel = loop.ingest["requests"].kernel
    return {(code,): float(count) for code, count in kernel.dead_letter_counts.items()}


async def test_a_restored_kernel_counts_only_what_is_new() -> None:
    loop = MemoryLoop()
    for _ in range(3):
        await loop.publish_slot()
    reader = PageAssembler(STREAM, 1, DEFAULT_CATALOGUE)
    stored = [p for record in loop.logs[loop.topics.pages] for p in reader.feed(record)]
    chain = [(p.page, p.digest) for p in stored if p.page.source == "requests"]
    kernel = IngestKernel.restore(0, "requests", STREAM, DEFAULT_CATALOGUE, loop.topics, chain)
    meter = PrometheusMeter(strict=True)
    lane = IngestLane(kernel, IngestMetrics(meter))
    log = loop.logs[loop.topics.telemetry_requests][kernel.resume_offset or 0 :]
    assert log, "the crash must lie in the middle of open slots"
    end_ms = log[-1].stamp_ms
    value = encode_sample("requests", "a", "r", end_ms, {"num_requests_waiting": 0.0})
    async for _ in lane.fold([*log, LogRecord(log[-1].offset + 1, end_ms, b"a", value)]):
        pass
    assert up(scrape(meter)["samples_total"]) == {("accepted",): 1.0}
    assert scrape(meter)["sample_lateness_seconds_count"]["requests",] == 1


async def test_lateness_is_how_far_a_sample_lay_behind_stream_time() -> None:
    rng = random.Random(5)
    loop = MemoryLoop(("a",))
    newest, lags = SLOT_MS, []
    for _ in range(60):
        ts_ms = SLOT_MS + rng.randint(-40_000, 40_000)
        lags.append(max(0, newest - ts_ms))
        newest = max(newest, ts_ms) if lags[1:] else ts_ms
        if len(lags) == 1:
            lags[0] = 0
        value = encode_sample("gpu", "a", f"g{rng.random()}", ts_ms, {"power_w": 1.0})
        await loop.feed("gpu", b"a", value, ts_ms)
    seen = scrape(loop.meter)
    assert seen["sample_lateness_seconds_count"]["gpu",] == 60
    assert seen["sample_lateness_seconds_sum"]["gpu",] == pytest.approx(sum(lags) / 1000)
    for bound_ms in LATENESS_BOUNDS_MS:
        within = sum(lag <= bound_ms for lag in lags)
        assert seen["sample_lateness_seconds_bucket"][str(bound_ms / 1000), "gpu"] == within


def test_the_tally_sorts_as_a_histogram_does() -> None:
    tally = LatenessHistogram()
    lags = [0, 1, 500, 501, 3_600_000, 3_600_001, -7]
    tally.add(10_000_000, [10_000_000 - lag for lag in lags])
    counts, sum_ms = tally.take()
    expected = [0] * (len(LATENESS_BOUNDS_MS) + 1)
    for lag in lags:
        expected[bisect_left(LATENESS_BOUNDS_MS, max(0, lag))] += 1
    assert (counts, sum_ms) == (expected, sum(max(0, lag) for lag in lags))
    assert tally.take() == ([0] * len(expected), 0)


async def test_the_time_to_a_command_runs_from_the_closing_stamp_to_the_acknowledgement() -> None:
    loop = MemoryLoop()
    for _ in range(3):
        await loop.publish_slot()
    seen = scrape(loop.meter)
    pages = sum(seen["pages_total"].values())
    counts = seen["telemetry_to_command_seconds_count"]
    assert counts["forecast",] == counts["decide",] == seen["slots_total"][()]
    assert 0 < counts["ingest",] <= pages
    # The clock stands `DELAY_MS` after each stamp, and both sources close a slot at the same instant.
    for stage in ("ingest", "forecast", "decide"):
        mean = seen["telemetry_to_command_seconds_sum"][stage,] / counts[stage,]
        assert mean == pytest.approx(DELAY_MS / 1000)


async def test_forecasts_are_scored_when_the_truth_arrives_beside_seasonal_naive() -> None:
    loop = MemoryLoop()
    slots = 24
    for n in range(slots):
        await loop.publish_slot(rate=10.0 if n % 4 < 2 else 16.0)
        for *_, naive in loop.forecast._scorer._naive if loop.forecast._scorer else ():
            naive.result(30)
    seen = scrape(loop.meter)
    assert seen["forecasts_total"]["last_value",] > 0
    # A first rate needs two slots. Of the pairs of slots 1 apart every other one is equal, 4 and 16 apart all are.
    with_rate = slots - 1
    scores = up(seen["forecast_scores_total"])
    pairs = [with_rate - step for step in (1, 4, 16)]
    assert scores == {(forecaster, DEMAND): 2.0 * sum(pairs) for forecaster in ("last_value", NAIVE)}
    coverage = seen["forecast_coverage_ratio"]
    fade = [0.995 ** (slots - 1 - slot) for slot in range(slots)]
    counted = {step: sum(fade[1 + step :]) for step in (1, 4, 16)}
    equal = counted[4] + counted[16] + sum(fade[n] for n in range(2, slots) if n % 2 == 1)
    for band in ("0.5", "0.8", "0.9"):
        assert coverage[band, "last_value", DEMAND] == pytest.approx(equal / sum(counted.values()))
        assert 0 <= coverage[band, NAIVE, DEMAND] <= 1
    assert 0 < seen["forecast_pinball"]["last_value", DEMAND] < 0.2
    assert 0 < seen["forecast_pinball"][NAIVE, DEMAND] < 0.5


async def test_scores_do_not_change_a_byte_of_what_is_published() -> None:
    scored, plain = MemoryLoop(), MemoryLoop()
    plain.forecast._scorer = None
    for loop in (scored, plain):
        for n in range(14):
            await loop.publish_slot(rate=10.0 + n % 3)
    assert scored.logs.keys() == plain.logs.keys()
    for topic, log in scored.logs.items():
        assert [(r.key, r.value) for r in log] == [(r.key, r.value) for r in plain.logs[topic]], topic


async def test_decisions_show_replicas_and_risk_of_each_workload() -> None:
    loop = MemoryLoop()
    for n in range(12):
        await loop.publish_slot(rate=10.0 + n % 3)
    seen = scrape(loop.meter)
    assert seen["replicas_ready"] == {("a",): 5.0, ("b",): 5.0}
    assert set(seen["replicas_wanted"]) == {("a",), ("b",)}
    assert seen["replicas"]["wanted",] == sum(seen["replicas_wanted"].values())
    decisions = [r for r in loop.logs[loop.topics.decisions] if r.value]
    assert sum(seen["decisions_total"].values()) == len(decisions) == 2 * 12
    assert all(0 <= p <= 1 for p in seen["p_miss"].values())
    newest = {d.workload: d for d in map(decode_decision, (r.value for r in decisions))}
    assert seen["load_requests_per_second"] == {(w,): d.inputs.arrival_rate for w, d in newest.items()}
    assert seen["replicas_held"] == {(w,): d.replicas.current for w, d in newest.items()}
    assert seen["replicas_needed"] == {(w,): d.shadow["reactive"] for w, d in newest.items()}
    peaks = seen["forecast_peak_requests_per_second"]
    for workload, d in newest.items():
        assert d.forecast.peak is not None
        expected = dict(zip((f"{level:g}" for level in d.forecast.peak.levels), d.forecast.peak.values, strict=True))
        assert {q: v for (q, w), v in peaks.items() if w == workload} == expected
    for name in ("batch_rows", "batch_wait_seconds", "inference_seconds", "plan_seconds"):
        assert seen[f"{name}_count"][()] > 0, name
    assert seen["meter_errors_total"][()] == 0


async def test_a_source_without_page_or_tick_is_silent_after_its_patience() -> None:
    loop = MemoryLoop()
    watch = SourceWatch(patience_s=15.0)

    def silent(now_s: float) -> dict[str, list[int]]:
        return dict(watch.silent(closed_slots([(0, loop.forecast), (0, loop.ingest["gpu"])]), now_s))

    assert silent(0.0) == {"gpu": [], "requests": []}
    assert silent(15.1) == {"gpu": [0], "requests": [0]}
    await loop.publish_slot()
    assert silent(16.0) == {"gpu": [], "requests": []}
    end_ms = loop.slot * STREAM.step_ms + STREAM.grace_ms
    for n in range(1, 5):  # requests go on alone
        value = encode_sample("requests", "a", "r", end_ms + n * 5_000, {"num_requests_waiting": 0.0})
        await loop.feed("requests", b"a", value, end_ms + n * 5_000)
        await loop.follow()
        expected: dict[str, list[int]] = {"gpu": [0] if n > 3 else [], "requests": []}
        assert silent(16.0 + 5.0 * n) == expected
    assert watch.silent({}, 100.0) == {}  # the partitions went to another worker


def test_replica_time_is_counted_by_what_was_held_wanted_and_needed() -> None:
    meter = PrometheusMeter(strict=True)
    metrics = DecideMetrics(meter, TOPICS, fleet="test", epoch=0, step_s=15.0, hold_s=30.0)
    for step, proposed in enumerate([6, 8, 5, 5]):
        replicas = ReplicaView(10, 0, 10, proposed, 9)
        for workload, mode in (("a", "observe"), ("b", "act")):
            made = decision(workload, step, mode=mode, replicas=replicas, shadow={"reactive": 12 if step == 0 else 4})
            record = OutRecord(TOPICS.decisions, workload.encode(), encode_decision(made))
            metrics(Emission([[record]], [], 0))

    def seconds(mode: str, part: str) -> float:
        labels = {"mode": mode, "part": part}
        return meter.registry.get_sample_value("harmony_replica_seconds_total", labels) or 0.0

    assert seconds("observe", "held") == 15 * 40
    assert seconds("observe", "wanted") == 15 * (6 + 8 + 8 + 5)  # the largest proposal of two steps
    assert seconds("act", "wanted") == 15 * 9 * 4
    assert seconds("observe", "needed") == 15 * (12 + 3 * 4)
    assert (seconds("act", "above"), seconds("act", "below")) == (15 * 3 * 6, 15 * 2)


def test_attainment_of_a_workload_is_shown_within_the_cap_and_where_it_is_known() -> None:
    meter = PrometheusMeter(strict=True, max_workload_series=2)
    metrics = DecideMetrics(meter, TOPICS, fleet="test", epoch=0)

    def decide(step: int) -> dict[tuple[str, ...], float]:
        for workload in ("a", "b", "c"):
            record = OutRecord(TOPICS.decisions, workload.encode(), encode_decision(decision(workload, step)))
            metrics(Emission([[record]], [], 0))
        return scrape(meter).get("attainment_ratio", {})

    assert decide(0) == {}
    metrics.attainment = {"a": 0.995, "c": 0.9}.get
    assert decide(1) == {("a",): 0.995}
    metrics.attainment = {}.get
    assert decide(2) == {}
