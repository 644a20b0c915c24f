"""Text from outside (workload ids, sources, reasons) made safe to print on a terminal or write into a log line."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

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


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
