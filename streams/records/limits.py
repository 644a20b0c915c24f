"""Rules for the numbers, instants and names of telemetry records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

from msgspec import UNSET

from streams.catalogue import Indicator
from streams.records.facts import HistogramState
from streams.records.schema import MAX_LABEL_CHARS, MAX_NUMBER, HistogramWire
from streams.records.strict_json import HugeInt, MalformedError

# Overshoot of a bounded value that counts as rounding of the exporter; it is stored as the bound.
RATIO_TOLERANCE = 1e-3
# Replicas of one workload, in telemetry, declarations, plug-ins, pins and commands alike.
MAX_REPLICAS = 100_000
MAX_TEXT_CHARS = 256
_LABEL_CACHE_ENTRIES = 65_536
_FORBIDDEN = re.compile(r"""[<>"'`&\\]""")


class Bounds(NamedTuple):
    """Lowest and highest valid value of a field, and the overshoot that counts as rounding."""

    lower: float
    upper: float
    slack: float


def bounds_of(indicators: Iterable[Indicator]) -> dict[str, Bounds]:
    """Bounds by field name; a field that several indicators read obeys the tightest."""
    bounds: dict[str, Bounds] = {}
    for indicator in indicators:
        if indicator.rule == "p95":
            continue
        lower = -MAX_NUMBER if indicator.lower is None else indicator.lower
        upper = MAX_NUMBER if indicator.upper is None else indicator.upper
        closed = indicator.lower is not None and indicator.upper is not None
        slack = (upper - lower) * RATIO_TOLERANCE if closed else 0.0
        for field in indicator.fields:
            old = bounds.get(field, Bounds(lower, upper, slack))
            bounds[field] = Bounds(max(lower, old.lower), min(upper, old.upper), min(slack, old.slack))
    return bounds


def number_within(name: str, number: float | None, bounds: Bounds) -> float | None:
    """The number within its bounds; -0 becomes 0, and one beyond a bound by rounding becomes the bound.

    Raises:
        MalformedError: `range`.
    """
    if number is None:
        return None
    lower, upper, slack = bounds
    if abs(number) >= MAX_NUMBER or not lower - slack <= number <= upper + slack:
        raise MalformedError("range", f"{name} is {number:g}, outside [{lower:g}, {upper:g}]")
    return min(max(number, lower), upper) + 0.0


def histogram(name: str, wire: HistogramWire) -> HistogramState:
    """The histogram as state.

    Raises:
        MalformedError: `schema` for its shape, `range` for its numbers.
    """
    le, cumulative = wire.le, wire.cumulative
    if not le or len(le) != len(cumulative):
        raise MalformedError("schema", f"hist {name!r}: le and cumulative must be equally long and not empty")
    if le[0] < 0 or le[-1] >= MAX_NUMBER or not all(a < b for a, b in pairwise(le)):
        raise MalformedError("range", f"hist {name!r}: le must be ascending and not negative")
    growing = all(a <= b for a, b in pairwise(cumulative))
    if not growing or cumulative[0] < 0 or cumulative[-1] > wire.count or wire.count >= MAX_NUMBER:
        raise MalformedError("range", f"hist {name!r}: cumulative counts must grow from at least 0 to at most count")
    if not 0 <= wire.sum < MAX_NUMBER:
        raise MalformedError("range", f"hist {name!r}: sum is {wire.sum:g}")
    return HistogramState(
        tuple([edge + 0.0 for edge in le]),
        tuple([count + 0.0 for count in cumulative]),
        wire.count + 0.0,
        wire.sum + 0.0,
    )


def instant(ts_ms: Any, stamp_ms: int | None) -> int:
    """An event time in ms; where it is absent, the broker's stamp.

    Raises:
        MalformedError: `schema` for its type, `future` or `range` for its value.
    """
    if ts_ms is UNSET and stamp_ms is not None:
        return stamp_ms
    if type(ts_ms) is not int:
        raise MalformedError("schema", "ts_ms is missing, or does not have the shape of source")
    if not 0 <= ts_ms < MAX_NUMBER:
        refuse_instant(ts_ms)
    return ts_ms


def refuse_instant(ts_ms: int | HugeInt) -> NoReturn:
    """Raise the error on an event time that is negative or beyond every calendar."""
    # Printing an integer of thousands of digits is slow, and its exact value does not matter.
    digits = str(ts_ms) if isinstance(ts_ms, HugeInt) or abs(ts_ms) < 10**20 else "1" * 21
    if digits.startswith("-") or len(digits) > 20:
        raise MalformedError("range", "ts_ms is not an instant in milliseconds")
    raise MalformedError("future", f"ts_ms {digits} lies beyond any calendar; is it in nanoseconds?")


def is_count(number: Any) -> bool:
    """Whether the value is a valid number of replicas.

    >>> is_count(3), is_count(-1), is_count(True)
    (True, False, False)
    """
    return type(number) is int and 0 <= number <= MAX_REPLICAS


def replicas(name: str, number: int | None) -> int | None:
    """A replica count.

    Raises:
        MalformedError: `range`.
    """
    if number is not None and not is_count(number):
        raise MalformedError("range", f"{name} must lie in [0, {MAX_REPLICAS}]")
    return number


def is_plain(text: str, max_chars: int) -> bool:
    """Printable, of 1 to `max_chars` characters, and safe to show on a page or in a log line."""
    return 0 < len(text) <= max_chars and text.isprintable() and _FORBIDDEN.search(text) is None


class LabelCheck:
    """Checks names, and caches good ones, because a few thousand names come again and again."""

    def __init__(self) -> None:
        self._good: set[str] = set()

    def __call__(self, name: str, label: str) -> None:
        """Check a label.

        Raises:
            MalformedError: `labels`.
        """
        if label in self._good:
            return
        if not is_plain(label, MAX_LABEL_CHARS):
            raise MalformedError(
                "labels", f"{name} {label[:32]!r} is not 1 to {MAX_LABEL_CHARS} printable characters without markup"
            )
        if len(self._good) >= _LABEL_CACHE_ENTRIES:
            self._good.clear()
        self._good.add(label)
