"""Bootstrap intervals of the figures: origins resampled in blocks within items, tasks for figures over all pairs.

The moving-block bootstrap with percentile intervals. Source: H. Künsch, "The jackknife and the bootstrap for general
stationary observations", Annals of Statistics 1989.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from model.evaluation.rolling_scores import Cells, Pair, relative

_BLOCK = 5  # neighbouring origins overlap in their targets; a block keeps them together


def resampled_rows(item: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Origins drawn with repetition: items first, then blocks of neighbouring origins in each.

    Args:
        item: [R] number of the item of each origin, the origins of an item in order.
    """
    items = np.unique(item)
    drawn = items if len(items) == 1 else rng.choice(items, len(items))
    parts = []
    for number in drawn:
        rows = np.flatnonzero(item == number)
        block = min(_BLOCK, len(rows))
        starts = rng.integers(0, len(rows) - block + 1, -(-len(rows) // block))
        parts.append(rows[(starts[:, None] + np.arange(block)).ravel()[: len(rows)]])
    return np.concatenate(parts)


def relative_interval(
    cells: Cells, reference: Cells, metric: str, *, draws: int, seed: int, level: float = 0.9
) -> tuple[float, float]:
    """Percentile interval of a relative metric on one pair; contestant and reference share the draws."""
    values = _draws(cells, reference, metric, draws, np.random.default_rng(seed))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def pooled_interval(
    cells: Mapping[Pair, Cells],
    reference: Mapping[Pair, Cells],
    metric: str,
    *,
    draws: int,
    seed: int,
    level: float = 0.9,
) -> tuple[float, float]:
    """Interval of the geometric mean over all pairs: tasks are resampled with all their pairs, origins within them."""
    rng = np.random.default_rng(seed)
    tasks = sorted({task for task, _ in reference})
    logs: dict[str, NDArray[np.float64]] = {}
    counts = {task: sum(pair[0] == task for pair in reference) for task in tasks}
    for task in tasks:
        total = np.zeros(draws)
        for pair in reference:
            if pair[0] == task and pair in cells:
                total += np.log(_draws(cells[pair], reference[pair], metric, draws, rng))
        logs[task] = total
    means = np.empty(draws)
    for k in range(draws):
        drawn = rng.choice(len(tasks), len(tasks))
        means[k] = sum(logs[tasks[t]][k] for t in drawn) / sum(counts[tasks[t]] for t in drawn)
    low, high = np.exp(np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    return float(low), float(high)


def mean_interval(values: NDArray[np.float64], *, draws: int, seed: int, level: float = 0.9) -> tuple[float, float]:
    """Percentile interval of the mean of a few figures, such as one per container."""
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (draws, len(values)))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _draws(cells: Cells, reference: Cells, metric: str, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.array([relative(cells, reference, metric, resampled_rows(reference.item, rng)) for _ in range(draws)])
