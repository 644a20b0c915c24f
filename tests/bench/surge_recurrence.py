"""How often the largest rise of a context comes again: `python -m tests.bench.surge_recurrence DATASET`.

Drawing windows of its context, as the baselines do, says that a rise which was seen once comes again as often as its
share of the context. Of contexts of 128 steps whose largest rise above the mean of the eight steps before it is three
times any other, more than eight steps old, this counts how many are followed within sixteen steps by one at least half
as large, beside what the windows of the same contexts say. DATASET holds tasks of the rolling protocol; only rows
before their test parts are read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infra.lab.evaluate.rolling import read_tasks

Float = NDArray[np.float64]

CONTEXT, AHEAD, LEVEL, EVERY = 128, 16, 8, 16
STANDS_OUT = 3.0


def rises(x: Float) -> Float:
    """Each value from the ninth on above the mean of the eight before it."""
    means = np.convolve(x, np.full(LEVEL, 1 / LEVEL), "valid")
    return x[LEVEL:] - means[:-1]


def lone_rise(context: Float) -> float | None:
    """The largest rise of a context, where no other is a third of it and it is no longer under way."""
    found = rises(context)
    at = int(np.argmax(found))
    others = np.delete(found, np.arange(max(0, at - LEVEL), min(len(found), at + LEVEL + 1)))
    under_way = at + LEVEL >= CONTEXT - LEVEL
    return float(found[at]) if not under_way and found[at] > STANDS_OUT * max(others.max(), 1e-12) else None


def comes_again(x: Float, origin: int, rise: float) -> bool:
    """Whether the steps from `origin` on rise half as far above the eight before it."""
    return bool(x[origin : origin + AHEAD].max() - x[origin - LEVEL : origin].mean() >= rise / 2)


def count(x: Float) -> list[tuple[bool, float]]:
    """Of every context with a lone rise whether it came again, and the share of its own windows in which it did."""
    found = []
    for origin in range(CONTEXT, len(x) - AHEAD, EVERY):
        stretch = x[origin - CONTEXT : origin + AHEAD]
        rise = lone_rise(stretch[:CONTEXT]) if np.isfinite(stretch).all() else None
        if rise is not None:
            within = [comes_again(stretch, start, rise) for start in range(LEVEL, CONTEXT - AHEAD + 1)]
            found.append((comes_again(stretch, CONTEXT, rise), float(np.mean(within))))
    return found


def main(dataset: Path) -> None:
    """Print the shares, task by task."""
    for task in read_tasks(dataset, part="validation"):
        columns = [
            np.asarray(item.values, np.float64)[:, n] for item in task.items for n in range(len(task.indicators))
        ]
        found = [pair for column in columns for pair in count(column)]
        if found:
            came, said = np.mean(found, axis=0)
            print(
                f"{task.name:18} {len(found):6,} lone rises, {came:.3f} came again, {said:.3f} of their windows say so"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
