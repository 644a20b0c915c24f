"""Durations as people type them: `90s`, `15m`, `2h`, `1h30m`, `1d`; bare seconds, too, where no unit can be missed."""

from __future__ import annotations

import re

_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_LONGEST_S = 1e11  # three thousand years: what is longer is a slip, and no instant has a date then


def parse_duration_s(text: str) -> float:
    """Seconds, of a number with units or of a bare one.

    Raises:
        ValueError: not a positive duration.

    >>> parse_duration_s("1h30m"), parse_duration_s("45")
    (5400.0, 45.0)
    """
    try:
        seconds = float(text)
    except ValueError:
        return parse_units_s(text)
    return _positive(seconds, text)


def parse_units_s(text: str) -> float:
    """Seconds, of a number with units only: nobody means two seconds by a bare 2 where hours are usual.

    Raises:
        ValueError: not a positive duration with units.

    >>> parse_units_s(" 1D12h ")
    129600.0
    """
    plain = text.strip().lower()
    if not _WHOLE.fullmatch(plain):
        raise ValueError(f"{plain!r} is no duration: write 90s, 15m, 2h or 1h30m")
    return _positive(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(plain)), text)


def _positive(seconds: float, text: str) -> float:
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError(f"{text.strip()!r} is no duration: it must be positive, and shorter than three thousand years")
    return seconds
