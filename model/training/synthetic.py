"""Synthetic telemetry for training: parts of courses, links from courses to indicators, and batches of examples.

A course is a weighted sum of parts: seasons, cycles, motifs, autoregressions, drifts, regimes, bursts. A link turns the
course into telemetry, such as counts, saturated ratios or hopping counters. All draws come from one seeded generator.
Arrays are [series, rows] unless stated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.contract import COARSE_ROWS, ContextBatch
from model.network.spec import MAX_HORIZON
from model.training.patterns import TIMELESS, Patterns, jobs

# Parts of courses: each is [series, rows] of about unit size.


Array = NDArray[np.float64]


def unit(x: Array) -> Array:
    """The series with mean 0 and deviation 1; a constant one becomes 0."""
    x = x - x.mean(axis=1, keepdims=True)
    deviation = x.std(axis=1, keepdims=True)
    return x / np.where(deviation > 1e-9, deviation, 1.0)


def season(rng: np.random.Generator, num: int, rows: int, day_rows: float, first_day: float) -> Array:
    """A daily course of a few harmonics, different at week ends, whose amplitude changes slowly."""
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
    """A sine, sawtooth or square wave of any period, for some with a wandering phase."""
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


# Request loads of young workloads: Poisson counts about a rate that wanders, steps, ramps or jumps.
#
# At steps of seconds the counting noise dominates a short context; the rate behind it is what continues.


def draw_loads(rng: np.random.Generator, groups: int, rows: int, step_s: float) -> Array:
    """Demand of several workloads [groups, rows, 3], never negative."""
    log_mean = rng.uniform(np.log(0.3), np.log(100), (groups, 1))
    log_rate = log_mean + _draw_load_rate(rng, groups, rows, step_s)
    requests = np.exp(np.clip(log_rate, -6, 8)) * step_s
    # Arrivals come more in clumps than by chance alone where clients send several at a time.
    clump = np.where(rng.random((groups, 1)) < 0.5, 1.0, np.exp(rng.uniform(0, np.log(12), (groups, 1))))
    counts = (rng.poisson(requests / clump) * clump).astype(np.float64)
    prompt = _tokens(rng, counts, rng.uniform(4, 9, (groups, 1)))
    requested_tokens = _tokens(rng, counts, rng.uniform(3, 7.5, (groups, 1)))
    # Output tokens come while requests are served: for seconds or a minute.
    output = smoothed(requested_tokens, np.exp(-step_s / np.exp(rng.uniform(np.log(2), np.log(60), groups))))
    demand: Array = np.stack((counts, prompt, output), axis=-1)
    return demand / step_s


def _draw_load_rate(rng: np.random.Generator, groups: int, rows: int, step_s: float) -> Array:
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


_LINKS = ("linear", "exponential", "rectified", "counts", "saturated", "hopping", "rounded", "switched", "powered")
_SHARES = (0.26, 0.2, 0.07, 0.1, 0.1, 0.06, 0.07, 0.08, 0.06)


def draw_groups(
    rng: np.random.Generator, groups: int, indicators: int, rows: int, day_rows: float | None, first_day: float = 0.0
) -> Array:
    """Telemetry of several workloads.

    Args:
        rng: source of all draws.
        groups, indicators, rows: shape of the result.
        day_rows: rows in a day; None if a series is too short to show a daily course.
        first_day: day of the week of row 0, with the time of day as its fraction.

    Returns:
        [groups, rows, indicators].
    """
    num = groups * indicators
    own = _course(rng, num, rows, day_rows, first_day)
    if indicators > 1:
        shared = np.repeat(_course(rng, groups, rows, day_rows, first_day), indicators, axis=0)
        share = np.where(rng.random((num, 1)) < 0.75, rng.beta(2, 1, (num, 1)), 0.0)
        sign = np.where(rng.random((num, 1)) < 0.9, 1.0, -1.0)
        own = unit(share * sign * delayed(rng, shared) + (1 - share) * own)
    out = _linked(rng, own)
    return out.reshape(groups, indicators, rows).transpose(0, 2, 1)


def _course(rng: np.random.Generator, num: int, rows: int, day_rows: float | None, first_day: float) -> Array:
    """A course: the sum of parts with random weights, scaled to unit size."""

    def weight(chance: float, size: float = 1.0) -> Array:
        present = rng.random((num, 1)) < chance
        return np.where(present, size * np.exp(rng.normal(0, 0.8, (num, 1))), 0.0)

    x = weight(0.85) * autoregression(rng, num, rows) + weight(0.25, 0.7) * autoregression(rng, num, rows)
    if day_rows is not None:
        x = x + weight(0.85, 1.6) * season(rng, num, rows, day_rows, first_day)
    x = x + weight(0.2 if day_rows is not None else 0.4) * cycle(rng, num, rows)
    x = x + weight(0.2 if day_rows is not None else 0.4, 1.4) * motif(rng, num, rows)
    x = x + weight(0.3) * drift(rng, num, rows)
    x = x + weight(0.2) * regimes(rng, num, rows)
    noise = rng.normal(size=(num, rows)) * np.exp(0.5 * autoregression(rng, num, rows) * (rng.random((num, 1)) < 0.4))
    x = unit(x + weight(0.7, 0.35) * noise)
    return unit(x + weight(0.2, 0.5) * bursts(rng, num, rows))


def _linked(rng: np.random.Generator, x: Array) -> Array:
    """Telemetry of courses: each series gets one link, noise in proportion to its size, and a scale."""
    num, rows = x.shape
    link = rng.choice(len(_LINKS), size=num, p=_SHARES)
    out = np.empty_like(x)
    for kind, name in enumerate(_LINKS):
        chosen = np.equal(link, kind)
        if chosen.any():
            out[chosen] = _LINK[name](rng, x[chosen])
    blur = np.where(rng.random((num, 1)) < 0.3, np.exp(rng.normal(-3.5, 1, (num, 1))), 0.0)
    quiet = np.isin(link, (_LINKS.index("hopping"), _LINKS.index("counts"), _LINKS.index("rounded")))[:, None]
    out = np.where(quiet, out, out * (1 + blur * rng.normal(size=(num, rows))))
    return out * np.exp(rng.normal(0, 3, (num, 1)))


def _linear(rng: np.random.Generator, x: Array) -> Array:
    offset = np.exp(rng.uniform(np.log(1.5), np.log(60), (len(x), 1)))
    y = x + offset
    return np.where(rng.random((len(x), 1)) < 0.7, np.maximum(y, 0), y)


def _exponential(rng: np.random.Generator, x: Array) -> Array:
    return np.exp(np.clip(x * rng.uniform(0.1, 1.3, (len(x), 1)), -8, 8))


def _rectified(rng: np.random.Generator, x: Array) -> Array:
    return np.maximum(x - rng.uniform(-1.0, 1.5, (len(x), 1)), 0)


def _counts(rng: np.random.Generator, x: Array) -> Array:
    rate = np.exp(rng.uniform(np.log(0.1), np.log(300), (len(x), 1)))
    mean = np.minimum(rate * np.exp(np.clip(x * rng.uniform(0.1, 0.9, (len(x), 1)), -5, 4)), 1e5)
    clumped = np.where(rng.random((len(x), 1)) < 0.4, rng.uniform(1, 8, (len(x), 1)), 1e6)
    mean = np.where(clumped < 1e6, mean * rng.gamma(np.minimum(clumped, 8), 1 / np.minimum(clumped, 8), x.shape), mean)
    counts: Array = rng.poisson(mean).astype(np.float64)
    return counts


def _saturated(rng: np.random.Generator, x: Array) -> Array:
    y = rng.uniform(0.1, 0.9, (len(x), 1)) + x * rng.uniform(0.05, 0.6, (len(x), 1))
    soft = 1 / (1 + np.exp(-4 * (y - 0.5)))
    return np.where(rng.random((len(x), 1)) < 0.6, np.clip(y, 0, 1), soft)


def _hopping(rng: np.random.Generator, x: Array) -> Array:
    """Counters of several devices that are read in turn, each with its own drift."""
    num, rows = x.shape
    devices = 6
    levels = np.exp(rng.normal(0, 1.5, (num, devices)))
    walk = np.cumsum(np.abs(rng.normal(size=(num, devices, rows))), axis=2)
    speed = np.where(rng.random((num, 1, 1)) < 0.6, np.exp(rng.normal(-8, 1.5, (num, 1, 1))), 0.0)
    counters = levels[..., None] * (1 + speed * walk)
    shares = rng.dirichlet(np.full(devices, 0.6), num)
    which = (rng.random((num, rows, 1)) > np.cumsum(shares, axis=1)[:, None, :-1]).sum(-1)
    stay = rng.random((num, rows)) < np.where(rng.random((num, 1)) < 0.4, rng.uniform(0, 0.9, (num, 1)), 0.0)
    stay[:, 0] = False
    index = np.maximum.accumulate(np.where(stay, 0, np.arange(rows)), axis=1)
    which = np.take_along_axis(which, index, axis=1)
    return np.take_along_axis(counters, which[:, None, :], axis=1)[:, 0]


def _rounded(rng: np.random.Generator, x: Array) -> Array:
    grain = np.exp(rng.uniform(np.log(0.05), np.log(1.5), (len(x), 1)))
    return np.maximum(np.round((x + rng.uniform(0.5, 6, (len(x), 1))) / grain), 0)


def _switched(rng: np.random.Generator, x: Array) -> Array:
    """A series that switches between an idle floor and a busy level with the course on top."""
    num, rows = x.shape
    on = switching(rng, num, rows)
    floor = np.where(rng.random((num, 1)) < 0.5, 0.0, rng.uniform(0.05, 0.6, (num, 1)))
    busy = 1 + rng.uniform(0, 0.3, (num, 1)) * x
    top = np.where(rng.random((num, 1)) < 0.4, 1.1, 1e9)
    return np.minimum(floor + on * np.maximum(busy, 0), top)


def _powered(rng: np.random.Generator, x: Array) -> Array:
    return np.abs(x + rng.uniform(0, 3, (len(x), 1))) ** rng.uniform(1.0, 3.0, (len(x), 1))


_LINK = {
    "linear": _linear,
    "exponential": _exponential,
    "rectified": _rectified,
    "counts": _counts,
    "saturated": _saturated,
    "hopping": _hopping,
    "rounded": _rounded,
    "switched": _switched,
    "powered": _powered,
}


# Batches of examples: contexts of the kinds that the network meets, with their futures.


_DAY_S = 86_400
_MONDAY_MS = 1_704_067_200_000  # 2024-01-01


@dataclass(frozen=True, slots=True)
class Example:
    """Contexts and their futures.

    Attributes:
        batch: B rows.
        target: float32 [B, H, N].
        observed: bool [B, H, N].
    """

    batch: ContextBatch
    target: Tensor
    observed: Tensor


@dataclass(frozen=True, slots=True)
class Setting:
    """One kind of telemetry.

    Attributes:
        step_s: sampling step.
        context: longest context in rows.
        share: of the batches.
        ring: whether a week of ten-minute means stands before few fine rows, as in live operation.
    """

    step_s: float
    context: int
    share: float
    ring: bool = False

    @property
    def day_rows(self) -> float | None:
        """Rows in a day; None if context and horizon are shorter."""
        rows = _DAY_S / self.step_s
        return rows if self.context + MAX_HORIZON > rows else None


SETTINGS = (
    Setting(600, 1008, 0.2),
    Setting(600, 288, 0.06),
    Setting(600, 96, 0.05),
    Setting(300, 2016, 0.13),
    Setting(60, 4320, 0.05),
    Setting(3600, 336, 0.03),
    Setting(60, 240, 0.07),
    Setting(10, 128, 0.07),
    Setting(1, 600, 0.08),
    Setting(1, 128, 0.05),
    Setting(5, 128, 0.07, ring=True),
    Setting(15, 128, 0.09, ring=True),
    Setting(30, 128, 0.05, ring=True),
)
_LOAD_STEPS_S, _LOAD_STEP_SHARES = (5, 10, 15, 30, 60), (0.3, 0.25, 0.25, 0.1, 0.1)
_LOAD_CONTEXT = 128
_TOKEN_SHARE = 0.8  # share of the batches of request loads that hold token counts
_INDICATORS, _INDICATOR_SHARES = (1, 2, 3, 4, 6, 8, 13), (0.34, 0.14, 0.16, 0.14, 0.1, 0.08, 0.04)
_ORIGINS = 4  # windows taken from one series
_GAP = 97
_FAMILY_SHARES = {"jobs": 0.4, "events": 0.15, "flat": 0.1, "self_exciting": 0.08, "level_shifts": 0.1, "smooth": 0.17}
# Jobs are read from fine rows alone, or from few of them with a week of ten-minute means before.
_JOB_SETTINGS = (
    Setting(600, 1008, 0.22),
    Setting(600, 512, 0.12, ring=True),
    Setting(300, 2016, 0.08),
    Setting(300, 512, 0.08, ring=True),
    Setting(60, 512, 0.2, ring=True),
    Setting(60, 128, 0.1, ring=True),
    Setting(30, 128, 0.1, ring=True),
    Setting(15, 128, 0.1, ring=True),
)
_WEEK_S = 7 * _DAY_S
_PATTERN_STEPS_S = (1, 5, 10, 15, 30, 60, 300, 600)
_PATTERN_INDICATORS, _PATTERN_INDICATOR_SHARES = (1, 2, 3), (0.6, 0.25, 0.15)
_NEAR_START_SHARE = 0.6  # of the windows of jobs and events: something begins shortly before or after the origin


def draw_example(seed: int, tokens: int = 256, loads: float = 0.0, patterns: float = 0.0) -> Example:
    """One batch of about `tokens` tokens; the same arguments give the same batch.

    Args:
        loads: probability of a batch of request loads.
        patterns: probability of a batch of one of the families of `model.training.patterns`.
    """
    if loads > 0 or patterns > 0:
        chance = np.random.default_rng((20_261_123, seed))
        kind = chance.random()
        if kind < loads:
            return _loads(chance, tokens)
        if kind < loads + patterns:
            return _patterned(chance, tokens)
    rng = np.random.default_rng((20_240_801, seed))
    setting = SETTINGS[rng.choice(len(SETTINGS), p=[s.share for s in SETTINGS])]
    n = int(rng.choice(_INDICATORS, p=_INDICATOR_SHARES))
    groups = max(1, tokens // (n * _ORIGINS))
    start_day = float(rng.random() * 7)
    if setting.ring:
        values, ring, origin_ms = _live(rng, setting, groups, n, start_day)
        num_demand = ring.shape[2]
    else:
        series = draw_groups(rng, groups, n, _rows(setting), setting.day_rows, start_day)
        values, origin_ms = _windows(series, setting, start_day)
        num_demand = int(rng.integers(0, n + 1))
        ring = np.zeros((len(values), 0, num_demand))
    return _example(rng, setting, values, ring, origin_ms, num_demand)


def _loads(rng: np.random.Generator, tokens: int) -> Example:
    """A batch of demand indicators alone, of workloads less than an hour old."""
    setting = Setting(float(rng.choice(_LOAD_STEPS_S, p=_LOAD_STEP_SHARES)), _LOAD_CONTEXT, 0.0)
    n = 3 if rng.random() < _TOKEN_SHARE else 1
    groups = max(1, tokens // (n * _ORIGINS))
    series = draw_loads(rng, groups, _rows(setting), setting.step_s)[..., :n]
    values, origin_ms = _windows(series, setting, float(rng.random() * 7))
    return _example(rng, setting, values, np.zeros((len(values), 0, n)), origin_ms, n)


def _patterned(rng: np.random.Generator, tokens: int) -> Example:
    """A batch of one family of patterns; its second and third indicators follow the first."""
    family = str(rng.choice(list(_FAMILY_SHARES), p=list(_FAMILY_SHARES.values())))
    n = int(rng.choice(_PATTERN_INDICATORS, p=_PATTERN_INDICATOR_SHARES))
    groups = max(1, tokens // (n * _ORIGINS))
    first_day = int(rng.integers(0, 7))
    if family == "jobs":
        setting = _JOB_SETTINGS[rng.choice(len(_JOB_SETTINGS), p=[s.share for s in _JOB_SETTINGS])]
        earliest = round(_WEEK_S / setting.step_s)
        drawn = jobs(rng, groups, earliest + round(_DAY_S / setting.step_s), setting.step_s, first_day)
    else:
        length = round(np.exp(rng.uniform(np.log(16), np.log(128 if rng.random() < 0.7 else 600))))
        setting = Setting(float(rng.choice(_PATTERN_STEPS_S)), length, 0.0)
        earliest, drawn = length, TIMELESS[family](rng, groups, _rows(setting))
    series = _followed(rng, drawn.values, n)
    if family != "self_exciting":  # counts stay whole numbers
        series *= np.exp(rng.normal(0, 3, (groups, 1, n)))
    group, origin = _origins(rng, drawn, earliest)
    span = origin[:, None] + np.arange(-setting.context, MAX_HORIZON)
    values = series[group[:, None], span]
    ring = _ring_before(series, group, origin, setting) if setting.ring else np.zeros((len(values), 0, n))
    origin_ms = _MONDAY_MS + (first_day * _DAY_S * 1000 + origin * setting.step_s * 1000).astype(np.int64)
    return _example(rng, setting, values, ring, origin_ms, n if setting.ring else int(rng.integers(0, n + 1)))


def _followed(rng: np.random.Generator, first: Array, n: int) -> Array:
    """The first indicator with n - 1 that follow it smoothed, raised by an idle floor and noisy, [groups, rows, n]."""
    parts = [first]
    for _ in range(n - 1):
        x = delayed(rng, first) if first.shape[1] < _WEEK_S / 600 else first
        floor = rng.uniform(0, 1, (len(first), 1)) * first.mean(axis=1, keepdims=True)
        noise = np.exp(rng.normal(-4, 1, (len(first), 1))) * rng.normal(size=first.shape)
        parts.append(np.maximum((x + floor) * (1 + noise), 0))
    return np.stack(parts, axis=-1)


def _origins(rng: np.random.Generator, drawn: Patterns, earliest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The series and the first row ahead of each window; many origins lie shortly before or after a start."""
    num, rows = drawn.values.shape
    group = np.tile(np.arange(num), _ORIGINS)
    origin = rng.integers(earliest, rows - MAX_HORIZON + 1, len(group))
    for w in np.flatnonzero(rng.random(len(group)) < _NEAR_START_SHARE):
        starts = np.flatnonzero(drawn.starts[group[w], earliest:]) + earliest
        if len(starts):
            near = int(rng.choice(starts)) + int(rng.integers(-MAX_HORIZON + 8, 17))
            origin[w] = min(max(near, earliest), rows - MAX_HORIZON)
    return group, origin


def _ring_before(series: Array, group: NDArray[np.int64], origin: NDArray[np.int64], setting: Setting) -> Array:
    """The ten-minute means before each origin, [windows, 1008, indicators]."""
    size = round(600 / setting.step_s)
    groups, rows, n = series.shape
    blocks = rows // size
    means = series[:, : blocks * size].reshape(groups, blocks, size, n).mean(axis=2)
    index = (origin // size)[:, None] + np.arange(-COARSE_ROWS, 0)
    return np.asarray(means[group[:, None], index])


def _rows(setting: Setting) -> int:
    """Rows of a series from which all its windows are taken."""
    return setting.context + MAX_HORIZON + (_ORIGINS - 1) * _GAP


def _windows(series: Array, setting: Setting, start_day: float) -> tuple[Array, NDArray[np.int64]]:
    """Windows of the series, and their origins in milliseconds."""
    length = setting.context + MAX_HORIZON
    values = np.concatenate([series[:, k * _GAP : k * _GAP + length] for k in range(_ORIGINS)])
    ends = np.repeat(np.arange(_ORIGINS) * _GAP + setting.context, len(series))
    return values, _MONDAY_MS + ((start_day * _DAY_S + ends * setting.step_s) * 1000).astype(np.int64)


def _live(
    rng: np.random.Generator, setting: Setting, groups: int, n: int, start_day: float
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Fine rows with fast movements, the week of ten-minute means before them, and the origins in milliseconds."""
    rows = setting.context + MAX_HORIZON
    groups *= _ORIGINS
    span = int(np.ceil(rows * setting.step_s / 600)) + 3
    slow = draw_groups(rng, groups, n, COARSE_ROWS + span, 144.0, start_day)
    fast = draw_groups(rng, groups, n, rows, None)
    # Row r of the ring covers [600 r, 600 r + 600); the origin lies somewhere in the row after the newest.
    into = rng.integers(0, max(1, int(600 / setting.step_s)), groups) * setting.step_s
    origin_s = COARSE_ROWS * 600 + into
    at = (origin_s[:, None] + (np.arange(-setting.context, MAX_HORIZON) + 0.5) * setting.step_s) / 600 - 0.5
    low = np.floor(at).astype(int)
    share = (at - low)[..., None]
    pick = np.arange(groups)[:, None]
    course = slow[pick, low] * (1 - share) + slow[pick, low + 1] * share
    speed = np.exp(rng.normal(-1.5, 1, (groups, 1, n)))
    size = slow.std(axis=1, keepdims=True) * speed + 0.02 * np.abs(course).mean(axis=1, keepdims=True)
    flat = fast.transpose(0, 2, 1).reshape(groups * n, rows)
    moves = unit(flat).reshape(groups, n, rows).transpose(0, 2, 1)
    values = course + size * moves
    values = np.where(slow.min(axis=1, keepdims=True) >= 0, np.maximum(values, 0), values)
    num_demand = int(rng.integers(1, min(n, 4) + 1))
    ring = slow[:, :COARSE_ROWS, :num_demand]
    return values, ring, _MONDAY_MS + ((start_day * _DAY_S + origin_s) * 1000).astype(np.int64)


def _example(
    rng: np.random.Generator,
    setting: Setting,
    values: Array,
    ring: Array,
    origin_ms: NDArray[np.int64],
    num_demand: int,
) -> Example:
    b, rows, n = values.shape
    length = rows - MAX_HORIZON
    if rng.random() < 0.35:  # younger workloads
        length = int(np.exp(rng.uniform(np.log(min(64, length)), np.log(length))))
        values = values[:, -(length + MAX_HORIZON) :]
    observed = np.ones((b, length, n), dtype=bool)
    sparse = rng.random((b, 1, n)) < 0.15
    observed &= ~(sparse & (rng.random((b, length, n)) < rng.uniform(0.01, 0.2)))
    gap = rng.random((b, 1, n)) < 0.07
    start = rng.integers(0, length, (b, 1, n))
    time = np.arange(length)[None, :, None]
    observed &= ~(gap & (time >= start) & (time < start + rng.integers(1, 40, (b, 1, n))))
    ring_observed = np.ones(ring.shape, dtype=bool)
    if ring.shape[1]:
        age = np.where(rng.random((b, 1, 1)) < 0.5, COARSE_ROWS, rng.integers(0, COARSE_ROWS, (b, 1, 1)))
        ring_observed &= np.arange(ring.shape[1])[None, :, None] >= ring.shape[1] - age
    levels = np.concatenate((np.ones(num_demand), np.sort(rng.integers(2, 4, n - num_demand)))).astype(np.int64)
    context = np.where(observed, values[:, :length], 0.0)
    floor = values.min(axis=(0, 1)) >= 0
    batch = ContextBatch(
        item_ids=tuple(f"synthetic/{k}" for k in range(b)),
        origin_ts_ms=torch.from_numpy(np.asarray(origin_ms, dtype=np.int64)),
        step_ms=round(setting.step_s * 1000),
        values=torch.from_numpy(context.astype(np.float32)),
        observed=torch.from_numpy(observed),
        coarse=torch.from_numpy(np.where(ring_observed, ring, 0.0).astype(np.float32)),
        coarse_observed=torch.from_numpy(ring_observed),
        levels=torch.from_numpy(levels),
        indicators=tuple(f"indicator_{k}" for k in range(n)),
        lower=torch.from_numpy(np.where(floor, 0.0, -np.inf).astype(np.float32)),
        upper=torch.full((n,), torch.inf),
    )
    target = torch.from_numpy(values[:, length:].astype(np.float32))
    return Example(batch, target, torch.ones_like(target, dtype=torch.bool))
