"""The text format: every line of the grammar is read, every other is refused with its place; a library agrees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from infra.collect.formats.exposition import UnreadableError, read_exposition
from infra.collect.points import Point, is_measured
from tests.infra.collect.samples import TS_MS, reader

STAMP_MS = 7


def everything(_: str) -> bool:
    return True


def read(text: str) -> list[Point]:
    return read_exposition(text, everything, STAMP_MS)


@pytest.mark.parametrize(
    ("line", "labels", "value", "ts_ms"),
    [
        ("a 1", {}, 1.0, STAMP_MS),
        ("  a 1", {}, 1.0, STAMP_MS),
        ("\ta\t1\t", {}, 1.0, STAMP_MS),
        ("\ufeffa 1", {}, 1.0, STAMP_MS),
        ("a 1\r", {}, 1.0, STAMP_MS),
        ("a{} 1", {}, 1.0, STAMP_MS),
        ('a { x = "1" , } 1', {"x": "1"}, 1.0, STAMP_MS),
        ('a{x="1"}4', {"x": "1"}, 4.0, STAMP_MS),
        ('a{x="org/m # {v2}"} 4', {"x": "org/m # {v2}"}, 4.0, STAMP_MS),
        ('a{x="},=\\"{"} 4', {"x": '},="{'}, 4.0, STAMP_MS),
        (r'a{x="\\n\n\t"} 4', {"x": "\\n\n\\t"}, 4.0, STAMP_MS),
        ('a{x="1"} 4 # {trace="b",span="} # {"} 9 1.7e9', {"x": "1"}, 4.0, STAMP_MS),
        ("a 4 # {} 9", {}, 4.0, STAMP_MS),
        ('{"a"} 4', {}, 4.0, STAMP_MS),
        ('{"a",x="1"} 4', {"x": "1"}, 4.0, STAMP_MS),
        ('{x="1","a"} 4', {"x": "1"}, 4.0, STAMP_MS),
        ('{__name__="a"} 4', {}, 4.0, STAMP_MS),
        ('a{"a b"="1"} 4', {"a b": "1"}, 4.0, STAMP_MS),
        ('{"a","k8s.pod.name"="p"} 4', {"k8s.pod.name": "p", "k8s_pod_name": "p", "pod": "p"}, 4.0, STAMP_MS),
        ("a +4.5e-1", {}, 0.45, STAMP_MS),
        ("a +Inf", {}, math.inf, STAMP_MS),
        (f"a 1 {TS_MS}", {}, 1.0, TS_MS),
        (f"a 1 {TS_MS}.0", {}, 1.0, TS_MS),
        (f"a 1 {TS_MS / 1e12:.15f}e12", {}, 1.0, TS_MS),
        (f"a 1 {TS_MS // 1000}.123", {}, 1.0, TS_MS + 123),
        (f"a 1 {TS_MS / 1e9:.15f}e9", {}, 1.0, TS_MS),
    ],
)  # fmt: skip
def test_a_line_of_the_grammar(line: str, labels: dict[str, str], value: float, ts_ms: int) -> None:
    assert read(f"# HELP a\n{line}\n") == [Point("a", labels, ts_ms, value)]


@pytest.mark.parametrize("text", ["", "\n", " \t\n", "# x", "\t# TYPE a gauge", "\ufeff# HELP a", "#", "# EOF\r\n"])
def test_comments_and_blank_lines_hold_nothing(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a 4,0", ", column 3: '4,0' is no number"),
        ("  a 4,0", ", column 5: '4,0' is no number"),
        ("a 0x4", "'0x4' is no number"),
        ("a 1_0", "'1_0' is no number"),
        ("a ４", "'４' is no number"),
        ("a \N{MINUS SIGN}4", "is no number"),
        ("a 1\0", r"'1\x00' is no number"),
        ("a 1e999", "'1e999' is no number"),
        ("a 1 234 567", "after the name stand 3 words"),
        ("a 4 requests", "'requests' is no time"),
        ("a 4 -1", "'-1' is no time"),
        ("a 4 NaN", "'NaN' is no time"),
        ("a 4 1e308", "'1e308' is no time"),
        ("a", " is no sample"),
        ("a.b 1", " is no sample"),
        ("a\N{NO-BREAK SPACE}1", " is no sample"),
        ("404 page not found", " is no sample"),
        ("a{", "begins with no label"),
        ("a{}", "after the name stand 0 words"),
        ('a{x="1} 4', ", column 3: 'x=\"1} 4' begins with no label"),
        ('a{x="1"y="2"} 4', "begins with no label"),
        ("a{x} 4", "begins with no label"),
        ('a{,x="1"} 4', "begins with no label"),
        ('a{x="1",x="2"} 4', ", column 9: 'x' stands twice"),
        ('{"a","b"} 4', "'__name__' stands twice"),
        ('a{"b"} 4', "two names"),
        ('{x="1"} 4', "no name"),
        ("a {count:24,sum:100}", "begins with no label"),
    ],
)
def test_any_other_line_is_refused_with_its_place_and_text(line: str, words: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read(f"a 1\n\n{line}\n")
    assert str(caught.value).startswith("line 3")
    assert words in str(caught.value)


def test_a_line_of_another_series_costs_nothing() -> None:
    text = 'other{x="1} 4\nother 4,0\nnative {count:24}\n{"native"} {count:24}\na 1\n'
    assert read_exposition(text, "a".__eq__, STAMP_MS) == [Point("a", {}, STAMP_MS, 1.0)]


def test_pages_of_both_formats_in_one_file() -> None:
    openmetrics, older = f"a 1 {TS_MS / 1000}\n# EOF\n", f"b 2 {TS_MS}\n"
    assert [p.ts_ms for p in read(openmetrics + "\ufeff" + older)] == [TS_MS, TS_MS]


@pytest.mark.parametrize("value", ["NaN", "nan", "-nan", "+Inf", "-Inf", "9223372036854775794"])
def test_what_stands_for_no_value_is_no_measurement(value: str) -> None:
    name = "vllm:num_requests_running"
    (point,) = read(f'{name}{{instance="h"}} {value}')
    assert not is_measured(point.value)
    assert reader("vllm", workload="w").read([point]) == []


@pytest.mark.parametrize("size", [100_000, 200_000])
@pytest.mark.parametrize(
    "line",
    ['a{{x="{}"}} 1', 'a{{x="{}', "a{{{}", "a {}1", '{{"a"{}', "a 1{}"],
    ids=["text", "open text", "open braces", "blanks", "after the name", "after the value"],
)
@pytest.mark.parametrize("filler", ["}", '\\"', " ", "1"])
def test_long_lines_take_linear_time(line: str, filler: str, size: int) -> None:
    started = process_time()
    with suppress(UnreadableError):
        read(line.format(filler * size))
    assert process_time() - started < 0.5


# Pages written by an encoder of our own.

NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,9}", fullmatch=True)
KEYS = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,6}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.text('\\"n\n{},=# \t', max_size=8)
BLANKS = st.text(" \t", max_size=3)


@dataclass(frozen=True, slots=True)
class Written:
    name: str
    labels: dict[str, str]
    value: float
    ts_ms: int | None


WRITTEN = st.builds(
    Written,
    NAMES,
    st.dictionaries(KEYS, TEXTS, max_size=4),
    st.floats(allow_nan=False) | st.integers(0, 10**6).map(float),
    st.none() | st.integers(10**11, 10**13),
)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def line_of(sample: Written, *, quoted: bool, openmetrics: bool) -> str:
    pairs = [f'{key}="{escaped(text)}"' for key, text in sample.labels.items()]
    pairs = [f'"{sample.name}"', *pairs] if quoted else pairs
    head = ("" if quoted else sample.name) + ("{" + ",".join(pairs) + "}" if pairs else "")
    at_ms = sample.ts_ms
    time = "" if at_ms is None else f" {at_ms // 1000}.{at_ms % 1000:03d}" if openmetrics else f" {at_ms}"
    return f"{head} {sample.value!r}{time}"


@given(st.lists(st.tuples(WRITTEN, st.booleans(), st.booleans(), BLANKS, BLANKS, st.booleans()), max_size=6))
def test_a_page_comes_out_as_it_was_written(page: list[tuple[Written, bool, bool, str, str, bool]]) -> None:
    text = "".join(
        before + line_of(sample, quoted=quoted, openmetrics=openmetrics)
        + (' # {trace="} # {"} 1.5' if exemplar else "") + after + ("\r\n" if quoted else "\n")
        for sample, quoted, openmetrics, before, after, exemplar in page
    )  # fmt: skip
    assert read(text) == [Point(s.name, s.labels, STAMP_MS if s.ts_ms is None else s.ts_ms, s.value) for s, *_ in page]


def samples(text: str, *, openmetrics: bool) -> Iterator[Sample]:
    parse = openmetrics_families if openmetrics else text_string_to_metric_families
    for family in parse(text):
        yield from family.samples


@given(st.lists(WRITTEN, max_size=5, unique_by=lambda s: s.name), st.booleans())
def test_prometheus_clients_parsers_read_the_same(page: list[Written], openmetrics: bool) -> None:
    text = "".join(line_of(s, quoted=False, openmetrics=openmetrics) + "\n" for s in page)
    text += "# EOF\n" if openmetrics else ""
    theirs = []
    for s in samples(text, openmetrics=openmetrics):
        # Its older parser gives seconds, too.
        seconds = None if s.timestamp is None else float(s.timestamp)
        theirs.append(Point(s.name, s.labels, STAMP_MS if seconds is None else round(seconds * 1000), float(s.value)))
    assert read(text) == theirs
