"""Sums and counts over one workload's window, row after row, as numpy would add them; compiled.

A window is float32 [L, N] values, oldest first, and bool [L, N] of which of them were observed. These are asked of
every workload in every slot, where numpy's overhead on windows so small is ten times the work.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Values = NDArray[np.float32]
Seen = NDArray[np.bool_]

_LOOK_BACK: Final = 4
_FLAT_STEPS: Final = 12
_ZERO_STEPS: Final = 12
_SIGNIFICANT_SIGMAS: Final = 3.0
_SUMMED_AT_ONCE: Final = 128


@compiled
def sums_of_two(values: Values, observed: Seen, one: int, other: int, slots: int) -> tuple[float, float]:
    """Of two columns, over the last rows in which both were observed."""
    first, second = 0.0, 0.0
    for row in range(max(len(values) - slots, 0), len(values)):
        if observed[row, one] and observed[row, other]:
            first += np.float64(values[row, one])
            second += np.float64(values[row, other])
    return first, second


@compiled
def sums_of_all(
    values: Values, observed: Seen, columns: NDArray[np.int64], slots: int, sums: NDArray[np.float64]
) -> tuple[int, int]:
    """Of columns [K], over the last rows in which all of them were observed.

    Args:
        sums: float64 [K], filled.

    Returns:
        The first and the last of these rows; -1 where there are none.
    """
    sums[:] = 0.0
    first, last = -1, -1
    for row in range(max(len(values) - slots, 0), len(values)):
        known = True
        for column in columns:
            known = known and observed[row, column]
        if known:
            for k in range(len(columns)):
                sums[k] += np.float64(values[row, columns[k]])
            first = row if first < 0 else first
            last = row
    return first, last


@compiled
def recent_sums(
    values: Values, observed: Seen, columns: NDArray[np.int64], waiting: int, few: int, scale: float, least: float
) -> tuple[float, float, float, float, float]:
    """Scaled sums of columns [4] over the last `few` rows, or over all of them where the first column's is too small.

    Args:
        columns: the last one holds the requests that run.
        waiting: the column of those that wait, -1 without; what is not observed of it counts as none.
        least: of the first column's sum; where all rows hold less of it, all numbers are 0.

    Returns:
        The first three columns' sums; how many requests were in the system in the first and the last row that counts.
    """
    sums = np.empty(len(columns))
    for slots in (few, len(values)):
        first, last = sums_of_all(values, observed, columns, slots, sums)
        if first >= 0 and sums[0] * scale >= least:
            before, now = np.float64(values[first, columns[-1]]), np.float64(values[last, columns[-1]])
            if waiting >= 0:
                before += np.float64(values[first, waiting]) if observed[first, waiting] else 0.0
                now += np.float64(values[last, waiting]) if observed[last, waiting] else 0.0
            return sums[0] * scale, sums[1] * scale, sums[2] * scale, before, now
    return 0.0, 0.0, 0.0, 0.0, 0.0


@compiled
def pairwise_sum(numbers: NDArray[np.float64]) -> float:
    """What numpy says that the sum is, to the bit: eight sums side by side, stretches of more than 128 halved."""
    n = len(numbers)
    if n < 8:
        few = 0.0
        for k in range(n):
            few += numbers[k]
        return few
    if n > _SUMMED_AT_ONCE:
        half = n // 2 - n // 2 % 8
        return pairwise_sum(numbers[:half]) + pairwise_sum(numbers[half:])
    r = numbers[:8].copy()
    for first in range(8, n - n % 8, 8):
        for k in range(8):
            r[k] += numbers[first + k]
    total: float = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
    for k in range(n - n % 8, n):
        total += numbers[k]
    return total


@compiled
def finished_within(
    values: Values, observed: Seen, columns: tuple[int, int], times_ms: tuple[int, int, int, int]
) -> tuple[float, float]:
    """Requests, and those of them that missed, of the slots that end after a begin, up to an end.

    Args:
        columns: of the arrival rate and of the share that misses; slots that lack one of them do not count.
        times_ms: end of the newest slot, step, begin and end.
    """
    rates, ratios = columns
    newest_end_ms, step_ms, begin_ms, end_ms = times_ms
    requests, misses, n = np.empty(len(values)), np.empty(len(values)), 0
    for row in range(len(values)):
        at_ms = newest_end_ms - (len(values) - 1 - row) * step_ms
        if begin_ms < at_ms <= end_ms and observed[row, rates] and observed[row, ratios]:
            requests[n] = np.float64(values[row, rates]) * (step_ms / 1000)
            misses[n] = requests[n] * np.float64(values[row, ratios])
            n += 1
    return pairwise_sum(requests[:n]), pairwise_sum(misses[:n])


@compiled
def signals(
    values: Values, observed: Seen, num_targets: int, running: int, step_s: float, cliff_ratio: float
) -> tuple[bool, bool, bool]:
    """`is_flat`, `is_cliff` and `is_sudden_zero` in one call, for a call costs more than each."""
    return (
        is_flat(values, observed, num_targets, running),
        is_cliff(values, observed, step_s, cliff_ratio),
        is_sudden_zero(values, observed, step_s),
    )


@compiled
def is_flat(values: Values, observed: Seen, num_targets: int, running: int) -> bool:
    """Whether the first columns have not moved for a suspicious time though something goes on.

    Real demand is noisy: many equal steps in a row are a frozen reporter. One that froze altogether repeats its
    counters, so that nothing seems to arrive, and what it said was running.

    Args:
        running: column of the requests in service; -1 where there is none.
    """
    last, first = len(values) - 1, len(values) - _FLAT_STEPS
    if first < 0 or not (_still(values, 0, first) and observed[first:, 0].all()):
        return False
    for n in range(1, num_targets):
        if not _still(values, n, first):
            return False
    if values[last, 0] != 0:
        return True
    if running < 0 or values[last, running] == 0:
        return False
    return bool(_still(values, running, first) and observed[first:, running].all())


@compiled
def _still(values: Values, column: int, first: int) -> bool:
    return bool((values[first:, column] == values[-1, column]).all())


@compiled
def is_cliff(values: Values, observed: Seen, step_s: float, cliff_ratio: float) -> bool:
    """Whether the first column fell by more than the ratio within one step, which Poisson noise does not explain."""
    last = len(values) - 1
    total, known = 0.0, 0
    for row in range(max(last - _LOOK_BACK, 0), last):
        if observed[row, 0]:
            total += np.float64(values[row, 0])
            known += 1
    if known == 0 or not observed[last, 0] or total <= 0:
        return False
    mean, now = total / known, np.float64(values[last, 0])
    expected = mean * step_s
    fall = expected - now * step_s
    return bool(now < (1 - cliff_ratio) * mean and fall > _SIGNIFICANT_SIGMAS * np.sqrt(expected))


@compiled
def is_sudden_zero(values: Values, observed: Seen, step_s: float) -> bool:
    """Whether the first column is exactly zero now, and clearly was not within the last minute's worth of steps."""
    last = len(values) - 1
    if not observed[last, 0] or values[last, 0] != 0:
        return False
    for row in range(max(last - _ZERO_STEPS, 0), last):
        if observed[row, 0] and np.float64(values[row, 0]) * step_s > _SIGNIFICANT_SIGMAS:
            return True
    return False


def warm_up() -> None:
    """Compile or load all of it."""
    values, seen = np.ones((2, 4), np.float32), np.ones((2, 4), np.bool_)
    sums_of_two(values, seen, 0, 1, 2)
    recent_sums(values, seen, np.arange(4), 0, 1, 1.0, 1.0)
    finished_within(values, seen, (0, 1), (2, 1, 0, 2))
    signals(values, seen, 2, 3, 1.0, 0.5)
