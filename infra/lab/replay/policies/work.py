"""Quantile of work: requests times what one of them costs, raised by the quantile of how loads grew before.

    level = mean arrivals of two minutes (on days times the ratio of the same times yesterday)
    factor = q-quantile of past ratios: arrivals over [t + lead, t + lead + 60 s] by the level at t
    replicas = ceil(level * factor * work / (sustainable work * theta) + queued work / 120 s)

The work of a request is the engine time that it adds to iterations. The rule reads the engine's law from the profile,
so it knows more than HARMONY, which has to learn what a replica carries.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from infra.lab.replay.policies.predictive import BIN_S, DAY_S, History
from infra.lab.replay.simulation import View
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile

PERIOD_S = 15.0
_LEVEL_TICKS = 8
_TARGET_TICKS = 4
_ORIGINS, _ORIGINS_ON_DAYS = 160, 1_440
_MEMORY_REQUESTS = 400.0
_QUEUE_CLEARING_S = 120.0
_DOWN_WINDOW_S = 120.0
_DAY_RATIO_LIMITS = (0.6, 2.0)
_FEWEST_RATIOS = 20
_PRIOR_SIGMA = 0.25
"""Standard deviation of the logarithm of the ratios that stands in until `_FEWEST_RATIOS` are known."""

_MAX_PRIOR_QUANTILE = 0.999
"""The prior has no largest ratio, so that a quantile of 1 stands for this one."""


@dataclass(frozen=True, slots=True)
class WorkLaw:
    """What requests of a mix cost on an engine, in seconds of its iterations beyond their fixed cost."""

    profile: EngineProfile
    objective: Objective

    def request_s(self, prompt: float, prompt_squared: float, output: float) -> float:
        """Return the work of one request, seconds.

        Args:
            prompt, output: mean tokens.
            prompt_squared: mean of the squared prompt tokens.
        """
        p = self.profile
        return self._prefill_s(prompt, prompt_squared) + output * (
            p.sequence_s + p.kv_token_s * (prompt + output / 2)
        )  # fmt: skip

    def sustainable(self, prompt: float, prompt_squared: float, output: float) -> float:
        """Return the most work per second that one replica carries within the TPOT objective, between 0 and 1.

        An iteration lasts at most as long as the objective allows, or as a full prefill chunk takes. The cache and the
        batch limit the requests that run at once.
        """
        p, context = self.profile, prompt + output / 2
        work_s = self.request_s(prompt, prompt_squared, output)
        prefill_s = self._prefill_s(prompt, prompt_squared)
        full_chunk_s = p.base_s + work_s * p.max_prefill_tokens / max(prompt, 1.0)
        by_time = 1.0 - p.base_s / max(
            min(self.objective.tpot_s, full_chunk_s if prefill_s > 0 else math.inf), p.base_s
        )
        running = min(0.95 * p.kv_capacity_tokens / max(context, 1.0), float(p.max_batch))
        by_memory = running / (running + output / max(work_s, 1e-12) * p.base_s)
        return max(0.05, min(by_time, by_memory))

    def _prefill_s(self, prompt: float, prompt_squared: float) -> float:
        return self.profile.prefill_token_s * prompt + self.profile.prefill_token_sq_s * prompt_squared / 2


class WorkQuantile:
    """The rule.

    Args:
        quantile: of the past ratios.
        utilization: part of the sustainable work that is planned for, theta.
        history: requests/s per 30 s before second 0; of a day or more, the ratio of yesterday is used.
    """

    period_s = PERIOD_S
    looks_back_s = 0.0

    def __init__(
        self, law: WorkLaw, quantile: float, utilization: float, lead_s: float, history: History | None = None
    ) -> None:
        self._law, self._quantile, self._utilization = law, quantile, utilization
        self._lead_ticks = round(lead_s / PERIOD_S)
        self._down_window_s = max(_DOWN_WINDOW_S, lead_s)
        before = np.empty(0) if history is None else np.repeat(history, round(BIN_S / PERIOD_S))
        self._rates = before.tolist()  # requests/s per tick, those before second 0 included
        self._on_days = len(before) >= DAY_S / PERIOD_S
        self._first = len(before)
        self._levels: list[float] = []
        self._ratios: deque[float] = deque(maxlen=_ORIGINS_ON_DAYS if self._on_days else _ORIGINS)
        self._proposals: deque[tuple[float, int]] = deque()
        self._arrived = 0
        self._prompt_total, self._prompt_squares = 0, 0.0
        self._means: list[float] | None = None  # prompt, its square, output: of the last few hundred requests
        self._output: float | None = None

    def desired_replicas(self, view: View) -> int:
        reading = view.newest
        if reading is None:
            return view.current
        self._rates.append((reading.arrived_total - self._arrived) / PERIOD_S)
        self._observe_lengths(
            reading.arrived_total - self._arrived,
            reading.prompt_tokens_total - self._prompt_total,
            reading.prompt_squares_total - self._prompt_squares,
            [output for _, output in reading.ended],
        )
        self._arrived = reading.arrived_total
        self._prompt_total, self._prompt_squares = reading.prompt_tokens_total, reading.prompt_squares_total
        level = self._level()
        self._levels.append(level)
        self._observe_ratio()
        if self._means is None or self._output is None:
            return view.current
        mix = (*self._means, self._output)
        work_s = self._law.request_s(*mix)
        needed = level * self._factor() * work_s / (self._law.sustainable(*mix) * self._utilization)
        queued = reading.num_waiting * work_s / _QUEUE_CLEARING_S
        return self._held(view, max(1, math.ceil(needed + queued - 1e-9)))

    def _observe_lengths(self, num_arrived: int, prompts: int, squares: float, outputs: list[int]) -> None:
        if num_arrived > 0:
            newest = [prompts / num_arrived, squares / num_arrived]
            weight = min(1.0, num_arrived / _MEMORY_REQUESTS)
            old = self._means or newest
            self._means = [mean + weight * (new - mean) for mean, new in zip(old, newest, strict=True)]
        if outputs:
            mean = sum(outputs) / len(outputs)
            old_output = mean if self._output is None else self._output
            self._output = old_output + min(1.0, len(outputs) / _MEMORY_REQUESTS) * (mean - old_output)

    def _level(self) -> float:
        """Requests/s of the last two minutes, and on days what yesterday says of a lead time later."""
        own = self._rates[max(self._first, len(self._rates) - _LEVEL_TICKS) :]
        level = sum(own) / len(own)
        if not self._on_days:
            return level
        now = len(self._rates) - round(DAY_S / PERIOD_S)
        then = self._rates[max(now - _LEVEL_TICKS, 0) : now]
        later = self._rates[now + self._lead_ticks : now + self._lead_ticks + _TARGET_TICKS]
        if not then or not later or sum(then) <= 0:
            return level
        ratio = (sum(later) / len(later)) / (sum(then) / len(then))
        return level * min(max(ratio, _DAY_RATIO_LIMITS[0]), _DAY_RATIO_LIMITS[1])

    def _observe_ratio(self) -> None:
        """Add the newest origin whose minute of arrivals is over."""
        origin = len(self._levels) - 1 - self._lead_ticks - _TARGET_TICKS
        if origin < 0 or self._levels[origin] <= 0:
            return
        begin = self._first + origin + 1 + self._lead_ticks
        arrived = self._rates[begin : begin + _TARGET_TICKS]
        self._ratios.append(sum(arrived) / len(arrived) / self._levels[origin])

    def _factor(self) -> float:
        if len(self._ratios) < _FEWEST_RATIOS:
            return math.exp(_PRIOR_SIGMA * NormalDist().inv_cdf(min(self._quantile, _MAX_PRIOR_QUANTILE)))
        return float(np.quantile(self._ratios, self._quantile))

    def _held(self, view: View, proposal: int) -> int:
        """Down only to the largest proposal of the window."""
        self._proposals.append((view.now_s, proposal))
        while self._proposals[0][0] < view.now_s - self._down_window_s - 1e-6:
            self._proposals.popleft()
        return max(proposal, min(view.current, max(n for _, n in self._proposals)))
