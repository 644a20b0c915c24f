"""Instants as files and records write them: ISO 8601 text, a number since 1970, or a date as a number.

`read_instant` is the one parser for files. What it takes:

* text in ISO 8601, also with `/` between year, month and day; an offset, `Z`, `UTC`, `GMT` or an IANA zone may follow;
* a number of seconds, milliseconds, microseconds or nanoseconds since 1970, where it lies between 2000 and 2100 in
  exactly one of these units;
* a day as YYYYMMDD, and a minute or second of it as YYYYMMDDhhmm or YYYYMMDDhhmmss, which are no such numbers.

Everything else is refused: a day number of a spreadsheet, a day whose month is left open, a local time that a clock
change repeats or leaves out. Sources: ISO 8601-1:2019, RFC 3339, RFC 9557 (zone names in brackets).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import lru_cache
from time import time_ns
from typing import Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

LOCAL: Final = "local"
Zone = tzinfo | Literal["local"] | None
Unit = Literal["s", "ms", "us", "ns"]

NS_PER_UNIT: Final[dict[str, int]] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
NS_PER_DAY: Final = 86_400_000_000_000
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 1700, 2100  # of a written date; the earliest series of science begin there
_NUMBERS_FROM_S: Final = 946_684_800  # 2000-01-01, before which a number is no time of telemetry
_NUMBERS_UNTIL_S: Final = 4_102_444_800  # 2100-01-01
_SHEET_DAYS: Final = range(36_526, 73_051)  # a spreadsheet's numbers of the days from 2000 to 2099
_SHEET_ORIGIN: Final = datetime(1899, 12, 30, tzinfo=UTC)
FIRST_WITHIN_S: Final = 200 * 86_400  # a load that counts from its own start begins within so long
_MINUTE_NS: Final = 60 * _NS_PER_S

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_DATE = r"(?P<year>\d{4})(?P<mark>[-/])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})"
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d+))?)?"
_OFFSET = r"(?P<offset>[Zz]|UTC|GMT|[+-]\d{2}(?::?[0-5]\d)?(?:\s+UTC)?)"
_NAMED = r"\[?(?P<zone>[A-Za-z]{1,20}(?:/[A-Za-z0-9_+-]{1,30}){1,2})\]?"
_WRITTEN = re.compile(rf"{_DATE}(?:(?:[Tt]|\s+){_TIME}(?:\s*{_OFFSET})?(?:\s*{_NAMED})?)?", re.ASCII)
_BASIC = re.compile(
    r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)[Tt](?P<hour>\d\d)(?P<minute>\d\d)"
    rf"(?:(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?(?:\s*{_OFFSET})?(?P<zone>)",
    re.ASCII,
)
_OPEN_MONTH = re.compile(r"\d{1,2}([-/.])\d{1,2}\1(?:\d{4}|\d{2})(?:[T\s,].*)?", re.ASCII)
_COMPACT = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_WRITE: Final = "write it as 2026-01-31 12:00:00, UTC or with an offset, or in seconds since 1970"


class InstantError(ValueError):
    """A cell names no instant; the message goes on from the cell: what is wrong; what to write."""


class Instant(NamedTuple):
    """Nanoseconds since 1970, and what the cell said of its zone.

    Attributes:
        zoned: whether a text names its offset or zone; None for what needs none.
    """

    ns: int
    zoned: bool | None = None

    @property
    def ms(self) -> int:
        """Milliseconds since 1970, rounded to the nearest.

        >>> Instant(1_500_000).ms, Instant(-1_500_001).ms
        (2, -2)
        """
        return (self.ns + _NS_PER_MS // 2) // _NS_PER_MS

    def __str__(self) -> str:
        try:
            return (_EPOCH + timedelta(microseconds=self.ns // 1000)).isoformat().replace("+00:00", "Z")
        except OverflowError:
            return f"{self.ns} ns since 1970"


def read_instant(cell: object, zone: tzinfo | Literal["local"] = UTC, after_ns: int | None = None) -> Instant:
    """The instant that a cell of a table names.

    Args:
        cell: text, a number, a date, a datetime or an `Instant`.
        zone: of a text without an offset from UTC. `LOCAL` is the zone of this machine.
        after_ns: for a log: of a local time that a clock change repeats, the earlier instant that is at most a minute
            before this one. Without it such a time is refused.

    Raises:
        InstantError: the cell names no instant, or leaves open which.

    >>> read_instant("2026-01-31 12:00:00").ms == read_instant("1769860800").ms == 1_769_860_800_000
    True
    >>> str(read_instant(20260131)), str(read_instant("2026/01/31 01:00:00.5 +0100"))
    ('2026-01-31T00:00:00Z', '2026-01-31T00:00:00.500000Z')
    """
    if isinstance(cell, str):
        text = cell.strip()
        if _NUMBER.fullmatch(text):
            return _of_number(Decimal(text), zone, after_ns)
        return _of_text(text, zone, after_ns)
    if isinstance(cell, Instant):
        return _bounded(cell.ns)
    if isinstance(cell, datetime):
        return _of_naive(cell, zone, after_ns) if cell.tzinfo is None else _bounded(_ns(cell), zoned=True)
    if isinstance(cell, date):
        return _of_naive(datetime(cell.year, cell.month, cell.day), zone, after_ns)  # noqa: DTZ001
    if isinstance(cell, int | float | Decimal) and not isinstance(cell, bool):
        return _of_number(Decimal(repr(float(cell))) if isinstance(cell, float) else Decimal(cell), zone, after_ns)
    raise InstantError(f"is not a time; {_WRITE}")


def start_problem(first_s: float) -> str | None:
    """What is wrong with the first time of a column of seconds, counted from its own start or since 1970; else None.

    Between both lie days as YYYYMMDD (from 231 days on), beyond them milliseconds.

    >>> start_problem(0.5) is start_problem(1_795_900_000.0) is None
    True
    >>> start_problem(20260131.0)
    'is no second from the start of the load, nor since 1970; count in seconds'
    """
    if first_s <= FIRST_WITHIN_S or _NUMBERS_FROM_S <= first_s < _NUMBERS_UNTIL_S:
        return None
    return "is no second from the start of the load, nor since 1970; count in seconds"


def _of_text(text: str, zone: tzinfo | Literal["local"], after_ns: int | None) -> Instant:
    match = _WRITTEN.fullmatch(text) or _BASIC.fullmatch(text)
    if match is None:
        if _OPEN_MONTH.fullmatch(text):
            raise InstantError(f"leaves open which number is the month; {_WRITE}")
        return _of_week(text, zone, after_ns)
    hour = int(match["hour"] or 0)
    midnight_after = hour == 24 and not int(match["minute"]) and not int(match["second"] or 0)
    try:
        naive = datetime(  # noqa: DTZ001 - its zone follows
            int(match["year"]), int(match["month"]), int(match["day"]), 0 if midnight_after else hour,
            int(match["minute"] or 0), int(match["second"] or 0),
        ) + (_DAY if midnight_after else timedelta())  # fmt: skip
    except (ValueError, OverflowError):
        raise InstantError(f"is no day or time of the calendar; {_WRITE}") from None
    fraction_ns = int((match["fraction"] or "")[:9].ljust(9, "0"))
    offset, name = match["offset"], match["zone"]
    if offset:
        ns = _ns(naive.replace(tzinfo=UTC)) - _offset_s(offset) * _NS_PER_S
        return _bounded(ns + fraction_ns, zoned=True)
    if name:
        named = _zone_of(name)
        if named is None:
            raise InstantError(f"names no known time zone; {_WRITE}")
        return _of_naive(naive, named, None, fraction_ns, zoned=True)
    return _of_naive(naive, zone, after_ns, fraction_ns)


def _of_week(text: str, zone: tzinfo | Literal["local"], after_ns: int | None) -> Instant:
    """A week date of ISO 8601, such as 2026-W05-6."""
    if text[4:6] in {"-W", "W0", "W1", "W2", "W3", "W4", "W5"}:
        try:
            return _of_naive(datetime.combine(date.fromisoformat(text), datetime.min.time()), zone, after_ns)
        except ValueError:
            pass
    raise InstantError(f"is not a time; {_WRITE}")


def _of_number(number: Decimal, zone: tzinfo | Literal["local"], after_ns: int | None) -> Instant:
    if not number.is_finite() or number.adjusted() > 30:
        raise InstantError(f"is not a time; {_WRITE}")
    for per in NS_PER_UNIT.values():
        ns = number * per
        if _NUMBERS_FROM_S * _NS_PER_S <= ns < _NUMBERS_UNTIL_S * _NS_PER_S:
            if per == _NS_PER_S and ns > time_ns():
                _refuse_hour(number)
            return Instant(round(ns))
    whole = int(number)
    if number == whole and len(str(whole)) in _COMPACT:
        naive = _compact(str(whole), _COMPACT[len(str(whole))])
        if naive is not None and 2000 <= naive.year < _LAST_YEAR:
            return _of_naive(naive, zone, after_ns)
    if whole in _SHEET_DAYS:
        day = (_SHEET_ORIGIN + timedelta(days=whole)).date()
        raise InstantError(f"is no time since 1970 but, it seems, a spreadsheet's number of the day {day}; {_WRITE}")
    raise InstantError(f"lies outside 2000 to 2100 in seconds, ms, µs and ns since 1970, and is no YYYYMMDD; {_WRITE}")


def _refuse_hour(number: Decimal) -> None:
    """An hour as YYYYMMDDhh has the size of seconds from 2033 to 2036: in the future it may be either."""
    hour = _compact(str(int(number)), "%Y%m%d%H") if number == int(number) else None
    if hour is not None:
        seconds = datetime.fromtimestamp(int(number), UTC)
        raise InstantError(
            f"may be the hour {hour:%Y-%m-%d %H}:00 or seconds since 1970 ({seconds:%Y-%m-%d}); {_WRITE}"
        )


def _compact(digits: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(digits, form)  # noqa: DTZ007 - its zone follows
    except ValueError:
        return None


def _of_naive(
    naive: datetime,
    zone: tzinfo | Literal["local"],
    after_ns: int | None,
    fraction_ns: int = 0,
    *,
    zoned: bool = False,
) -> Instant:
    """The instant of a clock's face in a zone."""
    if zone is UTC:
        return _bounded(_ns(naive.replace(tzinfo=UTC)) + fraction_ns, zoned=zoned)
    where = "this machine's zone" if zone == LOCAL else str(zone)
    try:
        found = sorted(set(_instants(naive, zone)))
    except (OverflowError, OSError, ValueError):
        raise InstantError(f"is no time that {where} knows; {_WRITE}") from None
    if not found:
        raise InstantError(f"does not exist in {where}, where clocks go forward; write the offset, or UTC")
    if len(found) > 1 and after_ns is None:
        raise InstantError(f"happens twice in {where}, where clocks go back; write the offset, or UTC")
    ns = next((ns for ns in found if after_ns is not None and ns >= after_ns - _MINUTE_NS), found[0])
    return _bounded(ns + fraction_ns, zoned=zoned)


def _instants(naive: datetime, zone: tzinfo | Literal["local"]) -> Iterator[int]:
    """Every instant at which clocks of the zone show this time: none, one or two."""
    own = None if zone == LOCAL else zone
    for fold in (0, 1):
        moment = naive.replace(tzinfo=own, fold=fold).astimezone(UTC)
        if moment.astimezone(own).replace(tzinfo=None, fold=0) == naive:
            yield _ns(moment)


@lru_cache(maxsize=64)
def _zone_of(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _offset_s(text: str) -> int:
    digits = text.removesuffix("UTC").strip().replace(":", "")[1:] if text[0] in "+-" else ""
    seconds = int(digits[:2] or 0) * 3600 + int(digits[2:] or 0) * 60
    return -seconds if text[0] == "-" else seconds


def _ns(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * _NS_PER_S + since.microseconds * 1000


def _year_ns(year: int) -> int:
    return _ns(datetime(year, 1, 1, tzinfo=UTC))


_FIRST_NS, _LAST_NS = _year_ns(_FIRST_YEAR), _year_ns(_LAST_YEAR)


def _bounded(ns: int, *, zoned: bool | None = None) -> Instant:
    if not _FIRST_NS <= ns < _LAST_NS:
        raise InstantError(f"lies outside the years {_FIRST_YEAR} to {_LAST_YEAR}; correct it")
    return Instant(ns, zoned)


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
