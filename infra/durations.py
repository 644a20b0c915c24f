"""Durations as people type them: `90`, `90s`, `15m`, `2h`, `1h30m`, `1d`."""

from __future__ import annotations

import re

_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")


def parse_duration_s(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: not a positive duration.

    >>> parse_duration_s("1h30m"), parse_duration_s("45")
    (5400.0, 45.0)
    """
    text = text.strip().lower()
    try:
        seconds = float(text)
    except ValueError:
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"{text!r} is no duration: write 90s, 15m, 2h or 1h30m") from None
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{text!r} is no duration: it must be positive")
    return seconds
