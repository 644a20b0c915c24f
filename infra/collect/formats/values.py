"""Numbers, times and labels as the formats of telemetry.raw write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from infra.console.instants import number_ms, parse_iso, split_fraction, unit_by_size, unix_ms
from streams.records.schema import MAX_NUMBER
from streams.records.strict_json import HugeInt, MalformedError

# float() also takes blanks, underscores and the digits of other scripts, which no exporter means as a number.
_NUMBER = re.compile(
    r"[-+]?(?:(?P<digits>(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_MOST_CHARS = 80
_TEXT = {str}
# What OpenTelemetry calls a resource, under the names by which Prometheus users know it.
_LABELS = {
    "k8s.namespace.name": "namespace",
    "k8s.pod.name": "pod",
    "k8s.deployment.name": "deployment",
    "k8s.statefulset.name": "statefulset",
    "k8s.container.name": "container",
    "k8s.node.name": "node",
    "service.instance.id": "instance",
    "service.name": "job",
}


class naming:  # noqa: N801 - read as a word of a with statement
    """Around the reading of one series or several: what is refused in it names it."""

    __slots__ = ("_series",)

    def __init__(self, series: str) -> None:
        self._series = series

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, MalformedError):
            raise MalformedError(error.code, f"{self._series[:_MOST_CHARS]}: {error.detail}") from None


def parse_number(text: str) -> float | None:
    """The number that a text holds, as Go's encoders write them; None where it holds none, or one that overflows.

    >>> parse_number("4.5e1"), parse_number("+Inf"), parse_number("4,5"), parse_number("1_0"), parse_number("1e999")
    (45.0, inf, None, None, None)
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = float(text)
    return None if match["digits"] and math.isinf(value) else value


def number(value: Any) -> float:
    """A number, also one written as text.

    Raises:
        MalformedError: `schema`.
    """
    if isinstance(value, str):
        parsed = parse_number(value)
        if parsed is not None:
            return parsed
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise MalformedError("schema", f"{label_text(value)[:32]!r} is no number")


def count_ms(count: float) -> int | None:
    """Milliseconds since 1970 of a count since 1970, whose size tells its unit; None where no record may hold it.

    >>> count_ms(1_700_000_000.25), count_ms(1_700_000_000_250_000_000), count_ms(-1.0)
    (1700000000250, 1700000000250, None)
    """
    ms = number_ms(count, unit_by_size(count))
    return round(ms) if is_instant(ms) else None


def is_instant(ms: float) -> bool:
    """True for milliseconds since 1970 that a record may hold."""
    return 0 <= ms < MAX_NUMBER


def time_ms(value: Any, stamp_ms: int) -> int:
    """A time: RFC 3339 text, or a number since 1970 in seconds, milliseconds, microseconds or nanoseconds.

    Raises:
        MalformedError: `schema`, or `range` for one that no record may hold.
    """
    if value is None:
        return stamp_ms
    count = parse_number(value) if isinstance(value, str) else number(value)
    ms = _text_ms(value) if count is None else count_ms(count)
    if ms is None or not is_instant(ms):
        raise MalformedError("range", f"{str(value)[:40]} is no time")
    return ms


def _text_ms(text: str) -> int:
    # datetime takes microseconds, Go and Rust write nanoseconds.
    integer_part, digits, rest = split_fraction(text)
    try:
        return unix_ms(parse_iso(f"{integer_part}.{digits[:6]}{rest}" if "." in text else text, UTC))
    except ValueError:
        raise MalformedError("schema", f"{text[:40]!r} is no time") from None


def labels_of(value: Any) -> dict[str, str]:
    """A mapping of labels; values that are not text are written out.

    Raises:
        MalformedError: `schema`.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedError("schema", "labels or tags are no object")
    if set(map(type, value.values())) <= _TEXT:
        return with_aliases(dict(value))
    # Vector writes a tag that stands several times as an array; the last one counts.
    last = {name: v[-1] if isinstance(v, list) and v else v for name, v in value.items()}
    kept = {n: v if type(v) is str else label_text(v) for n, v in last.items() if v is not None and v != []}
    return with_aliases(kept)


def label_text(value: Any) -> str:
    """A label's value as text: numbers as they are written, structures as JSON.

    >>> label_text("a"), label_text(True), label_text(1.0), label_text({"b": [1]})
    ('a', 'true', '1.0', '{"b":[1]}')
    """
    if type(value) is str:
        return value
    return str(value) if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)


def with_prometheus_names(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels under names with underscores for dots, and resources also under the names that Prometheus users know.

    >>> with_prometheus_names({"k8s.pod.name": "a"})
    {'k8s_pod_name': 'a', 'pod': 'a'}
    """
    named = {name.replace(".", "_"): value for name, value in labels.items()}
    for name in labels.keys() & _LABELS.keys():
        named.setdefault(_LABELS[name], labels[name])
    return named


def with_aliases(labels: dict[str, str]) -> dict[str, str]:
    """The labels as they stand, and where names hold dots also their `with_prometheus_names`."""
    return with_prometheus_names(labels) | labels if "." in "".join(labels) else labels


def text_of(value: Any, what: str) -> str:
    """A text that must be there.

    Raises:
        MalformedError: `schema`.
    """
    if not isinstance(value, str) or isinstance(value, HugeInt) or not value:
        raise MalformedError("schema", f"{what} is missing or no text")
    return value


def objects_of(value: Any, what: str) -> list[dict[str, Any]]:
    """An array of objects, empty where it is absent.

    Raises:
        MalformedError: `schema`.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise MalformedError("schema", f"{what} is no array of objects")
    return value
