"""Predictive policies on request counts: seasonal naive, schedule, and a chance constraint on one quantity.

* Seasonal naive takes the rate of one season ago over the lead time and a commit window. It divides this by a safe rate
  per replica. Before one season is known it takes the last value. The down window is 300 s.
* Scheduled follows the hourly means of past days, five minutes ahead, and only scales out; target tracking scales in.
  Source: Amazon EC2 Auto Scaling, predictive scaling.
* Chance constraint takes the smallest count with P(rate > count x safe rate) <= epsilon over the window. The rate is
  normal around its recent level with the variance of its recent changes over one lead time.
  Source: Zou et al., "OptScaler: A Collaborative Framework for Robust Autoscaling in the Cloud", VLDB 2024.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from infra.lab.replay.policies.reactive import Behaviour, Stabilizer
from infra.lab.replay.simulation import View

BIN_S = 30.0
HOUR_S, DAY_S = 3_600.0, 86_400.0

History = NDArray[np.float64]  # requests/s per bin of BIN_S, the newest bin ends at second 0


class _Rates:
    """Arrival rates per bin, a history before second 0 included."""

    def __init__(self, history: History, season_s: float) -> None:
        self._bins: deque[float] = deque(history.tolist(), maxlen=round(season_s / BIN_S) + 2)
        self._last_total = 0
        self._next_s = BIN_S

    def update(self, view: View) -> None:
        reading = view.newest
        if reading is None or reading.at_s < self._next_s - 1e-9:
            return
        self._bins.append((reading.arrived_total - self._last_total) / BIN_S)
        self._last_total = reading.arrived_total
        self._next_s += BIN_S

    def last(self, seconds: float) -> NDArray[np.float64]:
        """Newest bins, oldest first; empty before the first."""
        count = max(1, round(seconds / BIN_S))
        return np.asarray(list(self._bins)[-count:])

    def season_ago(self, season_s: float, start_s: float, end_s: float) -> float | None:
        """Largest rate of `[now + start - season, now + end - season)`; None before a season is known."""
        bins = list(self._bins)
        first = len(bins) - round((season_s - start_s) / BIN_S)
        last = len(bins) - round((season_s - end_s) / BIN_S)
        if first < 0 or not bins[first:last]:
            return None
        return max(bins[first:last])


class SeasonalNaive:
    """Args: `safe_rps` one replica carries; `history` before second 0; `lead_s` and `commit_s` of the window."""

    period_s = BIN_S
    looks_back_s = 0.0

    def __init__(
        self, safe_rps: float, history: History, lead_s: float, commit_s: float = 60.0, season_s: float = DAY_S
    ) -> None:
        self._safe_rps, self._season_s = safe_rps, season_s
        self._window = (0.0, lead_s + commit_s)
        self._rates = _Rates(history, season_s)
        self._stabilizer = Stabilizer(Behaviour())

    def desired_replicas(self, view: View) -> int:
        self._rates.update(view)
        recent = self._rates.last(2 * BIN_S)
        if not len(recent):
            return view.current
        ahead = self._rates.season_ago(self._season_s, *self._window)
        rate = float(recent.mean()) if ahead is None else ahead
        return self._stabilizer.apply(view.now_s, view.current, max(1, math.ceil(rate / self._safe_rps - 1e-9)))


class Scheduled:
    """Args: `target_rps` per replica of target tracking; `history` whose hours of day make the schedule."""

    period_s = BIN_S
    looks_back_s = 60.0
    buffer_s = 300.0

    def __init__(self, target_rps: float, history: History, past_starts_at_s: float = 0.0) -> None:
        self._target_rps = target_rps
        hours: dict[int, list[float]] = {}
        start_s = -len(history) * BIN_S + past_starts_at_s
        for k, rate in enumerate(history.tolist()):
            hours.setdefault(int((start_s + k * BIN_S) // HOUR_S) % 24, []).append(rate)
        self._hours = {hour: float(np.mean(rates)) for hour, rates in hours.items()}
        self._stabilizer = Stabilizer(Behaviour())
        self._offset_s = past_starts_at_s

    def desired_replicas(self, view: View) -> int:
        rate = view.arrivals_within(60.0)
        if rate is None:
            return view.current
        hour = int((view.now_s + self._offset_s + self.buffer_s) // HOUR_S) % 24
        planned = self._hours.get(hour, 0.0)
        desired = math.ceil(max(rate, planned) / self._target_rps - 1e-9)
        return self._stabilizer.apply(view.now_s, view.current, max(1, desired))


class OptScalerLike:
    """Args: `safe_rps` one replica carries; `epsilon` of the chance constraint; `lead_s` and `commit_s`."""

    period_s = BIN_S
    looks_back_s = 0.0

    def __init__(self, safe_rps: float, epsilon: float, lead_s: float, commit_s: float = 60.0) -> None:
        self._safe_rps, self._z = safe_rps, NormalDist().inv_cdf(1 - epsilon)
        self._ahead = max(1, round((lead_s + commit_s) / BIN_S))
        self._rates = _Rates(np.empty(0), 2 * HOUR_S)
        self._stabilizer = Stabilizer(Behaviour())

    def desired_replicas(self, view: View) -> int:
        self._rates.update(view)
        bins = self._rates.last(HOUR_S)
        if len(bins) < 4:
            return view.current
        level = float(bins[-4:].mean())
        spread = math.sqrt(level / (4 * BIN_S))
        if len(bins) > self._ahead + 4:
            smooth = np.convolve(bins, np.full(4, 0.25), mode="valid")
            changes = smooth[self._ahead :] - smooth[: -self._ahead]
            spread = max(spread, float(np.sqrt(np.mean(changes**2)))) if len(changes) else spread
        desired = math.ceil((level + self._z * spread) / self._safe_rps - 1e-9)
        return self._stabilizer.apply(view.now_s, view.current, max(1, desired))


# A constant count.


@dataclass(frozen=True, slots=True)
class StaticPeak:
    """Always `replicas`; tuned to the fewest that keep the objective on the training part."""

    replicas: int
    period_s: float = 3_600.0
    looks_back_s: float = 0.0

    def desired_replicas(self, view: View) -> int:  # noqa: ARG002
        return self.replicas
