"""Text from outside (workload ids, sources, reasons) made safe to print on a terminal or write into a log line."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

# Cc control, Cf format (bidirectional overrides hide what a line says), Cs surrogates, Zl and Zp line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, limit: int | None = None) -> str:
    """The text with control and invisible characters written as escapes, cut to `limit` characters.

    >>> printable("a" + chr(10) + "b" + chr(27) + "[2J")
    'a\\\\nb\\\\x1b[2J'
    """
    if not text.isprintable():
        text = "".join(_escaped(c) if unicodedata.category(c) in _UNSAFE else c for c in text)
    if limit is not None and len(text) > limit:
        text = text[: max(0, limit - 1)] + "…"
    return text


def some(names: Sequence[str], most: int) -> str:
    """The first few, and how many more.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


COLUMN_GAP = 2
"""Spaces between the columns of a table."""


def columns_that_fit(widths: Sequence[int], ranks: Sequence[int], width: int) -> list[int]:
    """Positions of the columns to show, in order.

    Args:
        widths: cells that each column takes.
        ranks: by which columns are dropped, the highest first, of equals the last; 0 is never dropped.
        width: cells of the terminal.

    >>> columns_that_fit([10, 8, 20], [0, 2, 1], 34), columns_that_fit([10, 8, 20], [0, 2, 1], 12)
    ([0, 2], [0])
    """
    shown = list(range(len(widths)))
    while sum(widths[k] for k in shown) + COLUMN_GAP * (len(shown) - 1) > width:
        least = max(reversed(shown), key=lambda k: ranks[k])
        if ranks[least] == 0:
            break
        shown.remove(least)
    return shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


# What somebody may have meant by a name that nobody knows.


_FEW = 14


def most_alike(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """The candidate that is most like a word, at least by `cutoff` of difflib, in whatever case; "" for none.

    >>> most_alike("repicas", ["mode", "replicas"]), most_alike("MODE", ["mode"]), most_alike("x", ["mode"])
    ('replicas', 'mode', '')
    """
    folded = {candidate.casefold(): candidate for candidate in candidates}
    return next((folded[c] for c in difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=cutoff)), "")


def nearest(word: str, candidates: Collection[str]) -> str:
    """The end of a sentence: the name that is most alike, else the known ones where they are few, else nothing.

    >>> nearest("repicas", {"replicas", "mode"})
    '; did you mean `replicas`'
    """
    close = most_alike(word, candidates)
    if close:
        return f"; did you mean `{close}`"
    return f"; known here: {', '.join(sorted(candidates))}" if 0 < len(candidates) <= _FEW else ""


# Durations as people type them: `90s`, `15m`, `2h`, `1h30m`, `1d`; bare seconds, too, where no unit can be missed.


_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
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
    if not _DURATION.fullmatch(plain):
        raise ValueError(f"{plain!r} is no duration: write 90s, 15m, 2h or 1h30m")
    return _positive(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(plain)), text)


def _positive(seconds: float, text: str) -> float:
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError(f"{text.strip()!r} is no duration: it must be positive, and shorter than three thousand years")
    return seconds
