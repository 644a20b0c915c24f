"""Synthetic telemetry with patterns that a sum of random parts hardly ever shows, one family per function.

Jobs at fixed times, events of one shape, flat series, self-exciting counts, level shifts, and smooth series. Every
family returns telemetry [series, rows] that is never negative, and the rows at which its patterns begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rng = np.random.Generator

_DAY_MIN: Final = 1_440
_WEEK_DAYS: Final = 7
_ROUND_MIN, _ROUND_SHARES = (1, 5, 10, 15, 30, 60), (0.15, 0.15, 0.25, 0.15, 0.15, 0.15)
_LENGTHS_MIN: Final = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180)
_PERIODS_H, _PERIOD_SHARES = (24, 1, 2, 3, 4, 6, 8, 12), (0.72, 0.04, 0.04, 0.04, 0.04, 0.04, 0.04, 0.04)


class Patterns(NamedTuple):
    """Series of one family.

    Attributes:
        values: float64 [series, rows], never negative.
        starts: bool [series, rows], rows at which something begins; all False where nothing does.
    """

    values: Array
    starts: NDArray[np.bool_]


def jobs(rng: Rng, num: int, rows: int, step_s: float, first_day: int) -> Patterns:
    """A base load with jobs that run at the same time of day, of chosen weekdays, or every few hours.

    Some jobs are skipped at times, start with jitter, or lower the load. Some series also have events at random times,
    which do not return the day after.

    Args:
        rng: source of all draws.
        num, rows: shape of the result; row 0 is midnight.
        step_s: seconds between rows.
        first_day: weekday of row 0, 0 = Monday.
    """
    noise = np.exp(rng.uniform(np.log(0.005), np.log(0.3), (num, 1))) * rng.normal(size=(num, rows))
    base = np.maximum(_daily_course(rng, num, rows, step_s) * (1 + noise), 0)
    raised, lowered = np.zeros((num, rows)), np.ones((num, rows))
    starts = np.zeros((num, rows), dtype=bool)
    for k in range(num):
        for _ in range(rng.integers(1, 4)):
            _run_job(rng, raised[k], lowered[k], starts[k], step_s, _job_times(rng, rows, step_s, first_day))
        if rng.random() < 0.4:
            once = np.sort(rng.uniform(0, rows * step_s / 60, rng.integers(1, 5)))
            _run_job(rng, raised[k], lowered[k], starts[k], step_s, once)
    return Patterns((base + raised * np.maximum(1 + noise, 0)) * lowered, starts)


def _daily_course(rng: Rng, num: int, rows: int, step_s: float) -> Array:
    """A positive course of mean about 1: flat, or with a day of two harmonics, or wandering from hour to hour."""
    day = np.arange(rows) * (step_s / 86_400)
    course = np.zeros((num, rows))
    for harmonic in (1, 2):
        present = rng.random((num, 1)) < 0.5
        size = np.where(present, np.exp(rng.uniform(np.log(0.02), np.log(0.6), (num, 1))), 0.0) / harmonic
        course += size * np.sin(2 * np.pi * (harmonic * day + rng.random((num, 1))))
    hours = int(np.ceil(rows * step_s / 3600)) + 2
    walk = np.cumsum(rng.normal(size=(num, hours)), axis=1) * np.where(rng.random((num, 1)) < 0.4, 0.05, 0.0)
    hour = np.arange(rows) * (step_s / 3600)
    for k in range(num):
        course[k] += np.interp(hour, np.arange(hours), walk[k])
    level: Array = np.exp(np.clip(course, -3, 3))
    return level


def _job_times(rng: Rng, rows: int, step_s: float, first_day: int) -> Array:
    """Minutes since row 0 at which the runs of one job start."""
    minutes = rows * step_s / 60
    grain = int(rng.choice(_ROUND_MIN, p=_ROUND_SHARES))
    period = 60 * int(rng.choice(_PERIODS_H, p=_PERIOD_SHARES))
    first = int(rng.integers(0, period) // grain) * grain
    times = np.arange(first, minutes, period, dtype=np.float64)
    if period == _DAY_MIN and rng.random() < 0.25:
        weekday = (first_day + times // _DAY_MIN).astype(int) % _WEEK_DAYS
        chosen = weekday < 5 if rng.random() < 0.5 else weekday == rng.integers(0, _WEEK_DAYS)
        times = times[chosen]
    if rng.random() < 0.25:
        times = times[rng.random(len(times)) > rng.uniform(0.05, 0.4)]
    if rng.random() < 0.25:
        times = times + rng.uniform(0.5, 10) * rng.normal(size=len(times))
    return times


def _run_job(
    rng: Rng, raised: Array, lowered: Array, starts: NDArray[np.bool_], step_s: float, times_min: Array
) -> None:
    """Add one job's runs at the given minutes to `raised`, or multiply them into `lowered`."""
    length_min = float(rng.choice(_LENGTHS_MIN)) if rng.random() < 0.7 else np.exp(rng.uniform(0.7, np.log(180)))
    shape = int(rng.choice(4, p=(0.6, 0.15, 0.15, 0.1)))
    dip = rng.random() < 0.2
    height = rng.uniform(0.2, 1.0) if dip else np.exp(rng.uniform(np.log(0.2), np.log(10)))
    spread = 0.02 if rng.random() < 0.7 else 0.2
    rows = len(raised)
    for time_min in times_min:
        begin, end = time_min * 60 / step_s, (time_min + length_min) * 60 / step_s
        first, last = max(int(np.floor(begin)), 0), min(int(np.ceil(end)), rows)
        if last <= first:
            continue
        row = np.arange(first, last)
        share = np.minimum(row + 1, end) - np.maximum(row, begin)  # of the row that the run covers
        into = np.clip((row + 0.5 - begin) / max(end - begin, 1e-9), 0, 1)
        form = (np.ones_like(into), np.exp(-3 * into), into, 1 - np.abs(2 * into - 1))[shape] * np.clip(share, 0, 1)
        size = height * np.exp(spread * rng.normal())
        if dip:
            lowered[first:last] *= 1 - np.minimum(size, 1.0) * form
        else:
            raised[first:last] += size * form
        starts[first] = True


def events(rng: Rng, num: int, rows: int) -> Patterns:
    """A quiet level with events of one shape per series at random times: dips to one floor, pulses, ramps and steps."""
    noise = np.exp(rng.uniform(np.log(0.003), np.log(0.1), (num, 1))) * rng.normal(size=(num, rows))
    values, starts = np.ones((num, rows)), np.zeros((num, rows), dtype=bool)
    for k in range(num):
        length = int(np.exp(rng.uniform(np.log(6), np.log(80))))
        shape = _event_shape(rng, length)
        shape *= rng.uniform(0.2, 1.0) if rng.random() < 0.5 else -np.exp(rng.uniform(np.log(0.3), np.log(8)))
        spread = 0.0 if rng.random() < 0.5 else 0.15
        mean_gap = length * np.exp(rng.uniform(np.log(0.4), np.log(6)))
        row = int(rng.exponential(mean_gap))
        while row < rows:
            end = min(row + length, rows)
            values[k, row:end] -= shape[: end - row] * (1 + spread * rng.normal())
            starts[k, row] = True
            row += length + 1 + int(rng.exponential(mean_gap))
    return Patterns(np.maximum(values * (1 + noise), 0), starts)


def _event_shape(rng: Rng, length: int) -> Array:
    """A shape of height 1 that rises, stays and falls, each for a random part of the length."""
    rise, _, fall = rng.dirichlet((0.7, 1.0, 0.7)) * length
    row = np.arange(length) + 0.5
    up = np.clip(row / max(rise, 0.5), 0, 1)
    down = np.clip((length - row) / max(fall, 0.5), 0, 1)
    return np.asarray(np.minimum(up, down) ** rng.choice((0.5, 1.0, 1.0, 2.0)))


def flat(rng: Rng, num: int, rows: int) -> Patterns:
    """A level with small noise, white or correlated, for some rounded."""
    size = np.exp(rng.uniform(np.log(0.001), np.log(0.08), (num, 1)))
    noise = rng.normal(size=(num, rows))
    slow = _smooth_noise(rng, num, rows)
    share = np.where(rng.random((num, 1)) < 0.3, rng.uniform(0.2, 0.9, (num, 1)), 0.0)
    values = 1 + size * (np.sqrt(1 - share**2) * noise + share * slow)
    grain = np.where(rng.random((num, 1)) < 0.15, size * rng.uniform(0.3, 3, (num, 1)), 1e-9)
    return Patterns(np.maximum(np.round(values / grain) * grain, 0), np.zeros((num, rows), dtype=bool))


def self_exciting(rng: Rng, num: int, rows: int) -> Patterns:
    """Counts whose rate rises with each count and falls back exponentially.

    A Hawkes process in discrete time. Source: A. G. Hawkes, "Spectra of some self-exciting and mutually exciting point
    processes", Biometrika 1971.
    """
    base = np.exp(rng.uniform(np.log(0.02), np.log(20), num))
    branching = rng.uniform(0.2, 0.95, num)
    keep = np.exp(-1 / np.exp(rng.uniform(np.log(1), np.log(60), num)))
    counts, excited = np.empty((num, rows)), np.zeros(num)
    for t in range(rows):
        count = rng.poisson(np.minimum(base + excited, 1e5)).astype(np.float64)
        excited = keep * excited + branching * (1 - keep) * count
        counts[:, t] = count
    return Patterns(counts, np.zeros((num, rows), dtype=bool))


def level_shifts(rng: Rng, num: int, rows: int) -> Patterns:
    """Levels that hold for a random time, with small noise; some changes take a few rows."""
    rate = np.exp(rng.uniform(np.log(1 / 500), np.log(1 / 25), (num, 1)))
    change = rng.random((num, rows)) < rate
    starts = change.copy()
    change[:, 0] = True
    index = np.maximum.accumulate(np.where(change, np.arange(rows), 0), axis=1)
    size = np.exp(rng.uniform(np.log(0.05), np.log(1.2), (num, 1)))
    log_level = np.take_along_axis(rng.normal(size=(num, rows)) * size, index, axis=1)
    few = np.take_along_axis(rng.integers(0, 2, (num, rows)) * 2 * size, index, axis=1)  # two levels take turns
    log_level = np.where(rng.random((num, 1)) < 0.3, few, log_level)
    ramp = rng.integers(1, 9, num) * (rng.random(num) < 0.4)
    for k in np.flatnonzero(ramp):
        window = np.ones(ramp[k] + 1) / (ramp[k] + 1)
        log_level[k] = np.convolve(np.pad(log_level[k], (int(ramp[k]), 0), mode="edge"), window, mode="valid")
    noise = np.exp(rng.uniform(np.log(0.003), np.log(0.15), (num, 1))) * rng.normal(size=(num, rows))
    return Patterns(np.maximum(np.exp(log_level) * (1 + noise), 0), starts)


def smooth(rng: Rng, num: int, rows: int) -> Patterns:
    """Cycles of one or two harmonics, lines and slow wandering, with small noise."""
    time = np.arange(rows)
    period = np.exp(rng.uniform(np.log(8), np.log(240), (num, 1)))
    phase = time / period + rng.random((num, 1))
    second = np.where(rng.random((num, 1)) < 0.4, rng.uniform(0.1, 0.7, (num, 1)), 0.0)
    waves = np.sin(2 * np.pi * phase) + second * np.sin(4 * np.pi * phase + rng.uniform(0, 6, (num, 1)))
    growth = rng.normal(size=(num, 1)) * (time - rows) / 128 * (rng.random((num, 1)) < 0.3)
    wander = _smooth_noise(rng, num, rows) * (rng.random((num, 1)) < 0.25)
    size = np.exp(rng.uniform(np.log(0.05), np.log(0.9), (num, 1)))
    course = 1 + size * (waves * (rng.random((num, 1)) < 0.75) + growth + wander)
    noise = np.exp(rng.uniform(np.log(0.003), np.log(0.15), (num, 1))) * rng.normal(size=(num, rows))
    return Patterns(np.maximum(course * (1 + noise), 0), np.zeros((num, rows), dtype=bool))


def _smooth_noise(rng: Rng, num: int, rows: int) -> Array:
    """Exponentially smoothed noise of unit deviation."""
    keep = np.exp(-1 / np.exp(rng.uniform(np.log(2), np.log(60), num)))
    shocks = rng.normal(size=(num, rows)) * np.sqrt(1 - keep[:, None] ** 2)
    level, out = rng.normal(size=num), np.empty((num, rows))
    for t in range(rows):
        level = keep * level + shocks[:, t]
        out[:, t] = level
    return out


# Families without a clock; jobs need the time of day.
TIMELESS: Final[dict[str, Callable[[Rng, int, int], Patterns]]] = {
    "events": events,
    "flat": flat,
    "self_exciting": self_exciting,
    "level_shifts": level_shifts,
    "smooth": smooth,
}
