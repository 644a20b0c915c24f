"""What HARMONY has seen before a replay begins: the week of ten-minute means and the surges of the days before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infra.replay.rates import RateProfile
from model.recurring_surges import RecurringSurges
from streams.coarse_ring import COARSE_STEP_MS

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
    weights = (np.ones(len(drawn)), drawn.prompt_tokens, drawn.output_tokens)

    def rates(bin_s: float) -> NDArray[np.float64]:
        edges = profile.end_s - bin_s * np.arange(int(profile.end_s // bin_s), -1, -1)
        sums = [np.histogram(drawn.arrival_s, edges, weights=weight)[0] for weight in weights]
        return np.stack(sums, axis=1) / bin_s  # [bins, 3]

    steps = rates(step_s).astype(np.float32)
    unknown = np.zeros((_CONTEXT_STEPS, steps.shape[1]), np.float32)
    values = np.concatenate([unknown, steps])
    observed = np.concatenate([unknown > 0, np.ones(steps.shape, np.bool_)])
    surges = RecurringSurges()
    for step in range(1, len(steps) + 1):
        window = slice(step, step + _CONTEXT_STEPS)
        end_ms = end_ts_ms - end_ts_ms % step_ms - (len(steps) - step) * step_ms
        surges.observe(values[window], observed[window], range(steps.shape[1]), end_ms, step_ms)
    return Past(rates(COARSE_STEP_MS / 1000), surges.snapshot())
