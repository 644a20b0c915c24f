"""Generated load: a daily shape, noise, bursts, drift and lognormal token lengths, the same however time is cut.

Every block of simulated time draws from its own generator, keyed by (seed, block), so a workload needs no memory and a
run may start anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from infra.simulator.arrivals import Arrivals

BLOCK_S = 300
_HOUR_S = 3600.0
_ARRIVALS, _BURSTS, _NOISE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class TokenShape:
    """Lognormal token counts: `mean` tokens, `sigma_log` of the logarithm, clipped to [1, `most`]."""

    mean: float
    sigma_log: float
    most: int = 32_000

    def draw(self, rng: np.random.Generator, scale: NDArray[np.float64]) -> NDArray[np.int64]:
        """One count per element of `scale`, which multiplies the mean."""
        mu = math.log(self.mean) - self.sigma_log**2 / 2
        return np.clip(np.exp(mu + self.sigma_log * rng.standard_normal(len(scale))) * scale, 1, self.most).astype(
            np.int64
        )


@dataclass(frozen=True, slots=True)
class LoadShape:
    """The character of one workload.

    Attributes:
        mean_rps: mean arrival rate without bursts.
        prompt, output: token lengths.
        period_s: length of a "day".
        amplitudes, phases: of the harmonics 1, 2, ... of the day, as shares of the mean and of the period.
        noise: standard deviation of the slow relative noise of the rate.
        noise_step_s: distance of its support points.
        bursts_per_hour: flash crowds, at random instants.
        burst_factor: they multiply the rate by up to this.
        burst_s: their mean length.
        batch_every_s, batch_factor, batch_s: scheduled jobs: now and then the rate is multiplied; 0 = none.
        drift_per_hour: relative growth of the rate, compounded, at most doubling or halving.
        prompt_drift: the mean prompt length swings by this share over three periods.

    Raises:
        ValueError: a value out of range.
    """

    mean_rps: float
    prompt: TokenShape
    output: TokenShape
    period_s: float = 86_400.0
    amplitudes: tuple[float, ...] = (0.5,)
    phases: tuple[float, ...] = (0.0,)
    noise: float = 0.08
    noise_step_s: float = 60.0
    bursts_per_hour: float = 0.0
    burst_factor: float = 1.0
    burst_s: float = 90.0
    batch_every_s: float = 0.0
    batch_factor: float = 1.0
    batch_s: float = 0.0
    drift_per_hour: float = 0.0
    prompt_drift: float = 0.0

    def __post_init__(self) -> None:
        if self.mean_rps <= 0 or self.period_s <= 0 or self.noise_step_s <= 0 or self.burst_s <= 0:
            raise ValueError("mean_rps, period_s, noise_step_s and burst_s must be positive")
        if len(self.amplitudes) != len(self.phases):
            raise ValueError(f"{len(self.amplitudes)} amplitudes need as many phases, got {len(self.phases)}")
        if self.burst_factor < 1 or self.batch_factor < 1 or self.noise < 0 or self.bursts_per_hour < 0:
            raise ValueError("burst_factor and batch_factor must be at least 1, noise and bursts_per_hour at least 0")
        if not -1 < self.prompt_drift < 1:
            raise ValueError(f"prompt_drift must lie between -1 and 1, got {self.prompt_drift}")


class GeneratedLoad:
    """Endless arrivals of one shape."""

    def __init__(self, shape: LoadShape, seed: int) -> None:
        self.shape = shape
        self.seed = seed
        self._block = lru_cache(maxsize=4)(self._draw_block)

    @property
    def end_s(self) -> float:
        return math.inf

    @property
    def start_ts_ms(self) -> int | None:
        return None

    def between(self, start_s: float, end_s: float) -> Arrivals:
        """The requests in `[start_s, end_s)`.

        Raises:
            ValueError: an infinite or negative interval.
        """
        if not 0 <= start_s <= end_s < math.inf:
            raise ValueError(f"generated load needs 0 <= start <= end < infinity, got {start_s} and {end_s}")
        first, last = int(start_s // BLOCK_S), math.ceil(end_s / BLOCK_S)
        return Arrivals.joined([self._block(b) for b in range(first, max(last, first + 1))]).between(start_s, end_s)

    def rate(self, at_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected arrivals per second at these instants (bursts and noise included), 1/s."""
        s = self.shape
        day = np.ones_like(at_s)
        for k, (amplitude, phase) in enumerate(zip(s.amplitudes, s.phases, strict=True), start=1):
            day += amplitude * np.sin(2 * np.pi * k * (at_s / s.period_s - phase))
        growth = np.clip((1 + s.drift_per_hour) ** (at_s / _HOUR_S), 0.5, 2.0)
        rate = s.mean_rps * np.maximum(day, 0.02) * growth * self._noise(at_s) * self._bursts(at_s)
        if s.batch_every_s > 0:
            rate = np.where(at_s % s.batch_every_s < s.batch_s, rate * s.batch_factor, rate)
        return rate

    def _noise(self, at_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Relative noise, linear between support points that each have their own seed."""
        if self.shape.noise == 0:
            return np.ones_like(at_s)
        place = at_s / self.shape.noise_step_s
        low = np.floor(place).astype(np.int64)
        points = {int(k): self._point(int(k)) for k in np.unique(np.concatenate([low, low + 1]))}
        left = np.array([points[int(k)] for k in low])
        right = np.array([points[int(k) + 1] for k in low])
        return np.maximum(0.1, 1 + self.shape.noise * (left + (right - left) * (place - low)))

    def _point(self, index: int) -> float:
        return float(np.random.default_rng((self.seed, _NOISE, index)).standard_normal())

    def _bursts(self, at_s: NDArray[np.float64]) -> NDArray[np.float64]:
        s = self.shape
        factor = np.ones_like(at_s)
        if s.bursts_per_hour == 0 or not len(at_s):
            return factor
        hours = range(max(0, int(at_s.min() // _HOUR_S) - 1), int(at_s.max() // _HOUR_S) + 1)
        for hour in hours:
            rng = np.random.default_rng((self.seed, _BURSTS, hour))
            for _ in range(int(rng.poisson(s.bursts_per_hour))):
                start_s = (hour + rng.random()) * _HOUR_S
                length_s = min(s.burst_s * rng.uniform(0.5, 1.5), _HOUR_S)
                height = 1 + (s.burst_factor - 1) * rng.uniform(0.4, 1.0)
                # A crowd gathers within a tenth of its length and leaves slowly.
                through = (at_s - start_s) / length_s
                shape = np.clip(np.minimum(through * 10, (1 - through) * 2), 0, 1)
                factor = np.maximum(factor, 1 + (height - 1) * shape)
        return factor

    def _draw_block(self, block: int) -> Arrivals:
        rng = np.random.default_rng((self.seed, _ARRIVALS, block))
        seconds = block * BLOCK_S + np.arange(BLOCK_S, dtype=np.float64)
        counts = rng.poisson(self.rate(seconds + 0.5))
        at_s = np.sort(np.repeat(seconds, counts) + rng.random(int(counts.sum())))
        # A draw of 1 - 2**-53 may round up to the next block's first instant.
        at_s = np.minimum(at_s, math.nextafter(float((block + 1) * BLOCK_S), 0.0))
        longer = 1 + self.shape.prompt_drift * np.sin(2 * np.pi * at_s / (3 * self.shape.period_s))
        prompt = self.shape.prompt.draw(rng, longer)
        return Arrivals(at_s, prompt, self.shape.output.draw(rng, np.ones_like(at_s)))
