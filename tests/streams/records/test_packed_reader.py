"""Plain packed records mean, to the bit, what the parser of any JSON reads in them; others are left to it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE, of_source
from streams.log import LogRecord
from streams.records.fast_reader import PackedReader
from streams.records.limits import bounds_of
from streams.records.samples import SampleRows
from streams.records.schema import encode_packed
from streams.records.series_index import SeriesIndex

FIELDS = tuple(bounds_of(of_source(DEFAULT_CATALOGUE, "requests")))
WORKLOAD, T = "prod/llm/chat", 1_763_636_400_000
KEY = WORKLOAD.encode()


@cache
def reader() -> PackedReader:
    every = lambda values: np.ones(len(values), np.bool_)  # noqa: E731 - no bounds: the numbers themselves are compared
    return PackedReader("requests", FIELDS, 1 << 20, 1_000, SeriesIndex(), every)


def plain(text: bytes) -> list[tuple[Any, ...]] | None:
    """What the compiled reading finds in a record; None where it does not take it."""
    return samples(PackedReader._plain, text)


def other(text: bytes) -> list[tuple[Any, ...]] | None:
    """What the parser of any JSON finds."""
    return samples(PackedReader._json, text)


def samples(read: Callable[..., bool], text: bytes) -> list[tuple[Any, ...]] | None:
    packed, rows = reader(), SampleRows(64, len(FIELDS))
    if not read(packed, LogRecord(7, T, KEY, text), text, rows):
        return None
    run = rows.run()
    assert run is not None
    assert (run.offsets.tolist(), run.stamps.tolist(), run.sizes.tolist()) == ([7], [T], [len(run.series)])
    values = run.values + 0.0  # as the look at the bounds makes 0 of -0
    names = packed._index.sources_of(run.series)
    return list(zip(names, run.ts_ms.tolist(), values.view(np.int64).tolist(), strict=True))


def body(n: int = 4, **changes: Any) -> dict[str, Any]:
    values = {"num_requests_running": [float(i) for i in range(n)], "kv_cache_usage_ratio": [0.25] * n}
    sources = [f"pod:{i % 2}" for i in range(n)]
    ts_ms = list(range(T, T + n))
    whole = {"v": 1, "kind": "requests", "workload": WORKLOAD, "source": sources, "ts_ms": ts_ms, "values": values}
    return whole | changes


def text(**changes: Any) -> bytes:
    return json.dumps(body(**changes), separators=(",", ":")).encode()


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(
        ["null", "-0", "0.0", "00", "01", "-", ".5", "5.", "1e", "1e+", "+1", "NaN", "nul", "9007199254740993"]
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(NUMBERS, min_size=2, max_size=2))
@example(["9007199254740993", "0.1000000000000000055"])
@example(["1.7976931348623157e308", "5e-324"])
@example(["123456789012345678", "1234567890123456789"])
def test_numbers_are_those_of_the_other_parser_to_the_bit(numbers: list[str]) -> None:
    value = text(n=2, values={"slo_total": ["?", "?"]}).replace(b'["?","?"]', f"[{','.join(numbers)}]".encode())
    found = plain(value)
    assert found is None or found == other(value)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.just(0.0) | st.floats(1e-90, 1e9), min_size=1, max_size=40), st.integers(1, 5), st.booleans())
def test_what_publishers_write_is_plain(numbers: list[float], num_sources: int, blanks: bool) -> None:
    n = len(numbers)
    sources = [f"pod-{i % num_sources}" for i in range(n)]
    columns: dict[str, Any] = {"prompt_tokens_total": numbers, "num_requests_running": [None] + [3] * (n - 1)}
    value = encode_packed("requests", WORKLOAD, sources, list(range(T, T + n)), columns)
    if blanks:
        value = json.dumps(json.loads(value)).encode()
    found = plain(value)
    assert found is not None
    assert found == other(value)
    at = FIELDS.index("prompt_tokens_total")
    assert np.array([row[2][at] for row in found]).view(np.float64).tolist() == numbers


PIECES = [
    b"",
    b'"',
    b",",
    b" ",
    b"\n",
    b"[",
    b"]",
    b"{",
    b"}",
    b"0",
    b"1",
    b"-",
    b".",
    b"e",
    b"null",
    b"\\",
    b":",
    b"\xc3\xa9",
    b"\x00",
]


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_damaged_records_are_not_plain_or_mean_what_the_other_parser_reads(data: st.DataObject) -> None:
    value = bytearray(text(n=data.draw(st.integers(1, 4))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 3))] = data.draw(st.sampled_from(PIECES))
    found = plain(bytes(value))
    assert found is None or found == other(bytes(value))


@given(st.permutations(list(body())))
def test_the_order_of_the_keys_is_nothing(names: list[str]) -> None:
    whole = body()
    value = json.dumps({name: whole[name] for name in names}).encode()
    assert plain(value) == other(text()) is not None


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("nothing", b""),
        ("another version", text(v=2)),
        ("another kind", text(kind="gpu")),
        ("an unknown key", text(extra=1)),
        ("an unknown field", text(values={"own": [1, 2, 3, 4]})),
        ("a key twice", text().replace(b'{"v":1,', b'{"v":1,"v":1,')),
        ("a field twice", text().replace(b'"values":{', b'"values":{"kv_cache_usage_ratio":[1,1,1,1],')),
        ("no field", text(values={})),
        ("a key too few", text().replace(b'"v":1,', b"")),
        ("a cell too few", text().replace(b"[0.0,", b"[")),
        ("an instant too few", text(ts_ms=[T, T, T])),
        ("a source too few", text(source=["a", "b", "c"])),
        ("no sample", text(n=0)),
        ("an escape", text(source=["a\u00e9", "b", "c", "d"])),
        ("a letter beyond ASCII", text(source=["a", "b", "c", "d"]).replace(b'"a"', '"é"'.encode())),
        ("another key", text(workload="elsewhere")),
        ("a fraction of an instant", text(ts_ms=[T + 0.5, T, T, T])),
        ("an instant too large", text(ts_ms=[10**15, T, T, T])),
        ("a fast clock", text(ts_ms=[T, T + 1_001, T, T])),
        ("something behind it", text() + b"1"),
        ("more samples than there are rows", text(n=65)),
    ],
)
def test_not_plain(what: str, value: bytes) -> None:
    assert plain(value) is None


def test_every_beginning_of_a_record_is_not_plain() -> None:
    value = text()
    assert all(plain(value[:end]) is None for end in range(len(value)))
    assert plain(value) is not None


def test_more_sources_and_inexact_numbers_than_are_noted_are_left_to_the_other_parser() -> None:
    many = 300
    rows = SampleRows(4 * many, len(FIELDS))
    wide = text(n=many, source=[f"s{i}" for i in range(many)])
    long = text(n=4 * many, values={"slo_total": [1 / 3 + math.ulp(1 / 3)] * 4 * many}).replace(b"0.3333", b"0.03333")
    for value in (wide, long):
        record = LogRecord(1, T + 4 * many, KEY, value)
        packed = reader()
        assert not packed._plain(record, value, rows)
        assert packed.read(record, SampleRows(1, len(FIELDS)))


@given(st.lists(st.sampled_from([f"pod-{i}" for i in range(200)]), min_size=1, max_size=60))
def test_sources_come_in_any_order(sources: list[str]) -> None:
    found = plain(text(n=len(sources), source=sources))
    assert found is not None
    assert [name for name, *_ in found] == sources


def test_names_that_meet_in_the_table_of_names_are_left_to_the_other_parser() -> None:
    def cell(name: str) -> int:
        key = 0
        for byte in name.encode():
            key = ((key ^ byte) * 16_777_619) & 0xFFFFFFFF
        return key % 1024

    names = [name for name in (f"pod-{i}" for i in range(20_000)) if cell(name) == 7][:9]
    assert plain(text(n=8, source=names[:8])) is not None
    assert plain(text(n=9, source=names)) is None
    assert other(text(n=9, source=names)) is not None


def test_rows_grow_and_keep_what_they_hold() -> None:
    packed, rows = reader(), SampleRows(3, len(FIELDS))
    for offset in range(5):
        assert packed.read(LogRecord(offset, T, KEY, text(n=2 + offset)), rows)
    run = rows.run()
    assert run is not None
    assert (run.sizes.tolist(), run.offsets.tolist()) == ([2, 3, 4, 5, 6], [0, 1, 2, 3, 4])
    assert run.ts_ms.tolist() == [T + i for n in run.sizes.tolist() for i in range(n)]
    assert run.values[:, FIELDS.index("num_requests_running")].tolist() == [
        float(i) for n in run.sizes.tolist() for i in range(n)
    ]
