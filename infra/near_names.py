"""What somebody may have meant by a name that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_FEW = 14


def nearest(word: str, known: Collection[str]) -> str:
    """The end of a sentence: the name that is most alike, else the known ones where they are few, else nothing.

    >>> nearest("repicas", {"replicas", "mode"})
    '; did you mean `replicas`'
    """
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{close[0]}`"
    return f"; known here: {', '.join(sorted(known))}" if 0 < len(known) <= _FEW else ""
