"""Which promise of the SLO the missed requests of a slot missed: time to first token (TTFT), or per token (TPOT).

An estimate. Telemetry counts the requests that missed either promise, and of each promise tells but the 95th
percentile. One that lies above its limit was missed by a twentieth at least, and is taken to be what all of them
missed: both may be, and a request may miss both. Where neither lies above, at most a twentieth missed each, and what
missed is taken to have missed the promise that came nearer to its limit.
Pure: no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.float32]
Promise = Literal["ttft", "tpot"]

PROMISES: Final[tuple[Promise, ...]] = ("ttft", "tpot")
# Fewest missed requests that show that a promise is missed.
_MIN_MISSED_REQUESTS: Final = 1.0


class Strain(NamedTuple):
    """95th percentile of a slot's requests over the limit, by promise; None = not told."""

    ttft: float | None
    tpot: float | None


class MissedBy(NamedTuple):
    """Part of a slot's missed requests that missed each promise, 0 or 1; both 0: it is not known which."""

    ttft: float
    tpot: float


UNTOLD: Final = MissedBy(0.0, 0.0)
_EITHER: Final = (MissedBy(1.0, 0.0), MissedBy(0.0, 1.0))
_BOTH: Final = MissedBy(1.0, 1.0)


def missed_by(strain: Strain | None, queued: bool) -> MissedBy:
    """Which promise those of a slot's requests missed that missed any.

    Args:
        strain: None where promises are not told apart.
        queued: whether so many wait that all must miss the first token's.
    """
    if strain is None:
        return UNTOLD
    ttft, tpot = strain
    if queued:
        return _BOTH if tpot is not None and tpot > 1.0 else _EITHER[0]
    if ttft is None or tpot is None:
        return UNTOLD
    if ttft > 1.0 and tpot > 1.0:
        return _BOTH
    return _EITHER[0] if ttft >= tpot else _EITHER[1]


def counts_by_promise(cells: Cells) -> Iterator[tuple[Promise, Cells]]:
    """Each promise of which it is known that some missed it, with its own counts of requests.

    What missed, nobody knows what, is taken to be like the rest. Nothing is said where that is most of it.

    Args:
        cells: [5, M], places of a lattice; requests that were good there; that missed any promise; that are known to
            have missed the first token's; likewise the time per token's.

    Yields:
        counts: [3, M], the places; requests that kept this promise; that missed it.
    """
    if not cells[3:].any():
        return
    counts = cells.astype(np.float64)
    missed, ttft, tpot = counts[2:]
    attributed = np.minimum(ttft + tpot, missed)
    total_attributed = float(attributed.sum())
    unknown = float(missed.sum()) - total_attributed
    if total_attributed < _MIN_MISSED_REQUESTS or unknown > total_attributed:
        return
    for promise, misses in zip(PROMISES, (ttft, tpot), strict=True):
        total = float(misses.sum())
        if total >= _MIN_MISSED_REQUESTS:
            split = counts[:3].copy()
            split[2] = misses if unknown <= 0.0 else misses + (missed - attributed) * (total / total_attributed)
            split[1] += missed - split[2]
            yield promise, split.astype(np.float32)
