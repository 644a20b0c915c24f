"""Request loads as a young workload shows them: counts by chance about a rate that wanders, steps, ramps or jumps.

At steps of seconds most of what a short context shows is the chance of counting; what goes on is the rate behind it.
"""

from __future__ import annotations

import numpy as np

from model.training.synthetic.components import Array, autoregression, regimes, smoothed, unit


def draw_loads(rng: np.random.Generator, groups: int, rows: int, step_s: float) -> Array:
    """Demand of several workloads [groups, rows, 3], never negative."""
    log_mean = rng.uniform(np.log(0.3), np.log(100), (groups, 1))
    log_rate = log_mean + _course(rng, groups, rows, step_s)
    requests = np.exp(np.clip(log_rate, -6, 8)) * step_s
    # Arrivals come more in clumps than by chance alone where clients send several at a time.
    clump = np.where(rng.random((groups, 1)) < 0.5, 1.0, np.exp(rng.uniform(0, np.log(12), (groups, 1))))
    counts = (rng.poisson(requests / clump) * clump).astype(np.float64)
    prompt = _tokens(rng, counts, rng.uniform(4, 9, (groups, 1)))
    asked = _tokens(rng, counts, rng.uniform(3, 7.5, (groups, 1)))
    # Output tokens come while requests are served: for seconds or a minute.
    output = smoothed(asked, np.exp(-step_s / np.exp(rng.uniform(np.log(2), np.log(60), groups))))
    demand: Array = np.stack((counts, prompt, output), axis=-1)
    return demand / step_s


def _course(rng: np.random.Generator, groups: int, rows: int, step_s: float) -> Array:
    """Logarithm of the rate about its mean."""

    def size(chance: float, least: float, most: float) -> Array:
        present = rng.random((groups, 1)) < chance
        return np.where(present, np.exp(rng.uniform(np.log(least), np.log(most), (groups, 1))), 0.0)

    time = np.arange(rows)
    # Wandering: a random walk that comes back after minutes or hours, so much per minute.
    keep = np.exp(-step_s / np.exp(rng.uniform(np.log(60), np.log(14_400), (groups, 1))))
    shocks = rng.normal(size=(groups, rows)) * np.sqrt(1 - keep**2)
    wander, level = np.empty((groups, rows)), rng.normal(size=(groups, 1))
    for t in range(rows):
        level = keep * level + shocks[:, t : t + 1]
        wander[:, t] = level[:, 0]
    course = size(0.85, 0.03, 0.6) * wander
    course += size(0.25, 0.05, 0.5) * unit(autoregression(rng, groups, rows))
    course += size(0.3, 0.1, 0.8) * regimes(rng, groups, rows)  # stages of a test, releases, failovers
    slope = rng.normal(size=(groups, 1)) / 1_800 * step_s
    course += size(0.3, 0.2, 1.5) * slope * (time - rows / 2)
    period = np.exp(rng.uniform(np.log(120), np.log(7_200), (groups, 1))) / step_s
    course += size(0.2, 0.05, 0.6) * np.sin(2 * np.pi * (time / period + rng.random((groups, 1))))
    jump = rng.integers(0, rows, (groups, 1))
    ramp = np.exp(rng.uniform(np.log(1), np.log(120), (groups, 1))) / step_s
    stay = np.exp(rng.uniform(np.log(60), np.log(3_600), (groups, 1))) / step_s
    since = time - jump
    shape = np.clip(since / np.maximum(ramp, 1e-9), 0, 1) * np.exp(-np.maximum(since - stay, 0) / (0.3 * stay))
    return course + size(0.15, 0.3, 1.8) * shape


def _tokens(rng: np.random.Generator, counts: Array, log_size: Array) -> Array:
    """Tokens of that many requests, whose lengths are lognormal."""
    sigma = rng.uniform(0.1, 1.3, log_size.shape)
    spread = np.sqrt(np.expm1(sigma**2) / np.maximum(counts, 1))
    return counts * np.exp(log_size) * np.maximum(1 + spread * rng.normal(size=counts.shape), 0.02)
