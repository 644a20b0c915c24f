"""Parts of which synthetic telemetry is made; each is [series, rows] of about unit size, drawn from one generator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def unit(x: Array) -> Array:
    """Each series with mean 0 and deviation 1; a still one stays still."""
    x = x - x.mean(axis=1, keepdims=True)
    deviation = x.std(axis=1, keepdims=True)
    return x / np.where(deviation > 1e-9, deviation, 1.0)


def season(rng: np.random.Generator, num: int, rows: int, day_rows: float, first_day: float) -> Array:
    """A daily course of a few harmonics, weaker or stronger at week ends, which turns slowly."""
    time = np.arange(rows) / day_rows + first_day
    out = np.zeros((num, rows))
    count = rng.integers(1, 7, size=(num, 1))
    for k in range(1, 7):
        size = rng.normal(size=(num, 1)) / k ** rng.uniform(0.5, 1.5, size=(num, 1)) * (k <= count)
        phase = rng.uniform(0, 2 * np.pi, size=(num, 1))
        out += size * np.sin(2 * np.pi * k * time + phase)
    peak = rng.random((num, 1)) < 0.25  # working hours: a plateau instead of waves
    start, length = rng.random((num, 1)), rng.uniform(0.15, 0.6, (num, 1))
    plateau = (((time - start) % 1.0) < length).astype(float)
    out = unit(np.where(peak, 0.5 * out + 2 * plateau, out))
    weekend = (np.floor(time) % 7) >= 5
    damped = np.where(rng.random((num, 1)) < 0.5, rng.uniform(0.2, 1.0, (num, 1)), 1.0)
    lifted = np.where(rng.random((num, 1)) < 0.4, rng.normal(0, 0.8, (num, 1)), 0.0)
    out = np.where(weekend, out * damped + lifted, out)
    growth = np.cumsum(rng.normal(size=(num, rows)), axis=1) / np.sqrt(rows)  # amplitude changes from day to day
    return unit(out * np.exp(0.3 * growth * (rng.random((num, 1)) < 0.5)))


def cycle(rng: np.random.Generator, num: int, rows: int) -> Array:
    """A free period: sine, saw or square, with a wandering clock for some."""
    period = np.exp(rng.uniform(np.log(5), np.log(400), (num, 1)))
    wander = np.cumsum(rng.normal(size=(num, rows)), axis=1) * np.where(rng.random((num, 1)) < 0.5, 0.03, 0.0)
    phase = np.arange(rows) / period + rng.random((num, 1)) + wander
    duty = rng.uniform(0.1, 0.9, (num, 1))
    kind = rng.integers(0, 3, size=(num, 1))
    waves = np.where(
        kind == 0, np.sin(2 * np.pi * phase), np.where(kind == 1, phase % 1.0, ((phase % 1.0) < duty) * 1.0)
    )
    return unit(waves)


def motif(rng: np.random.Generator, num: int, rows: int) -> Array:
    """A course that repeats, as the steps of a training run or a scheduled job do: phases, or pulses over a floor.

    Some clocks wander, some repetitions are larger than others, and some runs pause.
    """
    out = np.zeros((num, rows))
    for k in range(num):
        period = int(np.exp(rng.uniform(np.log(4), np.log(160))))
        if rng.random() < 0.5:  # phases of their own levels
            edges = np.sort(rng.random(rng.integers(1, min(period, 8))))
            shape = rng.normal(size=len(edges) + 1)[np.searchsorted(edges, np.arange(period) / period)]
        else:  # pulses
            shape = np.zeros(period)
            where = rng.integers(0, period, rng.integers(1, 4))
            shape[where] = 1 + rng.pareto(2.5, len(where))
        shape = shape + 0.2 * rng.normal() * rng.normal(size=period)
        clock = np.cumsum(1 + (rng.random() < 0.4) * 0.3 * rng.normal() * rng.normal(size=rows)) + rng.integers(period)
        turn = np.floor(clock / period).astype(int) - int(clock.min() // period)
        size = np.exp((rng.random() < 0.5) * 0.3 * rng.normal(size=turn.max() + 1))
        pause = rng.random(turn.max() + 1) < (rng.random() < 0.25) * 0.15
        out[k] = shape[clock.astype(int) % period] * size[turn] * ~pause[turn]
    return unit(out)


def autoregression(rng: np.random.Generator, num: int, rows: int) -> Array:
    """AR(1) and AR(2), up to random walks, driven by normal or heavy-tailed noise."""
    noise = rng.normal(size=(num, rows))
    heavy = rng.random((num, 1)) < 0.35
    noise = np.where(heavy, rng.standard_t(3, size=(num, rows)) / np.sqrt(3), noise)
    first = 1 - np.exp(rng.uniform(np.log(0.002), np.log(1.0), num))
    second = np.where(rng.random(num) < 0.3, rng.uniform(0.0, 0.95, num), 0.0)
    a, b = first + second, -first * second
    x = np.zeros((num, rows))
    before, last = np.zeros(num), np.zeros(num)
    for t in range(rows):
        value = a * last + b * before + noise[:, t]
        before, last = last, value
        x[:, t] = value
    return unit(x)


def drift(rng: np.random.Generator, num: int, rows: int) -> Array:
    """A random walk, or a straight trend."""
    walk = np.cumsum(rng.normal(size=(num, rows)), axis=1)
    line = np.arange(rows)[None, :] * rng.choice([-1.0, 1.0], (num, 1)) * np.ones((num, 1))
    return unit(np.where(rng.random((num, 1)) < 0.7, walk, line))


def regimes(rng: np.random.Generator, num: int, rows: int) -> Array:
    """Levels that hold for a while: few levels that return, or ever new ones."""
    rate = np.exp(rng.uniform(np.log(1 / 600), np.log(1 / 12), (num, 1)))
    change = rng.random((num, rows)) < rate
    change[:, 0] = True
    index = np.maximum.accumulate(np.where(change, np.arange(rows), 0), axis=1)
    few = rng.normal(size=(num, 3))[np.arange(num)[:, None], rng.integers(0, 3, (num, rows))]
    fresh = np.where(rng.random((num, 1)) < 0.5, few, rng.normal(size=(num, rows)))
    return unit(np.take_along_axis(fresh, index, axis=1))


def bursts(rng: np.random.Generator, num: int, rows: int) -> Array:
    """Rare peaks of Pareto height that decay."""
    rate = np.exp(rng.uniform(np.log(1 / 500), np.log(1 / 20), (num, 1)))
    height = (rng.random((num, rows)) < rate) * np.minimum(rng.pareto(2.0, (num, rows)) + 0.5, 15)
    keep = np.exp(-1 / np.exp(rng.uniform(np.log(0.3), np.log(30), num)))
    x, level = np.zeros((num, rows)), np.zeros(num)
    for t in range(rows):
        level = keep * level + height[:, t]
        x[:, t] = level
    return x


def switching(rng: np.random.Generator, num: int, rows: int) -> Array:
    """On and off: idle and busy stretches, of random or of nearly fixed length."""
    out = np.empty((num, rows))
    for k in range(num):
        on, off = np.exp(rng.uniform(np.log(3), np.log(200), 2))
        shape = rng.choice([1.0, 40.0])  # exponential, or regular
        lengths = rng.gamma(shape, np.array([on, off])[np.arange(400) % 2] / shape).astype(int) + 1
        edges = np.searchsorted(np.cumsum(lengths), np.arange(rows) + rng.integers(0, int(on + off)), side="right")
        out[k] = edges % 2
    return out


def smoothed(x: Array, keep: Array) -> Array:
    """Exponential averages of each series from its first value on; `keep` [series] of the one before stays."""
    out, level = np.empty_like(x), x[:, 0].copy()
    for t in range(x.shape[1]):
        level = keep * level + (1 - keep) * x[:, t]
        out[:, t] = level
    return out


def delayed(rng: np.random.Generator, x: Array) -> Array:
    """Each series smoothed and shifted into the past by a few rows: how one indicator follows another."""
    num, rows = x.shape
    out = smoothed(x, np.where(rng.random(num) < 0.5, rng.uniform(0, 0.9, num), 0.0))
    lag = np.where(rng.random(num) < 0.5, 0, rng.integers(1, 12, num))
    index = np.maximum(np.arange(rows)[None, :] - lag[:, None], 0)
    return np.take_along_axis(out, index, axis=1)


# Request loads as a young workload shows them: counts by chance about a rate that wanders, steps, ramps or jumps.
#
# At steps of seconds most of what a short context shows is the chance of counting; what goes on is the rate behind it.


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
