"""Arrivals as columns, and the loads that they come from: recorded, of a rate, or generated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MAX_TOKENS = 10_000_000


class TraceError(ValueError):
    """A trace that cannot be used; the message names file, line, column and remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests in order of arrival: float64 seconds, int64 prompt and output tokens, all of one length."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrival_s)

    def between(self, start_s: float, end_s: float) -> Arrivals:
        """Those in `[start_s, end_s)`."""
        first, last = np.searchsorted(self.arrival_s, (start_s, end_s), side="left")
        return Arrivals(self.arrival_s[first:last], self.prompt_tokens[first:last], self.output_tokens[first:last])

    @staticmethod
    def empty() -> Arrivals:
        return Arrivals(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def joined(parts: list[Arrivals]) -> Arrivals:
        """Consecutive parts as one."""
        if not parts:
            return Arrivals.empty()
        return Arrivals(
            np.concatenate([p.arrival_s for p in parts]),
            np.concatenate([p.prompt_tokens for p in parts]),
            np.concatenate([p.output_tokens for p in parts]),
        )


class ArrivalSource(Protocol):
    """Where a workload's requests come from. Seconds since the start of the simulation.

    Attributes:
        end_s: after which nothing arrives; infinity for a generator.
        start_ts_ms: the instant of second 0 when the source knows it.
    """

    @property
    def end_s(self) -> float: ...

    @property
    def start_ts_ms(self) -> int | None: ...

    def between(self, start_s: float, end_s: float) -> Arrivals:
        """The requests in `[start_s, end_s)`, the same however the time is cut."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A recorded load.

    Attributes:
        start_ts_ms: the wall time of second 0; None when the file has none.
        num_without_tokens: requests of the file without prompt or answer, which are not among the arrivals.
    """

    name: str
    arrivals: Arrivals
    start_ts_ms: int | None = None
    num_without_tokens: int = 0

    @property
    def end_s(self) -> float:
        """Just after the last arrival."""
        return math.nextafter(float(self.arrivals.arrival_s[-1]), math.inf)

    def between(self, start_s: float, end_s: float) -> Arrivals:
        return self.arrivals.between(start_s, end_s)


# Poisson arrivals at piecewise constant rates.


DAY_S = 86_400.0
MOST_SIGMA = 5.0  # of the logarithm; beyond, a mean says nothing of what is drawn
_MOST_REQUESTS = 50_000_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts: `mean`, and `sigma` of the logarithm (0 = always the mean, rounded)."""

    mean: float
    sigma: float = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        if self.sigma <= 0:
            return np.full(count, max(1, round(self.mean)), dtype=np.int64)
        mu = math.log(self.mean) - self.sigma**2 / 2
        values = np.exp(mu + self.sigma * rng.standard_normal(count))
        return np.clip(np.rint(values), 1, MAX_TOKENS).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RateProfile:
    """A rate over time: segment k holds on `[edges_s[k], edges_s[k + 1])`.

    Attributes:
        edges_s: float64 [K + 1], from 0.
        rates_rps: float64 [K].
        prompt, output: K token laws.
    """

    name: str
    edges_s: NDArray[np.float64]
    rates_rps: NDArray[np.float64]
    prompt: tuple[Tokens, ...]
    output: tuple[Tokens, ...]

    @property
    def end_s(self) -> float:
        return float(self.edges_s[-1])

    @property
    def mean_rps(self) -> float:
        return float(np.average(self.rates_rps, weights=np.diff(self.edges_s)))

    def thinned(self, mean_rps: float) -> RateProfile:
        """The same shape with another mean rate."""
        scale = mean_rps / self.mean_rps if self.mean_rps > 0 else 1.0
        return RateProfile(self.name, self.edges_s, self.rates_rps * scale, self.prompt, self.output)

    def between(self, start_s: float, end_s: float) -> RateProfile:
        """The part of `[start_s, end_s)`, from second 0 on."""
        inside = [k for k in range(len(self.rates_rps)) if self.edges_s[k + 1] > start_s and self.edges_s[k] < end_s]
        edges = np.clip(np.append(self.edges_s[inside], self.edges_s[inside[-1] + 1]), start_s, end_s) - start_s
        return RateProfile(
            self.name, edges, self.rates_rps[inside], tuple(self.prompt[k] for k in inside),
            tuple(self.output[k] for k in inside),
        )  # fmt: skip

    def refuse_too_many(self) -> None:
        """Let pass what can be drawn and held.

        Raises:
            TraceError: it cannot.
        """
        expected = float(np.sum(self.rates_rps * np.diff(self.edges_s)))
        if not expected <= _MOST_REQUESTS:
            raise TraceError(
                f"{self.name} brings {expected:.3g} requests, more than {_MOST_REQUESTS:,}: thin it with --mean-rate"
            )

    def arrivals(self, seed: int) -> Arrivals:
        """Poisson arrivals of this rate; the same seed gives the same ones."""
        parts = []
        for k, rate in enumerate(self.rates_rps):
            rng = np.random.default_rng([seed, k])
            low, high = float(self.edges_s[k]), float(self.edges_s[k + 1])
            count = int(rng.poisson(rate * (high - low)))
            at_s = np.sort(rng.uniform(low, high, count))
            parts.append(Arrivals(at_s, self.prompt[k].draw(rng, count), self.output[k].draw(rng, count)))
        return Arrivals.joined(parts)


# Generated load: a daily shape, noise, bursts, drift and lognormal token lengths, the same however time is cut.
#
# Every block of simulated time draws from its own generator, keyed by (seed, block), so a workload needs no memory and
# a run may start anywhere.


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
