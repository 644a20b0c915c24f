"""How far a workload may move at one origin, said again in plain Python: numbers and lists, no shared code.

For a healthy workload whose fleet obeys at once: bounds, step limits, stabilization, and never below the load of now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Rules:
    lowest: int
    highest: int
    up_share: float
    up_count: int
    up_period_ms: int
    down_share: float
    down_count: int
    down_period_ms: int
    calm_down_ms: int


@dataclass
class Walk:
    """One workload's history; `replicas` is what runs, and what was decided last."""

    rules: Rules
    replicas: int
    moves: list[tuple[int, int]] = field(default_factory=list)
    wishes: list[tuple[int, int]] = field(default_factory=list)

    def decide(self, now_ms: int, wish: int, needed_now: int) -> int:
        """Replicas from this origin on."""
        self.wishes.append((now_ms, wish))
        value = self._within(wish)
        value = self._slowly(value, now_ms)
        if value < self.replicas:
            asked = max(w for t, w in self.wishes if t > now_ms - self.rules.calm_down_ms)
            value = min(self.replicas, max(value, asked))
        if value < needed_now:
            value = max(value, self._slowly(self._within(needed_now), now_ms))
        value = self._within(value)
        if value != self.replicas:
            self.moves.append((now_ms, value - self.replicas))
            self.replicas = value
        return value

    def _within(self, value: int) -> int:
        return min(self.rules.highest, max(self.rules.lowest, value))

    def _slowly(self, value: int, now_ms: int) -> int:
        r, here = self.rules, self.replicas
        if value > here:
            added = sum(n for t, n in self.moves if n > 0 and t > now_ms - r.up_period_ms)
            base = max(0, here - added)
            return min(value, max(here, base + max(r.up_count, math.floor(base * r.up_share))))
        if value < here:
            removed = sum(-n for t, n in self.moves if n < 0 and t > now_ms - r.down_period_ms)
            base = here + removed
            return max(value, min(here, base - max(r.down_count, math.floor(base * r.down_share))))
        return value
