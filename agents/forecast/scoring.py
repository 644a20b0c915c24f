"""How good the forecasts of demand are on live data: coverage and pinball loss, by forecaster and target.

A forecast is offered when it is made and scored when the value it spoke of is observed; a value never observed scores
nothing. Older scores fade with the slots. For measuring only: nothing here enters a plan, so that a restart may begin
again at nothing. Pure: slots are the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

SCORED_STEPS: Final = (1, 4, 16)
BANDS: Final = {"0.5": (0.25, 0.75), "0.8": (0.1, 0.9), "0.9": (0.05, 0.95)}
Rows = Sequence[Sequence[float]] | NDArray[np.float64]  # [steps][Q]
_FADE: Final = 0.995  # of the sums per slot: about the last 200 slots count


@dataclass(frozen=True, slots=True)
class Skill:
    """What is known of one forecaster's forecasts of one target.

    Attributes:
        coverage: band -> share of values within it.
        pinball: mean over levels and scores, as a share of the mean absolute value; None while all values are 0.
    """

    forecaster: str
    target: str
    coverage: dict[str, float]
    pinball: float | None


class SkillBoard:
    """Sums of scores of all partitions of a worker.

    Args:
        levels: ascending quantile levels of the forecasts; must hold the ends of every band.

    Raises:
        ValueError: levels that cannot be scored.
    """

    def __init__(self, levels: Sequence[float]) -> None:
        needed = {q for band in BANDS.values() for q in band}
        if not needed <= set(levels) or list(levels) != sorted(set(levels)):
            raise ValueError(f"levels must ascend and hold {sorted(needed)}, got {tuple(levels)}")
        self.levels = np.array(levels, np.float64)
        self._bands = [(list(levels).index(low), list(levels).index(high)) for low, high in BANDS.values()]
        # Per (forecaster, target): newest slot, and count, values within each band, pinball, |value|.
        self._sums: dict[tuple[str, str], tuple[int, NDArray[np.float64]]] = {}

    def add(self, slot: int, forecaster: str, target: str, quantiles: ArrayLike, values: ArrayLike) -> int:
        """Score quantiles [K, Q] against the values [K] of a slot; returns how many were finite, and so counted."""
        f, y = np.asarray(quantiles, np.float64), np.asarray(values, np.float64)
        finite = np.isfinite(f).all(axis=1) & np.isfinite(y)
        f, y = f[finite], y[finite, None]
        gap = y - f  # [K, Q]
        loss = np.maximum(self.levels * gap, (self.levels - 1.0) * gap).mean(axis=1)
        inside = [((f[:, a] <= y[:, 0]) & (y[:, 0] <= f[:, b])).sum() for a, b in self._bands]
        scores = np.array([len(y), *inside, loss.sum(), np.abs(y).sum()], np.float64)
        newest, sums = self._sums.get((forecaster, target), (slot, np.zeros(len(scores))))
        # Partitions may be some slots apart; what is late fades by its own age.
        ahead = slot - newest
        faded = sums * _FADE**ahead + scores if ahead >= 0 else sums + scores * _FADE**-ahead
        self._sums[forecaster, target] = max(slot, newest), faded
        return len(y)

    def skills(self) -> list[Skill]:
        """One entry per forecaster and target with a score."""
        skills = []
        for (forecaster, target), (_, sums) in sorted(self._sums.items()):
            count, *inside, loss, scale = sums.tolist()
            if count > 0:
                coverage = {band: n / count for band, n in zip(BANDS, inside, strict=True)}
                skills.append(Skill(forecaster, target, coverage, loss / scale if scale > 0 else None))
        return skills


@dataclass(frozen=True, slots=True, eq=False)
class _Offer:
    forecaster: str
    target: str
    workloads: tuple[str, ...]
    quantiles: NDArray[np.float64]  # [K, Q]


class PendingForecasts:
    """Forecasts of one partition that wait for their values.

    Args:
        steps: slots ahead of the origin that are scored.
    """

    def __init__(self, board: SkillBoard, steps: Sequence[int] = SCORED_STEPS) -> None:
        self.board = board
        self._steps = tuple(steps)
        self._newest: int | None = None
        self._waiting: dict[int, list[_Offer]] = {}

    def __len__(self) -> int:
        return sum(len(offers) for offers in self._waiting.values())

    def offer(
        self,
        slot: int,
        forecaster: str,
        target: str,
        quantiles: Mapping[str, Rows],
    ) -> None:
        """Forecasts made at the end of `slot`: per workload, quantiles of slot + 1 + k, aligned with the levels.

        Steps beyond a forecast, and those whose value has been there before the forecast, are left out.
        """
        for step in self._steps:
            due = slot + step
            rows = {workload: steps[step - 1] for workload, steps in quantiles.items() if len(steps) >= step}
            if rows and (self._newest is None or due > self._newest):
                stacked = np.array(list(rows.values()), np.float64)
                self._waiting.setdefault(due, []).append(_Offer(forecaster, target, tuple(rows), stacked))

    def settle(self, slot: int, values: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], int]:
        """Score the forecasts of a closed slot with its values (target -> workload -> value); drop earlier ones.

        Returns:
            Number of scores per (forecaster, target).
        """
        self._newest = slot
        due = self._waiting.pop(slot, [])
        for missed in [s for s in self._waiting if s < slot]:
            del self._waiting[missed]
        scored: dict[tuple[str, str], int] = {}
        for offer in due:
            known = values.get(offer.target, {})
            rows = [k for k, workload in enumerate(offer.workloads) if workload in known]
            if not rows:
                continue
            observed = [known[offer.workloads[k]] for k in rows]
            count = self.board.add(slot, offer.forecaster, offer.target, offer.quantiles[rows], observed)
            key = offer.forecaster, offer.target
            scored[key] = scored.get(key, 0) + count
        return scored
