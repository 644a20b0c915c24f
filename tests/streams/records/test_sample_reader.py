"""The fast reading accepts only what the strict decoder accepts, and means the same by it."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.log import LogRecord
from streams.records.binary import encode_binary
from streams.records.decode import RecordDecoder
from streams.records.fast_reader import SampleReader
from streams.records.samples import SampleRun
from streams.records.schema import DeadLetter, SampleRecord, encode_packed
from streams.records.series_index import SeriesIndex
from tests.streams.ingest.random_logs import random_log
from tests.streams.records.bad_records import BAD, KEY, T, W, record

SKEW_MS = 1000


def reader_of(source: Source = "requests") -> tuple[SampleReader, SeriesIndex]:
    index = SeriesIndex()
    return SampleReader(DEFAULT_CATALOGUE, source, 65_536, SKEW_MS, index), index


def meaning(run: SampleRun, reader: SampleReader, index: SeriesIndex) -> list[tuple[Any, ...]]:
    """Samples of a run as (offset, workload, source, ts_ms, values, hists)."""
    hists = dict(run.hists)
    offsets = np.repeat(run.offsets, run.sizes).tolist()
    samples = []
    for i, (offset, series, ts_ms) in enumerate(zip(offsets, run.series.tolist(), run.ts_ms.tolist(), strict=True)):
        values = zip(reader.fields, run.values[i].tolist(), strict=True)
        present = {name: value for name, value in values if not math.isnan(value)}
        workload = index.name_of(int(index.workload_of[series]))
        samples.append((offset, workload, index.source_of(series), ts_ms, present, hists.get(i, {})))
    return samples


def expected(record_: LogRecord, decoded: SampleRecord) -> list[tuple[Any, ...]]:
    return [
        (
            record_.offset,
            decoded.workload,
            s.source,
            s.ts_ms,
            {name: value for name, value in s.values.items() if value is not None},
            dict(s.hists),
        )
        for s in decoded.samples
    ]


def check(records: list[LogRecord], source: Source = "requests") -> int:
    """Compare with the strict decoder; returns how many records were read fast."""
    reader, index = reader_of(source)
    decoder = RecordDecoder(DEFAULT_CATALOGUE, source, 65_536)
    by_offset = {r.offset: r for r in records}
    order: list[int] = []
    fast = 0
    for part, rest in reader.read(records):
        offsets = [r.offset for r in rest]
        assert offsets == sorted(offsets)
        if part is None:
            order += offsets
            continue
        assert part.offsets.tolist() == sorted(part.offsets.tolist())
        want: list[tuple[Any, ...]] = []
        for offset in part.offsets.tolist():
            r = by_offset[offset]
            decoded = decoder.decode(r.value, r.key, r.stamp_ms)
            assert isinstance(decoded, SampleRecord), (r, decoded)
            assert decoded.unknown_names == 0
            assert max(s.ts_ms for s in decoded.samples) <= r.stamp_ms + SKEW_MS
            want += expected(r, decoded)
        assert meaning(part, reader, index) == want
        order += sorted([*part.offsets.tolist(), *offsets])
        fast += len(part.offsets)
    assert order == [r.offset for r in records]
    return fast


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seed", range(5))
def test_random_logs_mean_the_same_and_most_of_them_are_read_fast(seed: int, source: Source) -> None:
    log = [LogRecord(*r) for r in random_log(500 + seed, source, 1000, 1500, SKEW_MS, 60)]
    assert check(log, source) > len(log) / 3


@pytest.mark.parametrize(("code", "value"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_no_bad_record_is_read_fast(code: str, value: bytes) -> None:
    good = record(values={"num_requests_running": 3})
    around = [LogRecord(1, T, KEY, good), LogRecord(2, T, KEY, value), LogRecord(3, T, KEY, good)]
    assert check(around) == 2


def test_other_keys_long_values_and_fast_clocks_go_the_slow_way() -> None:
    good, padded = record(), record() + b" " * 70_000
    records = [
        LogRecord(0, T, b"elsewhere", good),
        LogRecord(1, T, None, good),
        LogRecord(2, T, KEY, padded),
        LogRecord(3, T - SKEW_MS - 1, KEY, good),
        LogRecord(4, T - SKEW_MS, KEY, good),
        LogRecord(5, T, KEY, None),
    ]
    assert check(records) == 1


def packed(size: int, **changes: Any) -> bytes:
    values = {"num_requests_running": list(range(size)), "kv_cache_usage_ratio": [0.5] * size}
    return record(source=["a", "b:9"] * (size // 2), ts_ms=list(range(T - size, T)), values=values, **changes)


@pytest.mark.parametrize(
    ("what", "value", "fast"),
    [
        ("whole", packed(4), 1),
        ("a missing cell", packed(4).replace(b"[0, 1,", b"[null, 1,"), 1),
        ("a boolean", packed(4).replace(b"[0, 1,", b"[true, 1,"), 0),
        ("a string", packed(4).replace(b"[0, 1,", b'["0", 1,'), 0),
        ("a cell too few", packed(4).replace(b"[0, 1,", b"[1,"), 0),
        ("no cells", packed(4).replace(b"[0, 1, 2, 3]", b"[]"), 0),
        ("out of range", packed(4).replace(b"[0, 1,", b"[-1, 1,"), 0),
        ("over by rounding", packed(4).replace(b"[0.5, 0.5,", b"[1.0002, 0.5,"), 1),
        ("an unknown name", packed(4, extra=1), 0),
        ("an escape beside a colon", packed(4).replace(b'"a"', b'"\\u0061"'), 0),
    ],
)
def test_packed_records(what: str, value: bytes, fast: int) -> None:
    assert check([LogRecord(0, T, KEY, value)]) == fast


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_record_with_bytes_changed_is_read_fast_only_if_it_is_still_good(data: st.DataObject) -> None:
    body = {"v": 1, "kind": "requests", "workload": W, "source": "n:1", "ts_ms": T, "values": {"slo_total": 9}}
    value = bytearray(json.dumps(body).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(list(b'0:"\\,{}[]-.e u')).map(lambda b: bytes([b]))
        )
    check([LogRecord(0, T, KEY, bytes(value))])


def test_names_that_nothing_holds_any_more_are_forgotten_and_their_numbers_used_again() -> None:
    rng, index = random.Random(1), SeriesIndex()
    kept = [index.series("w", f"s{i}") for i in range(5)]
    for i in range(70_000):
        index.series(f"flood-{i}", "s")
    assert index.crowded(10**9)
    assert len(index.sweep([np.array(kept)], ["w", "facts only"])) == 70_000
    assert not index.crowded(10**9)
    assert (index.num_series, index.num_workloads) == (5, 1)
    again = index.series(f"new-{rng.random()}", "s")
    assert again < 70_005
    assert again not in kept
    assert [index.source_of(n) for n in kept] == [f"s{i}" for i in range(5)]
    ranks = index.ranks()
    assert int(ranks[again]) < min(ranks[kept].tolist())


def binary(**changes: Any) -> bytes:
    values = {"num_requests_running": [1.0, math.nan, 3.0], "kv_cache_usage_ratio": [0.1, 1.0002, -0.0]}
    body: dict[str, Any] = {"kind": "requests", "workload": W, "sources": ["a", "b:1", "a"], "ts_ms": [T, T, T - 1]}
    return encode_binary(**{**body, "values": values, **changes})


def test_a_binary_record_means_what_the_packed_one_means() -> None:
    values = {"num_requests_running": [1.0, None, 3.0], "kv_cache_usage_ratio": [0.1, 1.0002, 0.0]}
    text = encode_packed("requests", W, ["a", "b:1", "a"], [T, T, T - 1], values)
    assert check([LogRecord(0, T, KEY, binary()), LogRecord(1, T, KEY, text)]) == 2
    decoder = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536)
    one, other = (decoder.decode(value, KEY, T) for value in (binary(), text))
    assert isinstance(one, SampleRecord)
    assert isinstance(other, SampleRecord)
    assert expected(LogRecord(0, T, KEY, None), one) == expected(LogRecord(0, T, KEY, None), other)


def header(**changes: Any) -> bytes:
    """A binary record with fields of its header replaced; a value of ... removes the field."""
    value = binary()
    (length,) = struct.unpack_from("<I", value, 4)
    fields = json.loads(value[8 : 8 + length]) | changes
    text = json.dumps({k: v for k, v in fields.items() if v is not ...}).encode()
    return value[:4] + struct.pack("<I", len(text)) + text + value[8 + length :]


def with_cell(number: float) -> bytes:
    return binary()[:-8] + struct.pack("<d", number)


@pytest.mark.parametrize(
    ("what", "code", "value"),
    [
        ("magic alone", "decode", b"HTB1"),
        ("header cut off", "decode", b"HTB1\xff\xff\xff\xff{}"),
        ("header is no JSON", "decode", b"HTB1\x02\x00\x00\x00{{"),
        ("a field missing", "schema", header(n=...)),
        ("a field too many", "schema", header(note=1)),
        ("a field of another type", "schema", header(n="3")),
        ("too few bytes", "schema", binary()[:-1]),
        ("too many bytes", "schema", binary() + b"\0"),
        ("no sample", "schema", header(n=0)),
        ("fewer than none", "schema", header(n=-1)),
        ("another count", "schema", header(n=4)),
        ("a name twice", "schema", header(names=["num_requests_running"] * 2)),
        ("a source twice", "schema", header(sources=["a", "a"])),
        ("a source that is not there", "schema", header(sources=["a"])),
        ("another version", "version", header(v=2)),
        ("another kind", "kind", header(kind="fleet")),
        ("another topic's kind", "kind", header(kind="gpu")),
        ("a key that is not the workload", "key", header(workload="other")),
        ("a label with markup", "labels", header(sources=["<a>", "b"])),
        ("an infinite cell", "non_finite", with_cell(math.inf)),
        ("a cell out of range", "range", with_cell(-1.0)),
        ("an instant in nanoseconds", "future", binary(ts_ms=[T, T, T * 1_000_000])),
        ("an instant before all", "range", binary(ts_ms=[T, T, -1])),
    ],
)
def test_bad_binary_records_have_their_code(what: str, code: str, value: bytes) -> None:
    decoded = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536).decode(value, KEY, T)
    assert isinstance(decoded, DeadLetter), (what, decoded)
    assert (decoded.code, decoded.detail.isprintable()) == (code, True)
    assert check([LogRecord(0, T, KEY, value)]) == 0


def test_names_that_are_not_known_are_counted_and_fast_clocks_go_the_slow_way() -> None:
    extra = {"num_requests_running": [1.0, 2.0, 3.0], "new": [1.0, 2.0, 3.0]}
    decoded = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536).decode(binary(values=extra), KEY, T)
    assert isinstance(decoded, SampleRecord)
    assert decoded.unknown_names == 1
    assert check([LogRecord(0, T, KEY, binary(values=extra)), LogRecord(1, T - SKEW_MS - 1, KEY, binary())]) == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.binary(max_size=4))
def test_damaged_binary_records_never_raise(at: int, new: bytes) -> None:
    value = bytearray(binary())
    value[at % len(value) : at % len(value) + len(new)] = new
    check([LogRecord(0, T, KEY, bytes(value))])


def test_what_cannot_be_a_binary_record_is_not_encoded() -> None:
    for wrong in ({"ts_ms": [T]}, {"sources": []}, {"values": {"power_w": [1.0]}}, {"values": {"x": [math.inf] * 3}}):
        with pytest.raises(ValueError, match=r"binary|infinite"):
            binary(**wrong)


def test_the_producer_on_the_formats_page_writes_what_the_encoder_writes() -> None:
    page = (Path(__file__).parents[3] / "docs/formats/README.md").read_text(encoding="utf-8")
    (code,) = [block for block in page.split("```python\n")[1:] if "HTB1" in block]
    ten_lines: dict[str, Any] = {}
    exec(code.split("```")[0], ten_lines)  # noqa: S102 - the page is ours
    values = {"num_requests_running": [1.0, None, 3.0], "kv_cache_usage_ratio": [0.5, 0.25, 0.0]}
    value = ten_lines["binary_record"]("requests", W, ["a", "b:1", "a"], [T, T, T - 1], values)
    packed = encode_packed("requests", W, ["a", "b:1", "a"], [T, T, T - 1], values)
    decoder = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536)
    assert decoder.decode(value, KEY, T) == decoder.decode(packed, KEY, T)
    assert check([LogRecord(0, T, KEY, value)]) == 1
