"""Pages as bytes: they come back exactly, and whatever is damaged, foreign, torn or of other settings is seen."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec import structs

from streams.catalogue import DEFAULT_CATALOGUE, Indicator, Source, of_source
from streams.config import StreamConfig
from streams.log import ContractBroken, LogRecord
from streams.pages.codec import PageAssembler, StoredPage, align_page, decode_page
from streams.pages.page import Counters, Page, SeriesState, WorkloadFacts
from streams.records.facts import Control, FleetFacts, HistogramState, OutcomeFact
from tests.streams.pages.page_bytes import encode_page

CONFIG = StreamConfig(step_ms=1000, grace_ms=500, skew_ms=100)
NAMES = tuple(i.name for i in of_source(DEFAULT_CATALOGUE, "requests"))

count32 = st.integers(0, 2**31 - 1)
instant = st.integers(0, 2**53 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
name = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=6)
fleet = st.builds(FleetFacts, instant, count32, count32, count32, st.none() | count32)
outcome = st.builds(OutcomeFact, instant, name, name, st.none() | count32, st.none() | finite)
control = st.builds(Control, name, instant, name, st.none() | name, st.none() | name, st.none() | count32)
hist = st.builds(HistogramState, st.tuples(finite, finite), st.tuples(finite, finite), finite, finite)
facts = st.builds(
    WorkloadFacts,
    count32,
    instant,
    count32,
    count32,
    st.booleans(),
    st.booleans(),
    st.none() | fleet,
    st.lists(outcome, max_size=2).map(tuple),
)


@st.composite
def pages(draw: st.DrawFn) -> Page:
    workloads = tuple(sorted(draw(st.sets(name, max_size=5))))
    shape = (len(workloads), len(NAMES))
    observed = draw(arrays.arrays(np.bool_, shape))
    values = draw(arrays.arrays(np.float32, shape, elements=st.floats(allow_nan=False, width=32)))
    pairs = sorted(draw(st.sets(st.tuples(st.sampled_from(workloads), name), max_size=4))) if workloads else []
    return Page(
        source="requests",
        partition=2,
        slot=draw(st.integers(0, 2**40)),
        prev=draw(st.none() | st.integers(0, 2**40)),
        prev_digest=draw(st.none() | st.just("ab" * 16)),
        end_offset=draw(instant),
        end_stamp_ms=draw(instant),
        resume_offset=draw(instant),
        step_ms=CONFIG.step_ms,
        grace_ms=CONFIG.grace_ms,
        indicators=NAMES,
        workloads=workloads,
        values=np.where(observed, values, np.float32(0)),
        observed=observed,
        facts=tuple(draw(facts) for _ in workloads),
        series=tuple(
            SeriesState(
                workload,
                source,
                draw(instant),
                draw(st.dictionaries(name, finite, max_size=3)),
                draw(st.dictionaries(name, hist, max_size=2)),
                draw(st.dictionaries(name, instant, max_size=2)),
            )
            for workload, source in pairs
        ),
        controls=tuple(draw(st.lists(control, max_size=2))),
        counters=Counters(records=draw(instant), dead=draw(instant)),
    )


def small_page(slot: int, prev: int | None = None, source: Source = "requests") -> Page:
    names = tuple(i.name for i in of_source(DEFAULT_CATALOGUE, source))
    return Page(
        source=source,
        partition=2,
        slot=slot,
        prev=prev,
        prev_digest=None if prev is None else "00" * 16,
        end_offset=slot,
        end_stamp_ms=slot,
        resume_offset=slot,
        step_ms=CONFIG.step_ms,
        grace_ms=CONFIG.grace_ms,
        indicators=names,
        workloads=("a", "b"),
        values=np.arange(2 * len(names), dtype=np.float32).reshape(2, -1),
        observed=np.ones((2, len(names)), np.bool_),
        facts=(WorkloadFacts(1, slot, 1, 1), WorkloadFacts(2, slot, 1, 1)),
    )


def same(a: Page, b: Page) -> bool:
    for f in fields(Page):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if isinstance(x, np.ndarray):
            if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                return False
        elif x != y:
            return False
    return True


def chunks(page: Page, chunk_bytes: int = 900_000, start: int = 0) -> list[LogRecord]:
    encoded = encode_page(page, 4, chunk_bytes)
    return [LogRecord(start + i, 0, key, value) for i, (key, value) in enumerate(encoded.records)]


def assembler(config: StreamConfig = CONFIG, partitions: int = 4) -> PageAssembler:
    return PageAssembler(config, partitions, DEFAULT_CATALOGUE)


def feed_all(reader: PageAssembler, records: list[LogRecord]) -> list[StoredPage]:
    return [found for record in records for found in reader.feed(record)]


@settings(max_examples=60)
@given(pages(), st.integers(17, 400))
def test_a_page_comes_back_from_chunks_of_any_size(page: Page, chunk_bytes: int) -> None:
    encoded = encode_page(page, 4, chunk_bytes)
    reader, found = assembler(), []
    records = [LogRecord(7 + i, 0, key, value) for i, (key, value) in enumerate(encoded.records)]
    for record in records:
        found += reader.feed(record)
    assert len(found) == 1
    assert same(found[0].page, page)
    assert (found[0].digest, found[0].first_offset, found[0].last_offset) == (encoded.digest, 7, records[-1].offset)
    assert all(len(value) <= chunk_bytes + 64 for _, value in encoded.records)
    assert len({key for key, _ in encoded.records}) == len(encoded.records)
    assert reader.first_pending_offset() is None


@settings(max_examples=20)
@given(pages())
def test_equal_pages_are_equal_bytes(page: Page) -> None:
    again = replace(page, series=tuple(reordered(s) for s in page.series), values=np.asfortranarray(page.values))
    assert encode_page(page, 4) == encode_page(again, 4)


def reordered(s: SeriesState) -> SeriesState:
    parts: list[Any] = [dict(reversed(d.items())) for d in (s.counters, s.hists, s.older_ts_ms)]
    return SeriesState(s.workload, s.source, s.ts_ms, *parts)


def test_chunks_stay_below_the_brokers_limit() -> None:
    rows = 40_000
    page = replace(
        small_page(1),
        workloads=tuple(f"workload-with-a-rather-long-name-{i:08d}" for i in range(rows)),
        values=np.zeros((rows, len(NAMES)), np.float32),
        observed=np.zeros((rows, len(NAMES)), np.bool_),
        facts=(WorkloadFacts(1, 1, 1, 1),) * rows,
    )
    encoded = encode_page(page, 4)
    assert len(encoded.records) > 2
    assert max(len(value) for _, value in encoded.records) < 1_000_000


@settings(max_examples=40)
@given(st.data())
def test_any_damaged_byte_is_seen(data: st.DataObject) -> None:
    records = chunks(small_page(5), chunk_bytes=200)
    which = data.draw(st.integers(0, len(records) - 1))
    key, value = records[which].key or b"", records[which].value or b""
    at = data.draw(st.integers(24, len(value) - 1))
    damaged = value[:at] + bytes([value[at] ^ data.draw(st.integers(1, 255))]) + value[at + 1 :]
    records[which] = LogRecord(which, 0, key, damaged)
    reader = assembler()
    with pytest.raises(ContractBroken, match=r"damaged.*state reset"):
        feed_all(reader, records)


FOREIGN = [
    LogRecord(3, 0, None, b"x" * 40),
    LogRecord(3, 0, b"workload", b"x" * 40),
    LogRecord(3, 0, b"\x00" * 15, None),
    LogRecord(3, 0, b"\x00" * 15, b"short"),
    LogRecord(3, 0, b"\x00" * 15, b"x" * 40),
]


@pytest.mark.parametrize("record", FOREIGN)
def test_foreign_records_are_seen(record: LogRecord) -> None:
    with pytest.raises(ContractBroken, match=r"pages: offset 3 is not a page chunk.*state reset"):
        assembler().feed(record)


def test_a_chunk_of_another_partition_is_seen() -> None:
    reader = assembler()
    reader.feed(chunks(small_page(5))[0])
    with pytest.raises(ContractBroken, match=r"partition 3.*state reset"):
        reader.feed(chunks(replace(small_page(6), partition=3), start=1)[0])


@pytest.mark.parametrize(
    ("config", "partitions", "what"),
    [
        (replace(CONFIG, step_ms=2000), 4, "step_ms 1000"),
        (replace(CONFIG, grace_ms=700), 4, "grace_ms 500"),
        (CONFIG, 8, "partition count 4"),
    ],
)
def test_other_settings_are_named(config: StreamConfig, partitions: int, what: str) -> None:
    with pytest.raises(ContractBroken, match=rf"{what}.*state reset"):
        assembler(config, partitions).feed(chunks(small_page(5))[0])


def test_other_context_length_is_no_matter() -> None:
    assert assembler(replace(CONFIG, context_steps=7)).feed(chunks(small_page(5))[0])


def test_a_torn_page_is_dropped_when_its_chain_goes_on() -> None:
    reader = assembler()
    torn = chunks(small_page(5), chunk_bytes=200)
    for record in torn[:-1]:
        assert reader.feed(record) == []
    assert reader.feed(chunks(small_page(9, source="gpu"), start=50)[0])
    assert reader.first_pending_offset() == 0  # the other chain does not matter
    (found,) = reader.feed(chunks(small_page(6), start=60)[0])
    assert found.page.slot == 6
    assert reader.first_pending_offset() is None


def test_a_torn_page_written_again_is_whole() -> None:
    reader = assembler()
    records = chunks(small_page(5), chunk_bytes=200)
    assert [reader.feed(r) for r in records[:-1]] == [[]] * (len(records) - 1)
    found = [f for r in chunks(small_page(5), chunk_bytes=200, start=80) for f in reader.feed(r)]
    assert [(f.page.slot, f.first_offset) for f in found] == [(5, 0)]


def test_two_writers_at_once_give_whole_pages() -> None:
    reader = assembler()
    records = chunks(small_page(5), chunk_bytes=200)
    mixed = [r for record in records for r in (record, record)]
    found = [f for i, r in enumerate(mixed) for f in reader.feed(structs.replace(r, offset=i))]
    assert [f.page.slot for f in found] == [5]


@given(st.permutations(NAMES), st.integers(0, len(NAMES)))
def test_indicators_are_matched_by_name(order: list[str], kept: int) -> None:
    page = small_page(5)
    wanted = (*order[:kept], "engine.new")
    aligned = align_page(page, wanted)
    assert aligned.indicators == wanted
    for column, indicator in enumerate(wanted[:-1]):
        assert (aligned.values[:, column] == page.values[:, NAMES.index(indicator)]).all()
        assert aligned.observed[:, column].all()
    assert not aligned.observed[:, -1].any()
    assert not aligned.values[:, -1].any()


def test_pages_of_another_catalogue_are_read_by_the_new_one() -> None:
    new = Indicator("engine.new", "1", 2, "requests", "mean", ("num_new",))
    reader = PageAssembler(CONFIG, 4, (new, *DEFAULT_CATALOGUE[:3]))
    (found,) = reader.feed(chunks(small_page(5))[0])
    assert found.page.indicators == ("engine.new", *NAMES[:3])
    assert found.page.observed.tolist() == [[False, True, True, True]] * 2


def test_a_page_of_the_wrong_shape_is_not_written() -> None:
    with pytest.raises(ValueError, match="shape"):
        encode_page(replace(small_page(5), workloads=("a",)), 4)


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_a_page_whose_parts_do_not_fit_each_other_is_refused_in_words(cut: int) -> None:
    """Bytes that carry a right digest and were not written by `encode_page`."""
    records = encode_page(small_page(5), 4).records
    body = b"".join(value[24:] for _, value in records)
    for broken in (body[:-cut], body[: len(body) // 2], body[:3], b""):
        with pytest.raises(ContractBroken, match=r"cannot be read|do not fit each other"):
            decode_page(broken, CONFIG, 4)
