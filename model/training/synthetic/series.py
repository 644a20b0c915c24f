"""Groups of synthetic indicators: demand, and what follows it, with the links that make telemetry of a course."""

from __future__ import annotations

import numpy as np

from model.training.synthetic.components import (
    Array,
    autoregression,
    bursts,
    cycle,
    delayed,
    drift,
    motif,
    regimes,
    season,
    switching,
    unit,
)

_LINKS = ("linear", "exponential", "rectified", "counts", "saturated", "hopping", "rounded", "switched", "powered")
_SHARES = (0.26, 0.2, 0.07, 0.1, 0.1, 0.06, 0.07, 0.08, 0.06)


def draw_groups(
    rng: np.random.Generator, groups: int, indicators: int, rows: int, day_rows: float | None, first_day: float = 0.0
) -> Array:
    """Telemetry of several workloads.

    Args:
        rng: everything is drawn from it.
        groups, indicators, rows: size of the answer.
        day_rows: rows in a day; None = no daily course is visible at this length.
        first_day: day of the week of row 0, and time of the day as its fraction.

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
    """A sum of parts with random weights, a few of them large, of unit size."""

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
    """From courses to telemetry: each series gets one link, then noise that grows with its size, then a unit."""
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
    """Readings of several devices in turn: each drifts on its own."""
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
    """Idle and busy: a floor, a busy level, and the course on top of it."""
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
