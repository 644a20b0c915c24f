"""Instants as files and records write them: ISO 8601 text, or a number since 1970.

Every reader of times stands on this module and names its own rules by arguments. The rules differ in three things:
the zone of a text without an offset, the unit of a number, and the digits of a fraction.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Final, Literal

LOCAL: Final = "local"
Zone = tzinfo | Literal["local"] | None
Unit = Literal["s", "ms", "us", "ns"]

# A number below each limit counts in that unit: every limit is the year 5138 in its own unit.
_SECONDS_BELOW = 1e11
_MILLISECONDS_BELOW = 1e14
_MICROSECONDS_BELOW = 1e17


def parse_iso(text: str, zone: Zone) -> datetime:
    """The instant that an ISO 8601 text names.

    Args:
        zone: of a text without an offset from UTC. `LOCAL` is the zone of this machine. None keeps such a text as a
            datetime without a zone.

    Raises:
        ValueError: the text is not ISO 8601.
        OverflowError: the instant is outside the years 1 to 9999 in UTC.

    >>> parse_iso("2026-01-31 12:00:00", UTC).isoformat()
    '2026-01-31T12:00:00+00:00'
    """
    moment = datetime.fromisoformat(text)
    if zone == LOCAL:
        return moment.astimezone(UTC)
    return moment if moment.tzinfo is not None or zone is None else moment.replace(tzinfo=zone)


def unix_ms(moment: datetime) -> int:
    """Milliseconds since 1970 of an instant with a zone, rounded to the nearest.

    >>> unix_ms(parse_iso("1970-01-01T00:00:01.5Z", UTC))
    1500
    """
    return round(moment.timestamp() * 1000)


def unit_by_size(number: float) -> Unit:
    """The unit of a number since 1970, told by its size.

    >>> unit_by_size(1_700_000_000), unit_by_size(1_700_000_000_000)
    ('s', 'ms')
    """
    if number < _SECONDS_BELOW:
        return "s"
    if number < _MILLISECONDS_BELOW:
        return "ms"
    return "us" if number < _MICROSECONDS_BELOW else "ns"


def number_ms(number: float, unit: Unit) -> float:
    """Milliseconds since 1970 of a number of units since 1970, not rounded.

    >>> number_ms(1_700_000_000, "s")
    1700000000000
    """
    if unit == "s":
        return number * 1000
    if unit == "ms":
        return number
    return number / (1000 if unit == "us" else 1_000_000)


def split_fraction(text: str) -> tuple[str, str, str]:
    """The text before the point, the digits of the fraction, and the rest.

    `datetime` keeps six digits of a fraction; nanosecond clocks write nine.

    >>> split_fraction("2026-01-31T12:00:00.123456789Z")
    ('2026-01-31T12:00:00', '123456789', 'Z')
    """
    integer_part, _, tail = text.partition(".")
    rest = tail.lstrip("0123456789")
    return integer_part, tail[: len(tail) - len(rest)], rest
