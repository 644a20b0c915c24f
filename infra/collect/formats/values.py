"""Numbers, times and labels as the formats of telemetry.raw write them."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from infra.console.instants import parse_iso, split_fraction, unit_by_size, unix_ms
from streams.records.strict_json import HugeInt, MalformedError

_LATEST_COUNT = 10**30  # a larger integer is no count of nanoseconds since 1970
# Products, not quotients: they decide into which millisecond a count at its edge falls.
_MS_PER_UNIT = {"s": 1_000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}


def number(value: Any) -> float:
    """A number, also one written as text, as Go's encoders write 64-bit integers, NaN and infinities.

    Raises:
        MalformedError: `schema`.
    """
    if isinstance(value, bool) or value is None:
        raise MalformedError("schema", f"{value!r} is no number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise MalformedError("schema", f"{str(value)[:32]!r} is no number") from None


def time_ms(value: Any, stamp_ms: int) -> int:
    """A time: RFC 3339 text, or an integer since 1970 in seconds, milliseconds, microseconds or nanoseconds.

    Raises:
        MalformedError: `schema`.
    """
    if value is None:
        return stamp_ms
    if isinstance(value, str) and not isinstance(value, HugeInt) and not value.lstrip("-").isdigit():
        # datetime takes microseconds, Go and Rust write nanoseconds.
        integer_part, digits, rest = split_fraction(value)
        try:
            return unix_ms(parse_iso(f"{integer_part}.{digits[:6]}{rest}" if "." in value else value, UTC))
        except ValueError:
            raise MalformedError("schema", f"{value[:40]!r} is no time") from None
    count = number(value)
    if not 0 <= count < _LATEST_COUNT:
        raise MalformedError("range", f"{str(value)[:40]} is no time")
    return int(count * _MS_PER_UNIT[unit_by_size(count)])


def labels_of(value: Any) -> dict[str, str]:
    """A mapping of labels; values that are not text are written out.

    Raises:
        MalformedError: `schema`.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedError("schema", "labels or tags are no object")
    # Vector writes a tag that stands several times as an array; the last one counts.
    last = {name: v[-1] if isinstance(v, list) and v else v for name, v in value.items()}
    return {name: v if type(v) is str else str(v) for name, v in last.items() if v is not None and v != []}


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
