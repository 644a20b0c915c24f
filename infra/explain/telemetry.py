"""Telemetry that is accepted and cannot be used, in words: misspelt names, and sources that lack what they need."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from infra.console.text import most_alike, printable, some
from streams.records.unknown_names import UnknownName

if TYPE_CHECKING:  # readers of notices do without the compiled loops of ingest
    from streams.ingest.kernel import TelemetryProblem

# Likeness, as of difflib, from which on an unknown name is taken for a known one; the second, where one is lacking.
_ALIKE: Final = 0.75
_SIMILAR: Final = 0.6
_MAX_NAMES: Final = 3
_MAX_CHARS: Final = 64


def problem_text(problem: TelemetryProblem) -> str | None:
    """Cause and remedy in one sentence, without the workload and without a full stop; None where nothing is wrong.

    An unknown name alone is nothing wrong, because a later release may know it. It is reported where it resembles a
    known name that its record lacks, or where its source lacks what it needs.
    """
    found = problem.incomplete
    if found is None:
        alike = [name for name in problem.unknown if _nearest(name, _ALIKE)]
        return f"{printable(alike[0].source, _MAX_CHARS)} sends {_listed(alike)}" if alike else None
    sources = some([printable(source, _MAX_CHARS) for source in found.sources], _MAX_NAMES)
    if found.num_lacking > len(found.sources):
        sources += f" and {found.num_lacking - len(found.sources)} more"
    if found.num_lacking < found.num_sources:
        sources += f" ({found.num_lacking} of {found.num_sources} sources)"
    lacks = f"{sources} {'sends' if found.num_lacking == 1 else 'send'} {_lacking(problem)}"
    if not problem.unknown:
        return f"{lacks}; no name is misspelt, so look at what the exporter publishes"
    needed = tuple(field for group in problem.needs for field in group)
    nearest_first = sorted(problem.unknown, key=lambda name: -_likeness(name.name, needed))
    return f"{lacks}; sent instead: {_listed(nearest_first)}"


def _lacking(problem: TelemetryProblem) -> str:
    if problem.kind == "requests":
        names = " nor ".join(field for group in problem.needs for field in group)
        return f"neither {names}, so requests are not counted"
    alternatives = ", ".join(" with ".join(group) for group in problem.needs)
    return f"none of {alternatives}, so no indicator is made of them"


def _listed(names: Iterable[UnknownName]) -> str:
    """`x`, not known (did you mean `y`?), and the next names."""
    shown = []
    for name in list(names)[:_MAX_NAMES]:
        near = _nearest(name, _SIMILAR)
        shown.append(f"`{printable(name.name, _MAX_CHARS)}`" + (f" (did you mean `{near}`?)" if near else ""))
    return f"{', '.join(shown)}, not known"


def _nearest(name: UnknownName, cutoff: float) -> str:
    """The known name that is most alike, of those that its record lacks; "" for none."""
    return _nearest_of(name.name, name.absent, cutoff)


def num_comparisons() -> int:
    """Names that were compared with the known ones so far; one that was compared lately is remembered."""
    return _nearest_of.cache_info().misses


@lru_cache(maxsize=8192)
def _nearest_of(name: str, absent: frozenset[str], cutoff: float) -> str:
    return most_alike(name, absent, cutoff)


@lru_cache(maxsize=1024)
def _likeness(name: str, known: tuple[str, ...]) -> float:
    return max((difflib.SequenceMatcher(None, name.casefold(), other).ratio() for other in known), default=0.0)
