"""One cell of a telemetry file: a time, a number, or nothing."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal

_MISSING = {"", "na", "n/a", "[n/a]", "nan", "null", "none"}
_SECONDS_BELOW = 1e11  # a number below is seconds since 1970 (until the year 5138), above milliseconds
_MICROSECONDS_ABOVE = 1e14
_NANOSECONDS_ABOVE = 1e17


def missing_cell(cell: object) -> bool:
    """True for nothing, an empty cell, and the usual words for it."""
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def number_cell(cell: object) -> float | None:
    """A finite number, or None."""
    if isinstance(cell, bool):
        return float(cell)
    if not isinstance(cell, (str, int, float, Decimal)):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def timestamp_ms(cell: object, *, number_is_ms: bool = False) -> int | None:
    """Milliseconds since 1970, UTC where no offset is written; None where the cell is no time.

    Args:
        number_is_ms: a number is milliseconds whatever its size, as in a column that says so.
    """
    if isinstance(cell, datetime):
        moment = cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    if isinstance(cell, str):
        try:
            moment = datetime.fromisoformat(cell.strip())
        except ValueError:
            pass
        else:
            if not cell.strip().isdigit():  # a bare number reads as a compact date, and is not meant so
                return round((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    number = number_cell(cell)
    if number is None or number < 0:
        return None
    if number < _SECONDS_BELOW and not number_is_ms:
        return round(number * 1000)
    if number < _MICROSECONDS_ABOVE or number_is_ms:
        return round(number)
    return round(number / (1000 if number < _NANOSECONDS_ABOVE else 1_000_000))
