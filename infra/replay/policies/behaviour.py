"""The horizontal pod autoscaler's behaviour section: stabilization windows and rate limits around a recommendation."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Defaults as Kubernetes ships them.

    Attributes:
        up_window_s: the smallest recommendation within it counts on the way up; down_window_s: the largest, down.
        up_ratio, up_replicas: the larger of the two may be added per `up_period_s`; down_ratio, down_replicas likewise
            removed per `down_period_s`.
    """

    up_window_s: float = 0.0
    down_window_s: float = 300.0
    up_ratio: float = 1.0
    up_replicas: int = 4
    up_period_s: float = 15.0
    down_ratio: float = 1.0
    down_replicas: int = 0
    down_period_s: float = 15.0


class Stabilizer:
    """Applies a behaviour to a sequence of recommendations."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._b = behaviour
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def apply(self, now_s: float, current: int, recommended: int) -> int:
        """The count to set now, given the one in force."""
        b = self._b
        if not self._recommended:
            # As Kubernetes starts: the count that is there was the recommendation so far.
            self._recommended.append((now_s - 1e-3, current))
        self._recommended.append((now_s, recommended))
        keep_s = max(b.up_window_s, b.down_window_s)
        while self._recommended[0][0] < now_s - keep_s:
            self._recommended.popleft()
        lowest_up = min(n for t, n in self._recommended if t >= now_s - b.up_window_s)
        highest_down = max(n for t, n in self._recommended if t > now_s - b.down_window_s or t == now_s)
        wanted = current
        if lowest_up > current:
            wanted = lowest_up
        elif highest_down < current:
            wanted = highest_down
        limited = self._limited(now_s, current, wanted)
        if limited != current:
            self._changes.append((now_s, limited - current))
        return limited

    def _limited(self, now_s: float, current: int, wanted: int) -> int:
        b = self._b
        longest_s = max(b.up_period_s, b.down_period_s)
        while self._changes and self._changes[0][0] <= now_s - longest_s:
            self._changes.popleft()
        if wanted > current:
            added = sum(n for t, n in self._changes if n > 0 and t > now_s - b.up_period_s)
            start = current - added
            return min(wanted, max(current, start + b.up_replicas, math.ceil(start * (1 + b.up_ratio))))
        if wanted < current:
            removed = -sum(n for t, n in self._changes if n < 0 and t > now_s - b.down_period_s)
            start = current + removed
            return max(wanted, min(current, start - max(b.down_replicas, math.floor(start * b.down_ratio))))
        return current
