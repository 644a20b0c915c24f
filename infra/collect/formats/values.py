"""Numbers, times and labels as the formats of telemetry.raw write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from streams.records.strict_json import HugeInt, MalformedError

# An integer time is told apart by its size: these are the year 5138 in the unit before.
_UNITS = ((10**11, 1_000.0), (10**14, 1.0), (10**17, 1e-3), (10**30, 1e-6))


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
        head, dot, tail = value.partition(".")
        digits = len(tail) - len(tail.lstrip("0123456789"))
        text = f"{head}.{tail[: min(digits, 6)]}{tail[digits:]}" if dot else value
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise MalformedError("schema", f"{value[:40]!r} is no time") from None
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    count = number(value)
    if not 0 <= count < _UNITS[-1][0]:
        raise MalformedError("range", f"{str(value)[:40]} is no time")
    factor = next(factor for limit, factor in _UNITS if count < limit)
    return int(count * factor)


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
