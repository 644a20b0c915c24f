"""Batches fold to what single records fold to, wherever bad ones stand among them, and in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import Emission, LogRecord
from streams.pages.codec import PageAssembler
from streams.records import fast_reader as sample_reader
from streams.records import sorter as record_sorter
from streams.records.dead_letters import DeadLetterBox
from streams.records.decode import UNEXPLAINED, RecordDecoder
from streams.records.facts import Control, FleetFacts, HistogramState
from streams.records.fast_reader import SampleReader
from streams.records.schema import encode_control, encode_fleet, encode_packed, encode_sample, encode_tick
from streams.records.series_index import SeriesIndex
from streams.records.sorter import RecordSorter, SampleStretch
from streams.topics import Topics
from tests.streams.ingest.random_logs import POISON

TOPICS = Topics()
ROOMY = StreamConfig(step_ms=1_000, grace_ms=700, skew_ms=300, context_steps=4, max_workloads=9)
CROWDED = StreamConfig(step_ms=1_000, grace_ms=700, skew_ms=300, context_steps=4, max_workloads=1)
START_MS = 1_763_636_400_000
KINDS = (
    *("sample", "sample", "sample", "packed", "histogram", "unknown name", "no time", "poison", "poison", "poison"),
    *("other key", "fast clock", "tombstone", "control", "tick", "fleet", "fast fleet", "many unknown", "out of range"),
)

Drawn = tuple[str, int, int, int]
RECORDS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(-1_500, 250), st.integers(0, 600)),
    min_size=1,
    max_size=60,
)


def log_of(drawn: Sequence[Drawn], dense: int) -> list[LogRecord]:
    """A log of (kind, workload and source, event time behind the stamp, ms since the record before)."""
    now, log = START_MS, []
    for number, (kind, who, ahead_ms, later_ms) in enumerate(drawn):
        now += later_ms
        workload, ts_ms = f"w{who // 2}", now + ahead_ms
        key: bytes | None = workload.encode()
        body: Any = {"v": 1, "kind": "requests", "workload": workload, "source": f"p{who}", "ts_ms": ts_ms}
        body["values"] = {"slo_total": number, "num_requests_waiting": who}
        value: bytes | None = b""
        if kind == "packed":
            sources = [f"p{who}", f"p{who ^ 1}", f"p{who}"]
            value = encode_packed("requests", workload, sources, [ts_ms, ts_ms, ts_ms - 400], {"slo_total": [1, 2, 3]})
        elif kind == "histogram":
            hist = {"ttft_s": HistogramState((0.5, 1.0), (float(number), float(number)), float(number), 1.0)}
            value = encode_sample("requests", workload, f"p{who}", ts_ms, {"slo_total": float(number)}, hist)
        elif kind == "poison":
            value = POISON[number % len(POISON)]
        elif kind == "tombstone":
            value = None
        elif kind == "control":
            value, key = encode_control(Control(f"c{number}", ts_ms, "pause")), None
        elif kind == "tick":
            value, key = encode_tick(ts_ms), None
        elif kind in ("fleet", "fast fleet"):
            late_ms = 0 if kind == "fleet" else 2_000
            value = encode_fleet(workload, "k8s", FleetFacts(ts_ms + late_ms, who, 0, 0))
        else:
            if kind == "unknown name":
                body["values"]["new"] = 1
            elif kind == "no time":
                del body["ts_ms"]
            elif kind == "fast clock":
                body["ts_ms"] = now + 301 + later_ms
            elif kind == "out of range":
                body["values"]["slo_total"] = -1
            elif kind == "many unknown":
                body |= {
                    "source": ["p0", "p1"],
                    "ts_ms": [ts_ms, ts_ms - 1],
                    "values": {"slo_total": [1, 2], "x": [0, 0]},
                }
            value = json.dumps(body).encode()
            key = b"elsewhere" if kind == "other key" else key
        log.append(LogRecord(number * dense, now, key, value))
    return log


def told(emissions: Sequence[Emission]) -> list[tuple[Any, ...]]:
    """Everything published, in order: letters and pages, with the resume offset of each page."""
    published: list[tuple[Any, ...]] = []
    for e in emissions:
        published += [(r.topic, r.key, r.value, r.headers) for group in e.outputs for r in group]
        published += [(r.topic, r.key, r.value, e.resume_offset, e.closed_stamp_ms) for r in e.commits]
    return published


def seen(kernel: IngestKernel) -> tuple[Any, ...]:
    counts, lateness_ms = kernel.lateness.take()
    times = kernel.stream_time_ms, kernel.last_closed, kernel.next_offset, kernel.resume_offset
    return times, kernel.counters, kernel.dead_letter_counts, list(counts), lateness_ms, kernel.num_pages


def restored(emissions: Sequence[Emission], config: StreamConfig) -> IngestKernel:
    assembler = PageAssembler(config, TOPICS.partitions, DEFAULT_CATALOGUE)
    pages = []
    for offset, record in enumerate(r for e in emissions for r in e.commits):
        pages += [(p.page, p.digest) for p in assembler.feed(LogRecord(offset, 0, record.key, record.value))]
    return IngestKernel.restore(0, "requests", config, DEFAULT_CATALOGUE, TOPICS, pages)


def pieces(log: Sequence[LogRecord], sizes: Sequence[int]) -> list[Sequence[LogRecord]]:
    cut, at = [], 0
    for n in range(len(log)):
        size = sizes[n % len(sizes)]
        cut.append(log[at : at + size])
        at += size
    return [piece for piece in cut if piece]


@settings(max_examples=100, deadline=None)
@given(
    drawn=RECORDS,
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    bound=st.sampled_from([1, 3, 16_384]),
    config=st.sampled_from([ROOMY, CROWDED]),
    dense=st.sampled_from([1, 7]),
)
def test_batches_fold_to_what_single_records_fold_to(
    drawn: list[Drawn], sizes: list[int], bound: int, config: StreamConfig, dense: int
) -> None:
    log = log_of(drawn, dense)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_reader, "_RUN_SAMPLES", bound)
        patch.setattr(record_sorter, "_MAX_STRETCH_SAMPLES", bound)
        patch.setattr(record_sorter, "_MAX_SLOW_SAMPLES", bound)
        one_by_one, in_batches = restored([], config), restored([], config)
        alone = [e for record in log for e in one_by_one.fold([record])]
        batched = [e for piece in pieces(log, sizes) for e in in_batches.fold(piece)]
        assert told(batched) == told(alone)
        assert seen(in_batches) == seen(one_by_one)
        # The same in a second life, which reads part of the log again.
        one_by_one, in_batches = restored(alone, config), restored(batched, config)
        again = [record for record in log if record.offset >= (one_by_one.resume_offset or 0)]
        alone = [e for record in again for e in one_by_one.fold([record])]
        batched = [e for piece in pieces(again, sizes) for e in in_batches.fold(piece)]
        assert told(batched) == told(alone)
        assert seen(in_batches) == seen(one_by_one)


def sorter(config: StreamConfig = ROOMY) -> RecordSorter:
    reader = SampleReader(DEFAULT_CATALOGUE, "requests", config.max_record_bytes, config.skew_ms, SeriesIndex())
    decoder = RecordDecoder(DEFAULT_CATALOGUE, "requests", config.max_record_bytes)
    return RecordSorter(config, reader, decoder, DeadLetterBox("letters", "telemetry", 0))


def test_bad_records_do_not_cut_a_run() -> None:
    good, bad = ("sample", 0, 0, 1), ("poison", 0, 0, 1)
    (stretch,) = sorter().sort(log_of([good, bad] * 500, 1))
    assert isinstance(stretch, SampleStretch)
    assert stretch.run is not None
    assert (len(stretch.run.sizes), len(stretch.side_records)) == (500, 500)


@pytest.mark.parametrize("kind", ["poison", "unknown name", "many unknown", "packed", "sample"])
def test_a_stretch_is_bounded_whatever_it_is_made_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((sample_reader, "_RUN"), (record_sorter, "_MAX_STRETCH"), (record_sorter, "_MAX_SLOW")):
        monkeypatch.setattr(module, f"{name}_SAMPLES", 40)
    sizes = []
    for stretch in sorter().sort(log_of([(kind, n % 4, 0, 1) for n in range(1_000)], 1)):
        assert isinstance(stretch, SampleStretch)
        sizes.append(len(stretch.side_records) + (len(stretch.run.series) if stretch.run else 0))
    assert sum(sizes) == 1_000 * {"packed": 3, "many unknown": 2}.get(kind, 1)
    # Twice the bound, and the record that reached it.
    assert max(sizes) <= 2 * 40 + 3


def test_in_a_flood_no_reason_is_looked_for_that_nobody_will_read() -> None:
    kernel = restored([], ROOMY)
    emissions = kernel.fold(log_of([("poison", 0, 0, 1)] * 1_000, 1))
    reasons = [dict(r.headers)["reason"] for e in emissions for group in e.outputs for r in group]
    assert UNEXPLAINED.encode() not in reasons
    assert len(reasons) == 109
    assert kernel.dead_letter_counts[UNEXPLAINED] > 500
    assert sum(kernel.dead_letter_counts.values()) == kernel.counters.dead == 1_000
