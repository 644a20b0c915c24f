"""The ingest kernel's rules, one at a time, in numbers that can be checked by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.config import StreamConfig
from streams.dead_letters import KEPT_PER_STRETCH, STRETCH
from streams.ingest import IngestKernel
from streams.log import ContractBroken, Emission, LogRecord
from streams.page_chain import newest_chain
from streams.page_codec import PageAssembler, StoredPage
from streams.pages import Control, FleetFacts, HistogramState, OutcomeFact, Page, WorkloadFacts
from streams.records import encode_control, encode_fleet, encode_outcome, encode_packed, encode_sample, encode_tick
from streams.topics import Topics

T0 = 1_763_636_400_000  # a slot begins here
CONFIG = StreamConfig(step_ms=1000, grace_ms=500, skew_ms=200, context_steps=4, max_workloads=10)
TOPICS = Topics()


class Log:
    """A partition under construction; times are ms since T0, stamps follow the event time unless told otherwise."""

    def __init__(self, config: StreamConfig = CONFIG, source: Source = "requests") -> None:
        self.config = config
        self.source: Source = source
        self.records: list[LogRecord] = []
        self.kernel = IngestKernel(1, source, config, DEFAULT_CATALOGUE, TOPICS)
        self.emissions: list[Emission] = []

    def put(self, value: bytes | None, stamp: int, workload: str | None = "w") -> None:
        key = None if workload is None else workload.encode()
        self.records.append(LogRecord(len(self.records), T0 + stamp, key, value))
        self.emissions += self.kernel.fold(self.records[-1:])

    def sample(
        self,
        ts: int,
        values: dict[str, float | None],
        stamp: int | None = None,
        workload: str = "w",
        source: str = "a",
        hist: dict[str, HistogramState] | None = None,
    ) -> None:
        body = encode_sample(self.source, workload, source, T0 + ts, values, hist)
        self.put(body, ts if stamp is None else stamp, workload)

    def tick(self, ts: int, stamp: int | None = None) -> None:
        self.put(encode_tick(T0 + ts), ts if stamp is None else stamp, None)

    @property
    def stored(self) -> list[StoredPage]:
        reader = PageAssembler(self.config, TOPICS.partitions, DEFAULT_CATALOGUE)
        records = [r for e in self.emissions for r in e.commits]
        assert all((r.topic, r.partition) == (TOPICS.pages, 1) for r in records)
        return [p for i, r in enumerate(records) for p in reader.feed(LogRecord(i, 0, r.key, r.value))]

    @property
    def pages(self) -> list[Page]:
        """Without the slot before T0: it is still open, and empty, when the first event time is heard."""
        return [p.page for p in self.stored if p.page.slot >= T0 // 1000]

    def cells(self, indicator: str, workload: str = "w") -> list[float | None]:
        """The indicator's value per page, None where it is not observed or the workload is absent."""
        return [cell(page, indicator, workload) for page in self.pages]


def cell(page: Page, indicator: str, workload: str = "w") -> float | None:
    if workload not in page.workloads:
        return None
    at = page.workloads.index(workload), page.indicators.index(indicator)
    return float(page.values[at]) if page.observed[at] else None


def facts(page: Page, workload: str = "w") -> WorkloadFacts:
    return page.facts[page.workloads.index(workload)]


def slots(log: Log) -> list[int]:
    return [page.slot - T0 // 1000 for page in log.pages]


# Time.


def test_a_slot_closes_when_stream_time_reaches_its_end_and_the_grace() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    assert (log.kernel.stream_time_ms, slots(log)) == (T0 + 100, [])
    log.tick(1499)
    assert slots(log) == []
    log.tick(1500)
    assert slots(log) == [0]
    assert log.pages[-1].end_offset == 2
    assert log.pages[-1].end_stamp_ms == T0 + 1500


def test_the_first_event_time_closes_nothing_and_makes_no_page() -> None:
    log = Log()
    log.tick(50_000)
    assert log.pages == []
    log.tick(51_000)
    assert len(log.pages) == 1
    assert log.pages[0].prev is None


def test_a_tick_does_not_run_ahead_of_the_broker() -> None:
    log = Log()
    log.tick(0)
    log.tick(9_000, stamp=1200)
    assert log.kernel.stream_time_ms == T0 + 1200


@pytest.mark.parametrize(("ahead", "future"), [(200, 0), (201, 1), (60_000, 1), (10**14, 1)])
def test_a_clock_ahead_of_the_brokers_moves_nothing(ahead: int, future: int) -> None:
    log = Log()
    log.tick(0)
    log.sample(ahead, {"num_requests_running": 1}, stamp=0)
    assert (log.kernel.counters.future, log.kernel.counters.dead) == (future, future)
    assert log.kernel.stream_time_ms == (T0 if future else T0 + ahead)
    letters = [dict(r.headers) for e in log.emissions for group in e.outputs for r in group]
    assert [letter["reason"] for letter in letters] == [b"future"] * future


def test_one_fast_sample_in_a_pack_loses_the_pack_and_moves_nothing() -> None:
    log = Log()
    log.tick(0)
    log.put(encode_packed("requests", "w", ["a", "b"], [T0, T0 + 300], {"num_requests_running": [1, 2]}), 0)
    assert (log.kernel.counters.future, log.kernel.counters.samples) == (1, 0)
    assert log.kernel.stream_time_ms == T0


def test_a_record_is_tested_against_the_stream_time_before_it() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    # Its own second sample would have closed slot 0: both are in.
    body = encode_packed("requests", "w", ["a", "a"], [T0 + 200, T0 + 2600], {"num_requests_running": [3, 5]})
    log.put(body, 2600)
    assert log.kernel.counters.late == 0
    assert cell(log.pages[-2], "engine.running") == 2.0


def test_late_samples_are_counted_and_change_nothing() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    log.tick(1500)
    log.sample(200, {"num_requests_running": 9}, stamp=1600)
    log.tick(2500)
    assert log.kernel.counters.late == 1
    assert log.pages[-1].workloads == ()


def test_silence_gives_empty_pages_at_most_the_last_l() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    log.tick(100_500)
    assert slots(log) == [0, 96, 97, 98, 99]
    assert [len(p.workloads) for p in log.pages] == [1, 0, 0, 0, 0]
    stored = log.stored
    assert [p.page.prev for p in stored[1:]] == [p.page.slot for p in stored[:-1]]
    assert [p.page.prev_digest for p in stored[1:]] == [p.digest for p in stored[:-1]]


def test_facts_move_stream_time_too() -> None:
    log = Log()
    log.tick(0)
    log.put(encode_fleet("w", "k8s", FleetFacts(T0 + 1700, 1, 0, 0)), 1700)
    assert slots(log) == [0]
    log.put(encode_outcome("w", "k8s", OutcomeFact(T0 + 2700, "c", "ready")), 2700)
    assert slots(log) == [0, 1]


def test_a_duplicate_is_the_same_source_and_time_and_the_first_wins() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    log.sample(100, {"num_requests_running": 9})
    log.sample(100, {"num_requests_running": 5}, source="b")
    log.tick(1500)
    assert log.kernel.counters.duplicate == 1
    assert log.cells("engine.running")[-1] == 6.0


def test_an_offset_that_was_folded_is_refused() -> None:
    log = Log()
    log.tick(0)
    with pytest.raises(ContractBroken, match=r"offset 0 came after 0"):
        log.kernel.fold(log.records)


# Indicators.


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


# Facts.


def test_facts_of_a_workload() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1}, source="a")
    log.put(encode_fleet("w", "k8s", FleetFacts(T0 + 300, 3, 1, 0, 4)), 300)
    log.put(encode_fleet("w", "k8s", FleetFacts(T0 + 200, 2, 2, 0, 4)), 300)
    log.put(encode_outcome("w", "k8s", OutcomeFact(T0 + 400, "c-2", "ready", 3, 61.0)), 400)
    log.put(encode_outcome("w", "k8s", OutcomeFact(T0 + 350, "c-1", "applied")), 400)
    log.put(encode_outcome("w", "k8s", OutcomeFact(T0 + 350, "c-1", "applied")), 400)
    log.put(encode_fleet("idle", "k8s", FleetFacts(T0 + 500, 0, 0, 0)), 500, "idle")
    log.tick(1500)
    page = log.pages[-1]
    assert page.workloads == ("idle", "w")
    told = facts(page)
    assert told.fleet == FleetFacts(T0 + 300, 3, 1, 0, 4)
    assert [o.command_id for o in told.outcomes] == ["c-1", "c-2"]
    assert (told.num_samples, told.newest_ts_ms) == (1, T0 + 100)
    assert (facts(page, "idle").num_samples, facts(page, "idle").newest_ts_ms) == (0, T0 + 500)
    assert not page.observed[0].any()
    assert log.kernel.counters.duplicate == 1


def test_sources_are_known_for_the_silence_steps() -> None:
    log = Log(replace(CONFIG, source_silence_steps=2))
    log.sample(0, {}, source="a")
    for slot in range(4):
        log.sample(1000 * slot + 1, {}, source="b")
    log.tick(4500)
    assert [(facts(p).sources_seen, facts(p).sources_known) for p in log.pages] == [(2, 2), (1, 2), (1, 1), (1, 1)]


def test_controls_ride_with_the_next_page_and_move_no_time() -> None:
    log = Log()
    log.tick(500)
    control = Control(control_id="c-1", ts_ms=T0 + 10**9, action="pin", workload="w", replicas=3, by="me")
    log.put(encode_control(control), 10, None)
    late = Control(control_id="c-2", ts_ms=T0 - 10**9, action="pause")
    log.put(encode_control(late), 20, None)
    assert log.kernel.stream_time_ms == T0 + 500
    log.tick(2500)
    assert [p.controls for p in log.pages] == [(control, late), ()]


# Limits.


def test_only_new_workloads_are_refused_and_old_ones_make_room() -> None:
    log = Log(replace(CONFIG, max_workloads=2, context_steps=2))
    log.sample(0, {}, workload="b")
    log.sample(1, {}, workload="c")
    log.sample(2, {}, workload="a")
    log.sample(1001, {}, workload="a")
    log.sample(1002, {}, workload="c")
    for slot in range(2, 5):
        log.sample(1000 * slot, {}, workload="a")
        log.sample(1000 * slot, {}, workload="c")
    log.tick(5500)
    assert [p.workloads for p in log.pages] == [("b", "c"), ("c",), ("c",), ("a", "c"), ("a", "c")]
    assert log.kernel.counters.refused == 3


def test_a_flood_of_names_is_bounded_and_known_ones_are_served() -> None:
    log = Log(replace(CONFIG, max_workloads=3))
    log.sample(0, {"num_requests_running": 1}, workload="known")
    log.tick(1500)
    for i in range(50):
        log.sample(1600, {}, workload=f"flood-{i}")
    log.sample(1700, {"num_requests_running": 2}, workload="known")
    log.tick(2500)
    assert log.pages[-1].workloads == ("flood-0", "flood-1", "known")
    assert log.kernel.counters.refused == 48


# Dead letters.


def test_dead_letters_keep_their_bytes_and_say_why() -> None:
    log = Log()
    log.put(b"{bad", 5, "w")
    (emission,) = log.emissions
    ((letter,),) = emission.outputs
    assert (letter.topic, letter.key, letter.value, letter.partition) == (TOPICS.dead_letters, b"w", b"{bad", None)
    headers = dict(letter.headers)
    assert headers.pop("detail").decode().startswith("not JSON")
    assert headers == {"reason": b"decode", "topic": b"harmony.telemetry.requests", "partition": b"1", "offset": b"0"}
    assert emission.commits == ()
    assert emission.resume_offset == 0
    assert log.kernel.dead_letter_counts == {"decode": 1}


def test_a_flood_is_sampled_by_offset_however_it_is_batched() -> None:
    records = [LogRecord(i, T0, None, b"bad") for i in range(3 * STRETCH)]
    offsets = []
    for size in (1, 7, len(records)):
        kernel = IngestKernel(0, "gpu", CONFIG, DEFAULT_CATALOGUE, TOPICS)
        out = [e for i in range(0, len(records), size) for e in kernel.fold(records[i : i + size])]
        offsets.append([int(dict(r.headers)["offset"]) for e in out for group in e.outputs for r in group])
        assert kernel.counters.dead == len(records)
    assert offsets[0] == offsets[1] == offsets[2]
    assert 3 * KEPT_PER_STRETCH < len(offsets[0]) < 4 * KEPT_PER_STRETCH


def test_dead_letters_go_out_no_later_than_the_page_that_covers_them() -> None:
    log = Log()
    log.tick(500)
    records = [LogRecord(1, T0, b"w", b"bad"), LogRecord(2, T0 + 1500, None, encode_tick(T0 + 1500))]
    (emission,) = log.kernel.fold([*records, LogRecord(3, T0 + 1501, b"w", None)])
    assert [len(group) for group in emission.outputs] == [1]
    assert len(emission.commits) == 1
    assert emission.resume_offset == log.kernel.resume_offset == 2
    assert (log.kernel.counters.tombstones, log.kernel.next_offset) == (1, 4)


# Restoring.


def test_without_pages_reading_starts_at_the_earliest() -> None:
    kernel = IngestKernel.restore(1, "requests", CONFIG, DEFAULT_CATALOGUE, TOPICS, [])
    assert (kernel.resume_offset, kernel.stream_time_ms) == (None, None)


def chain_of(n: int) -> list[tuple[Page, str]]:
    log = Log()
    log.tick(500)
    for i in range(n + 1):
        log.sample(1000 * i, {"requests_started_total": i})
    log.tick(1000 * n + 600)
    return [(p.page, p.digest) for p in log.stored]


@pytest.mark.parametrize(
    ("missing", "newest"),
    [((), 9), ((9,), 8), ((8,), 7), ((7, 9), 6), ((0,), 9), ((0, 1, 2, 3), 9), ((2,), 9), ((3, 7), 2)],
)
def test_the_newest_page_with_a_complete_chain_is_taken(missing: tuple[int, ...], newest: int) -> None:
    chain = chain_of(10)
    found = newest_chain([p for i, p in enumerate(chain) if i not in missing], "requests", 1, 4)
    assert found[-1][0].slot == chain[newest][0].slot
    assert len(found) == min(4, newest + 1)


def test_pages_without_a_complete_chain_stop_the_worker() -> None:
    chain = chain_of(10)
    with pytest.raises(ContractBroken, match=r"predecessors in reach.*state reset"):
        newest_chain(chain[-2:], "requests", 1, 4)
    with pytest.raises(ContractBroken, match=r"predecessors in reach.*state reset"):
        newest_chain([chain[4], *chain[6:9]], "requests", 1, 4)
    with pytest.raises(ContractBroken, match=r"among those of gpu/1"):
        newest_chain(chain, "gpu", 1, 4)


def test_a_page_whose_predecessor_has_another_digest_is_not_its_chain() -> None:
    chain = chain_of(10)
    forged = [(page, "00" * 16 if i == 6 else digest) for i, (page, digest) in enumerate(chain)]
    # The forged page itself still follows on its own predecessors.
    assert newest_chain(forged, "requests", 1, 4)[-1][0].slot == chain[6][0].slot


def test_restoring_gives_the_rates_of_a_life_without_end() -> None:
    log = Log()
    for i in range(6):
        log.sample(1000 * i, {"requests_started_total": 7 * i * i})
    pages = [(p.page, p.digest) for p in log.stored]
    kernel = IngestKernel.restore(1, "requests", CONFIG, DEFAULT_CATALOGUE, TOPICS, pages)
    assert kernel.counters == pages[-1][0].counters
    assert kernel.num_workloads == 1
    start = kernel.resume_offset
    assert start is not None
    assert kernel.next_offset == start
    log.kernel, log.emissions = kernel, []
    kernel.fold([r for r in log.records if r.offset >= start])
    log.sample(6000, {"requests_started_total": 7 * 36})
    log.tick(7500)
    assert [round(c or 0) for c in log.cells("request.arrival_rate")] == [7 * 7, 7 * 9, 7 * 11]


# Laws.

rows = st.lists(
    st.tuples(
        st.integers(0, 2999),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["u", "w"]),
        st.floats(0, 1e9),
        st.integers(0, 10**9),
    ),
    min_size=1,
    max_size=25,
    unique_by=lambda r: (r[0], r[1], r[2]),
)


@settings(max_examples=40)
@given(rows, st.randoms(use_true_random=False))
def test_order_within_the_grace_does_not_matter(
    told: list[tuple[int, str, str, float, int]], rng: random.Random
) -> None:
    config = StreamConfig(step_ms=1000, grace_ms=3000, skew_ms=3000, context_steps=4)
    bodies: list[dict[str, Any]] = []
    for order in (told, sorted(told), rng.sample(told, len(told))):
        log = Log(config)
        log.tick(0)
        for ts, source, workload, gauge, counter in order:
            values = {"num_requests_running": gauge, "requests_started_total": float(counter)}
            log.sample(ts, values, stamp=0, workload=workload, source=source)
        log.tick(6000)
        bodies.append(
            {str(p.slot): [p.workloads, p.values.tobytes(), p.observed.tobytes(), p.facts, p.series] for p in log.pages}
        )
    assert bodies[0] == bodies[1] == bodies[2]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=30) | st.just(b'{"v":1,"kind":"tick","ts_ms":1763636400500}'), max_size=20))
def test_garbage_never_raises_and_is_all_counted(values: list[bytes]) -> None:
    kernel = IngestKernel(0, "requests", CONFIG, DEFAULT_CATALOGUE, TOPICS)
    kernel.fold([LogRecord(i, T0 + 500, None, value) for i, value in enumerate(values)])
    assert kernel.counters.records == len(values)
    assert kernel.counters.dead == sum(not value.startswith(b'{"v":1') for value in values)


def test_zero_is_written_as_zero() -> None:
    log = Log()
    log.put(
        json.dumps(
            {
                "v": 1,
                "kind": "requests",
                "workload": "w",
                "source": "a",
                "ts_ms": T0,
                "values": {"num_requests_running": -0.0},
            }
        ).encode(),
        0,
    )
    log.tick(1500)
    assert not np.signbit(log.pages[-1].values).any()
