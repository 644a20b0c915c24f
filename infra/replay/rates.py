"""Piecewise constant arrival rates, turned into Poisson arrivals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infra.simulator.arrivals import MAX_TOKENS, Arrivals, TraceError

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
        drawn = np.exp(mu + self.sigma * rng.standard_normal(count))
        return np.clip(np.rint(drawn), 1, MAX_TOKENS).astype(np.int64)


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
