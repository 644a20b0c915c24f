"""What HARMONY has seen before a replay begins: the week of ten-minute means and the surges of the days before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infra.replay.rates import RateProfile
from infra.simulator.arrivals import Arrivals
from model.bursts.recurring import RecurringSurges
from streams.windows.coarse import COARSE_STEP_MS

_CONTEXT_STEPS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """The days before second 0.

    Attributes:
        means: float64 [R, 3], requests, prompt and generated tokens per second by ten minutes, oldest first.
        surges: snapshot of those remembered by then, in event time.
    """

    means: NDArray[np.float64]
    surges: list[list[float]]


def past_of(profile: RateProfile, seed: int, step_s: float, end_ts_ms: int) -> Past:
    """What one draw of a load would have left behind, where it ends at `end_ts_ms`."""
    drawn, step_ms = profile.arrivals(seed), round(step_s * 1000)
    surges, steps = RecurringSurges(), rates_of(drawn, profile.end_s, step_s)
    for _ in observing(surges, steps, end_ts_ms - end_ts_ms % step_ms, step_ms):
        pass
    return Past(rates_of(drawn, profile.end_s, COARSE_STEP_MS / 1000), surges.snapshot())


def rates_of(drawn: Arrivals, end_s: float, bin_s: float) -> NDArray[np.float64]:
    """Requests, prompt and generated tokens per second by bins of which the last ends at `end_s`, [bins, 3]."""
    edges = end_s - bin_s * np.arange(int(end_s // bin_s), -1, -1)
    weights = (np.ones(len(drawn)), drawn.prompt_tokens, drawn.output_tokens)
    return np.stack([np.histogram(drawn.arrival_s, edges, weights=weight)[0] for weight in weights], axis=1) / bin_s


def observing(surges: RecurringSurges, steps: NDArray[np.float64], end_ts_ms: int, step_ms: int) -> Iterator[int]:
    """Show steps of `rates_of`, of which the last ends at `end_ts_ms`, as a worker does; yields when each one ends."""
    unknown = np.zeros((_CONTEXT_STEPS, steps.shape[1]), np.float32)
    values = np.concatenate([unknown, steps.astype(np.float32)])
    observed = np.concatenate([unknown > 0, np.ones(steps.shape, np.bool_)])
    for step in range(1, len(steps) + 1):
        window, end_ms = slice(step, step + _CONTEXT_STEPS), end_ts_ms - (len(steps) - step) * step_ms
        surges.observe(values[window], observed[window], range(steps.shape[1]), end_ms, step_ms)
        yield end_ms
