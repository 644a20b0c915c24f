"""What others write into Kafka, read by its shape: which format a record has, and its points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from infra.collect.formats import otlp as raw_otlp
from infra.collect.formats import prometheus_adapter as raw_prometheus_adapter
from infra.collect.formats import prometheus_api as raw_prometheus_api
from infra.collect.formats import telegraf as raw_telegraf
from infra.collect.formats import vector as raw_vector
from infra.collect.points import Point, is_measured
from streams.records.strict_json import MalformedError, read

FORMATS = ("auto", "otlp_json", "otlp_proto", "telegraf", "prometheus-kafka-adapter", "prometheus-api", "vector")
# How a refusal begins that no reader stated in words of its own.
UNFORESEEN = "cannot be read"
NOT_MEASURED = "no value (NaN, an infinity or a blank)"
_SPACE = b" \t\r\n"


class UnusableError(MalformedError):
    """A record is as its format says, and nothing in it can be used; `passed_over` counts why."""

    def __init__(self, passed_over: Counter[str]) -> None:
        reasons = "; ".join(f"{reason} ({n})" for reason, n in passed_over.items())
        super().__init__("schema", f"nothing in it can be used: {reasons}")
        self.passed_over = passed_over


class RawPoints(NamedTuple):
    """The points of one record, and how many of its numbers cannot be used, by reason.

    A number that stands for no value, such as NaN, is a point all the same, and is counted.
    """

    points: list[Point]
    passed_over: Counter[str]


def read_raw(value: bytes, stamp_ms: int, form: str = "auto") -> RawPoints:
    """The points of one record.

    Args:
        stamp_ms: the broker's; stands in for a missing time.
        form: one of `FORMATS`; auto tells them apart by their shape.

    Raises:
        UnusableError: nothing in it can be used.
        MalformedError: with a dead-letter code: not JSON, or no known format.
        HarmonyError: the package that reads it is not installed.
    """
    document, form = _document(value, form)
    passed_over: Counter[str] = Counter()
    points: list[Point] = []
    for item in document if isinstance(document, list) else [document]:
        if not isinstance(item, dict):
            raise MalformedError("schema", "neither an object nor an array of objects")
        points += _read(_reader(item, form), item, stamp_ms, passed_over)
    if not points and passed_over:
        raise UnusableError(passed_over)
    blank = len([point for point in points if not is_measured(point.value)])
    if blank:
        passed_over[NOT_MEASURED] += blank
    return RawPoints(points, passed_over)


def _document(value: bytes, form: str) -> tuple[Any, str]:
    """The record as JSON data, and its format where that is certain."""
    if form == "otlp_proto" or (form == "auto" and value.lstrip(_SPACE)[:1] not in (b"{", b"[")):
        return raw_otlp.decoded(value), "otlp_json"
    try:
        return read(value), form
    except MalformedError:
        # OTLP's protobuf begins with a line feed and a length, which may be that of a brace or a bracket.
        if form != "auto" or value[:1] != b"\n":
            raise
        return raw_otlp.decoded(value), "otlp_json"


Reader = Callable[[dict[str, Any], int, Counter[str]], list[Point]]


def _read(reader: Reader, item: dict[str, Any], stamp_ms: int, passed_over: Counter[str]) -> list[Point]:
    try:
        return reader(item, stamp_ms, passed_over)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        # A reader names what it refuses. What it did not think of costs this record, not the topic behind it.
        raise MalformedError("schema", f"{UNFORESEEN}: {type(error).__name__}: {error}") from error


_ADAPTER_KEYS, _TELEGRAF_KEYS = frozenset({"labels", "value", "name"}), frozenset({"fields", "name"})
# Each format's reader, and what tells it; the first that fits is taken.
_SHAPES: dict[str, tuple[Any, Callable[[dict[str, Any]], bool]]] = {
    "otlp_json": (raw_otlp, lambda item: "resourceMetrics" in item),
    "telegraf": (raw_telegraf, lambda item: "metrics" in item or item.keys() >= _TELEGRAF_KEYS),
    "prometheus-kafka-adapter": (raw_prometheus_adapter, lambda item: item.keys() >= _ADAPTER_KEYS),
    "prometheus-api": (raw_prometheus_api, raw_prometheus_api.is_answer),
    "vector": (raw_vector, lambda item: "metric" in item or raw_vector.is_metric(item)),
}


def _reader(item: dict[str, Any], form: str) -> Reader:
    module = _SHAPES[form][0] if form != "auto" else next((m for m, fits in _SHAPES.values() if fits(item)), None)
    if module is not None:
        reader: Reader = module.points
        return reader
    raise MalformedError("schema", f"no known format; the keys are {', '.join(sorted(item)[:8]) or 'none'}")
