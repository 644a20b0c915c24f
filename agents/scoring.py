"""How good the forecasts of one workload are on live data: coverage, pinball loss, bias and skill, step by step ahead.

A forecast is offered when it is made and scored when the value it spoke of is observed; a value never observed scores
nothing. Older scores fade exponentially. Pure: no clock; slots are the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_FADE: Final = 0.995  # of the sums with every score: about 200 count
_BANDS: Final = ((0.1, 0.9), (0.05, 0.95))


@dataclass(frozen=True, slots=True)
class StepSkill:
    """What is known of forecasts of one step ahead.

    Attributes:
        step: slots ahead of the origin, from 1.
        count: scores that count, after fading.
        coverage_80_ratio, coverage_90_ratio: share of values within the central band.
        pinball: mean over quantile levels and scores, in the indicator's unit.
        bias_ratio: mean of (median - value) over the mean absolute value; above 0 forecasts are too high.
        skill_ratio: 1 - mean absolute error of the median / that of the last value known at the origin; 1 is perfect,
            0 no better than the last value. None while the last value is always right.
    """

    step: int
    count: float
    coverage_80_ratio: float
    coverage_90_ratio: float
    pinball: float
    bias_ratio: float
    skill_ratio: float | None


class ForecastScore:
    """Accumulates the live skill of one workload's forecasts at a few steps ahead.

    Args:
        levels: ascending quantile levels of the forecasts offered; must hold 0.05, 0.1, 0.5, 0.9 and 0.95.
        steps: steps ahead that are scored; as many forecasts as their sum are kept waiting for their value.

    Raises:
        ValueError: levels or steps that cannot be scored.
    """

    def __init__(self, levels: Sequence[float], steps: Sequence[int] = (1, 4, 16)) -> None:
        self._levels = tuple(float(q) for q in levels)
        self._steps = tuple(sorted(set(steps)))
        needed = {0.5, *(q for band in _BANDS for q in band)}
        missing = sorted(needed - set(self._levels))
        if missing or list(self._levels) != sorted(set(self._levels)):
            raise ValueError(f"levels must ascend and hold {sorted(needed)}, got {self._levels}")
        if not self._steps or self._steps[0] < 1:
            raise ValueError(f"steps must be at least 1, got {tuple(steps)}")
        self._bands = [(self._levels.index(a), self._levels.index(b)) for a, b in _BANDS]
        self._median = self._levels.index(0.5)
        # Per step: count, within 80, within 90, pinball, error, |error|, |value|, |error of the last value|.
        self._sums = [[0.0] * 8 for _ in self._steps]
        # Target slot -> index of the step -> last value at the origin, then the quantiles.
        self._waiting: dict[int, dict[int, tuple[float, ...]]] = {}

    def offer(self, slot: int, quantiles: Sequence[Sequence[float]], last_value: float) -> None:
        """A forecast made at the end of `slot`: `quantiles[k]` are those of slot + 1 + k, aligned with the levels.

        Steps beyond the forecast and numbers that are not finite are left out.
        """
        for at, step in enumerate(self._steps):
            if step > len(quantiles):
                break
            kept = (float(last_value), *(float(q) for q in quantiles[step - 1]))
            if len(kept) == len(self._levels) + 1 and all(map(math.isfinite, kept)):
                self._waiting.setdefault(slot + step, {})[at] = kept

    def observe(self, slot: int, value: float | None) -> None:
        """The value of a closed slot, None when not observed; forecasts of it and of earlier slots are settled."""
        due = self._waiting.pop(slot, {})
        for missed in [s for s in self._waiting if s < slot]:
            del self._waiting[missed]
        if value is None or not math.isfinite(value):
            return
        for at, (last, *quantiles) in due.items():
            error = quantiles[self._median] - value
            below = [(q, value - f) for q, f in zip(self._levels, quantiles, strict=True)]
            loss = sum(max(q * gap, (q - 1.0) * gap) for q, gap in below)
            inside = [float(quantiles[a] <= value <= quantiles[b]) for a, b in self._bands]
            scores = (1.0, *inside, loss / len(quantiles), error, abs(error), abs(value), abs(last - value))
            self._sums[at] = [_FADE * s + x for s, x in zip(self._sums[at], scores, strict=True)]

    def skill(self) -> tuple[StepSkill, ...]:
        """One entry per step ahead with a score; empty before the first."""
        skills = []
        for step, sums in zip(self._steps, self._sums, strict=True):
            count, in_80, in_90, pinball, error, absolute, scale, naive = sums
            if count <= 0:
                continue
            skills.append(
                StepSkill(
                    step=step,
                    count=count,
                    coverage_80_ratio=in_80 / count,
                    coverage_90_ratio=in_90 / count,
                    pinball=pinball / count,
                    bias_ratio=error / scale if scale > 0 else 0.0,
                    skill_ratio=1.0 - absolute / naive if naive > 0 else None,
                )
            )
        return tuple(skills)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain values; `restore` gives back the same bits."""
        waiting = [[s, at, *kept] for s, due in sorted(self._waiting.items()) for at, kept in sorted(due.items())]
        return {
            "v": 1,
            "levels": list(self._levels),
            "steps": list(self._steps),
            "sums": [list(s) for s in self._sums],
            "waiting": waiting,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> ForecastScore:
        """The accumulator that a snapshot was taken of.

        Raises:
            ValueError: the snapshot is of another version.
        """
        if state.get("v") != 1:
            raise ValueError(f"forecast score snapshot has version {state.get('v')!r}, this program reads 1")
        score = cls(state["levels"], state["steps"])
        score._sums = [list(s) for s in state["sums"]]
        for slot, at, *kept in state["waiting"]:
            score._waiting.setdefault(slot, {})[at] = tuple(kept)
        return score
