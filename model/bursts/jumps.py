"""Jumps of the load that no forecast had in it: how often they come to one workload, and how far they went.

Forecasts know the half hour of their context. Where that was calm they are sure of the next minutes, whatever the days
before were like. So what lay far beyond a forecast and stayed there is remembered: how often that was, of the time in
which such a jump would have stood out of the forecasts, and from where to where. As many of the paths of later
forecasts jump.

One jump says nothing of the next, and the largest of several says least: it is not expected until another goes as far.
Of rates this leaves k - 1 events in the time in which k came. A jump that a forecast has in it already is not added,
and one that began a surge which comes again is expected when that is, and at no other time.
Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from model.baselines.context import row_seed
from model.baselines.context_kernel import uniforms
from model.calibration.trust import INTERVAL_LEVELS, STEPS_AHEAD

# Seed of the draws of jumps.
_SEED: Final = 3
# Most jumps that are stored.
_MAX_JUMPS: Final = 48
# Time constant of the decay of jumps and of the watched time.
_DECAY_TIME_MS: Final = 86_400_000.0
# Watched time without a jump before the first forecast.
_PRIOR_WATCHED_MS: Final = 3_600_000.0
# Smallest excess of a jump over the upper end, in distances of that end from the median.
_MIN_EXCESS_SPREADS: Final = 1.0
# Smallest ratio of a jump to the median.
_MIN_JUMP_RATIO: Final = 1.25
# Largest probability of a jump in one step.
_MAX_CHANCE_PER_STEP: Final = 0.25
# Requests of a step that are added to both ends of a ratio, so that ratios of tiny loads stay small.
_RATIO_REQUESTS: Final = 4.0


class Jump(NamedTuple):
    """From the median that was forecast to where the load was after it, requests/s.

    `ts_ms` is the end of its first slot.
    """

    ts_ms: int
    start: float
    end: float

    def reach(self, level: float, few: float) -> float:
        """Where one like it goes from another level: as much further, but no larger a multiple.

        Args:
            few: requests/s that count as next to nothing.
        """
        added = level + self.end - self.start
        times = (level + few) * (self.end + few) / (self.start + few) - few
        return min(added, times)


class Jumps:
    """What is remembered of one workload's jumps."""

    __slots__ = ("_begun", "_beyond", "_seen", "_watched_ms")

    def __init__(self) -> None:
        self._watched_ms = 0.0  # faded time in which those remembered would have stood out
        self._beyond: Jump | None = None  # of the newest value, where it was far beyond its forecast
        self._begun = False  # whether that is part of the newest jump remembered
        self._seen: tuple[Jump, ...] = ()

    def observe(self, mid: float, high: float, value: float, now_ms: int, for_ms: int, step_ms: int) -> None:
        """Hold a value against what was forecast of it. A jump is where two in a row lie far beyond.

        Args:
            mid, high: median and 95th percentile that were forecast, requests/s.
            now_ms: end of its slot.
            for_ms: the time that it stands for.
            step_ms: of a slot, whose requests are counted.
        """
        limit = _limit(mid, high)
        standing_out_ms = for_ms * self._standing_out(mid, limit, step_ms)
        self._watched_ms = math.exp(-for_ms / _DECAY_TIME_MS) * self._watched_ms + standing_out_ms
        before, self._beyond = self._beyond, Jump(now_ms, mid, value) if value > limit else None
        if self._beyond is None:
            self._begun = False
        elif before is not None:
            end = min(value, before.end)
            if not self._begun:
                self._begun = True
                self._seen = (*self._seen[1 - _MAX_JUMPS :], before._replace(end=end))
            elif end > self._seen[-1].end:
                self._seen = (*self._seen[:-1], self._seen[-1]._replace(end=end))

    def _standing_out(self, mid: float, limit: float, step_ms: int) -> float:
        """Share of the jumps remembered that would stand out of a forecast."""
        if not self._seen:
            return 1.0
        few = _few(step_ms)
        return sum(jump.reach(mid, few) > limit for jump in self._seen) / len(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def expected(self, now_ms: int, explained: Sequence[tuple[int, int]] = ()) -> tuple[tuple[Jump, ...], float]:
        """Jumps like which another may come, oldest first, and how often one is expected, per second.

        Args:
            explained: begin and end of surges that come again.
        """
        jumps = [jump for jump in self._seen if not any(begin <= jump.ts_ms <= end for begin, end in explained)]
        if len(jumps) < 2:
            return (), 0.0
        count = math.fsum(math.exp((jump.ts_ms - now_ms) / _DECAY_TIME_MS) for jump in jumps) - 1.0
        largest = max(range(len(jumps)), key=lambda k: jumps[k].end - jumps[k].start)
        per_s = 1000.0 * max(count, 0.0) / (self._watched_ms + _PRIOR_WATCHED_MS)
        return tuple(jumps[:largest] + jumps[largest + 1 :]), per_s

    def snapshot(self) -> list[list[float]]:
        """Plain values; `restore` gives back the same bits. Empty where no value was held against a forecast yet."""
        if self._watched_ms == 0.0:
            return []
        beyond = () if self._beyond is None else self._beyond
        return [[self._watched_ms, float(self._begun), *beyond], *(list(jump) for jump in self._seen)]

    @classmethod
    def restore(cls, state: Sequence[Sequence[float]]) -> Self:
        """What a snapshot was taken of.

        Raises:
            ValueError: the snapshot is of another version or damaged.
        """
        jumps = cls()
        if not state:
            return jumps
        head, *rows = state
        if len(head) not in (2, 5) or any(len(row) != 3 for row in rows):
            raise ValueError("jumps are not stored as a time watched, and when and from where to where each")
        jumps._watched_ms, jumps._begun = float(head[0]), bool(head[1])
        jumps._beyond = _jump(head[2:]) if len(head) == 5 else None
        jumps._seen = tuple(_jump(row) for row in rows)
        return jumps


def jump_paths(
    expected: Sequence[Jump],
    per_s: float,
    demand: NDArray[np.float32],
    highest: float,
    item_id: str,
    origin_ts_ms: int,
    step_ms: int,
) -> NDArray[np.float32] | None:
    """What jumps add to sample paths, from a step of each that has one on; None where none has.

    None takes a path beyond what was seen: the context's highest value, or the end of a jump.

    Args:
        expected: each as likely as the others; at least one.
        per_s: how often one of them comes.
        demand: [S, H], requests/s.
        highest: of the context, requests/s.
        item_id: with the origin it fixes the draws, whatever else is forecast.

    Returns:
        float32 [S, H], requests/s.
    """
    chance = min(per_s * step_ms / 1000.0, _MAX_CHANCE_PER_STEP)
    if chance <= 0.0:
        return None
    num_paths, horizon = demand.shape
    few, highest = _few(step_ms), max(highest, *(jump.end for jump in expected))
    soon = np.sort(demand[:, min(STEPS_AHEAD, horizon) - 1]).astype(np.float64)
    mid, high = float(soon[num_paths // 2]), float(soon[round(INTERVAL_LEVELS[2] * (num_paths - 1))])
    limit = _limit(mid, high)
    fit = [jump.reach(mid, few) > limit for jump in expected]
    numbers = np.empty(2 * num_paths)
    uniforms(np.uint64(row_seed(item_id, origin_ts_ms, _SEED)), 0, numbers)
    starts = np.log1p(-numbers[:num_paths]) / math.log1p(-chance)
    which = (numbers[num_paths:] * len(expected)).astype(np.int64)
    added = np.zeros((num_paths, horizon), np.float32)
    for path in np.flatnonzero(starts < horizon).tolist():
        if fit[which[path]]:
            start = int(starts[path])
            level = float(demand[path, start])
            beyond = min(expected[which[path]].reach(level, few), highest) - level
            added[path, start:] = max(beyond, 0.0)
    return added if added.any() else None


def _jump(row: Sequence[float]) -> Jump:
    return Jump(int(row[0]), float(row[1]), float(row[2]))


def _few(step_ms: int) -> float:
    """Requests/s that count as next to nothing."""
    return _RATIO_REQUESTS * 1000.0 / step_ms


def _limit(mid: float, high: float) -> float:
    """Beyond which a value stands out of its forecast."""
    return max(high + _MIN_EXCESS_SPREADS * (high - mid), _MIN_JUMP_RATIO * mid)
