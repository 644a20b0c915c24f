"""Files of JSON documents, however they are broken into lines; and answers of Prometheus' API kept as files."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.formats.exposition import UnreadableError
from infra.collect.formats.json_documents import begins_document, read_documents
from infra.collect.points import Point
from tests.infra.collect.samples import TS_MS

STAMP_MS = TS_MS + 900


def telegraf(value: float, name: str = "a") -> dict[str, Any]:
    return {"name": "prometheus", "tags": {"x": '{["'}, "fields": {name: value}, "timestamp": TS_MS}


def sample(value: float, name: str = "a") -> Point:
    return Point(name, {"x": '{["'}, TS_MS, value)


def read(text: str, passed_over: Counter[str] | None = None) -> list[Point]:
    counted = Counter[str]() if passed_over is None else passed_over
    portions = read_documents(text.splitlines(keepends=True), "auto", STAMP_MS, counted)
    return [point for points in portions for point in points]


DOCUMENTS = st.lists(st.integers(0, 99).map(float), min_size=1, max_size=4)
LAYOUTS = st.tuples(
    st.sampled_from([None, 0, 1, 4]), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\n", " \n"])
)


@given(DOCUMENTS, LAYOUTS)
def test_documents_in_any_layout_are_read_alike(values: list[float], layout: tuple[int | None, bool, str, str]) -> None:
    indent, in_one_array, newline, blank = layout
    documents: list[Any] = [telegraf(value) for value in values]
    written = [json.dumps(d, indent=indent) for d in ([documents] if in_one_array else documents)]
    text = blank + f"\n{blank}".join(written)
    assert read(text.replace("\n", newline)) == [sample(value) for value in values]


def test_an_array_with_an_object_a_line() -> None:
    text = f"[\n{json.dumps(telegraf(1))},\n{json.dumps(telegraf(2))}\n]\n"
    assert read(text) == [sample(1.0), sample(2.0)]


GOOD = json.dumps(telegraf(1))
PRETTY = json.dumps(telegraf(1), indent=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{GOOD}\n{GOOD[:-1]}\n{GOOD}\n", f"line 2, column {len(GOOD)}: not JSON"),
        (f"\n\n{GOOD}\n{GOOD},\n", f"line 4, column {len(GOOD) + 1}: not JSON: Extra data; write whole documents"),
        (f"{GOOD}{GOOD}\n", "line 1, column"),
        (f"[\n{GOOD},\n]\n", "line 3, column 1 of the document that begins in line 1: not JSON"),
        (f"{PRETTY}\n{PRETTY[:-2]}\n", "of the document that begins in line 11: not JSON"),
        (PRETTY.replace('"a": 1', '"a": 1,,'), "line 7, column 10 of the document that begins in line 1: not JSON"),
        (f"{PRETTY}\ndone\n", "line 11, column 1: not JSON"),
        (f"{GOOD}\n" + '{"a":1}', "line 2: no known format; the keys are a"),
        (f"\n{PRETTY}\n" + '{\n"a":1\n}', "line 12: no known format; the keys are a"),
        ('{"a": NaN}', "line 1: NaN is not a number"),
        ("[1]", "line 1: neither an object nor an array of objects"),
    ],
)
def test_a_fault_is_named_with_its_line_and_column(text: str, words: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read(text)
    assert words in str(caught.value)


def test_what_is_passed_over_is_counted_and_does_not_end_the_file() -> None:
    unused = json.dumps({"name": "x", "distribution": {}})
    counted = Counter[str]()
    assert read(f"{unused}\n{GOOD}\n{unused}\n", counted) == [sample(1.0)]
    assert counted == {"distribution": 2}
    with pytest.raises(UnreadableError, match=r"nothing in it can be used: distribution \(2\)"):
        read(f"{unused}\n{unused}\n")


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        ("{", True), ("[", True), ("{}", True), ('{"a": 1}', True), ('{"a"', True), ('{ "a" : {', True),
        ("{'a': 1}", True), ('{"a","b"="c"} 1', False), ('{"a"} 1', False), ('{"a"="b","c"} 1', False),
        ('{__name__="a"} 1', False), (r'{"a\"b", x="1"} 1', False), ("a{} 1", False), ("", False),
    ],
)  # fmt: skip
def test_a_quoted_series_is_no_document(text: str, is_json: bool) -> None:
    assert begins_document(text) == is_json


# Answers of Prometheus' API.

AT_S = TS_MS / 1000


def answer(kind: str, *series: dict[str, Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": list(series)}}


NAMED = {"__name__": "a", "x": "1", "k8s.pod.name": "p"}
LABELS = {"x": "1", "k8s.pod.name": "p", "k8s_pod_name": "p", "pod": "p"}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "document",
    [
        answer("vector", {"metric": NAMED, "value": [AT_S, "4"]}),
        answer("matrix", {"metric": NAMED, "values": [[AT_S, "4"]]}),
        [{"metric": NAMED, "values": [[AT_S, "4"]]}],
        {"metric": NAMED, "value": [AT_S, "4"]},
        {"metric": NAMED, "values": [4], "timestamps": [TS_MS]},
    ],
    ids=["vector", "matrix", "its result", "its series", "VictoriaMetrics' export"],
)
def test_an_answer_kept_as_a_file(document: Any, indent: int | None) -> None:
    assert read(json.dumps(document, indent=indent)) == [Point("a", LABELS, TS_MS, 4.0)]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"status": "error", "error": "parse error"}, "the server's answer is an error: parse error"),
        ({"status": "success", "data": {"resultType": "scalar", "result": [1, "4"]}}, "holds no series; keep that of"),
        ({"status": "success", "data": ["a"]}, "holds no series"),
        (answer("vector", {"metric": {"x": "1"}, "value": [AT_S, "4"]}), "without a name (ask for a metric"),
        (answer("matrix", {"metric": NAMED, "histograms": [[AT_S, {}]]}), "native histogram"),
        (answer("vector", {"metric": NAMED, "value": [AT_S, "4,5"]}), "a: '4,5' is no number"),
        (answer("vector", {"metric": NAMED, "value": [-1, "4"]}), "a: -1 is no time"),
        (answer("matrix", {"metric": NAMED, "values": [4]}), "a: the values of a series are no pairs"),
        (answer("matrix", {"metric": NAMED, "values": "4"}), "no pairs"),
        ({"metric": NAMED, "values": [4, 5], "timestamps": [TS_MS]}, "no pairs"),
        (answer("matrix", {"metric": 3}), "the metric of a series is no mapping"),
        ({"status": "success", "data": {"resultType": "vector", "result": 3}}, "result is no array"),
    ],
)
def test_an_answer_without_samples_is_refused_in_a_sentence(document: dict[str, Any], words: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read(json.dumps(document))
    assert words in str(caught.value)


def test_an_empty_answer_is_no_fault() -> None:
    assert read(json.dumps(answer("vector"))) == []
