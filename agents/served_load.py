"""Arrivals as the engine feels them: averaged over the time that requests stay.

A request that stays a minute loads its replica for that minute, so a burst of seconds is shared by everything in
service and hardly felt, while a change of level is felt little by little. A replica that serves all its requests at
once relaxes with R / (1 - utilization), R being the time requests stay, hence more slowly than R.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from agents.signals import residence_s
from model.averages import average_of_known, exponential_averages
from streams.windows.table import Window

_RELAXATION: Final = 2.0  # of residence times; utilization is about a half where fleets are run


def served_load(
    demand: Tensor, windows: Sequence[Window], step_ms: int, columns: Sequence[int] | None = None
) -> Tensor:
    """Exponential averages of demand paths, begun with the past.

    Args:
        demand: float32 [B, S, H], requests/s of the steps after each window.
        windows: B of them.
        columns: B, of the demand in its window; None = 0, the arrival rate.

    Returns:
        float32 [B, S, H], on the CPU, the paths of a step side by side in memory; rows whose requests do not stay, or
        of whom it is not known how long, are as they were.
    """
    step_s = step_ms / 1000
    keeps, starts = zip(
        *(_past(window, step_s, column) for window, column in zip(windows, columns or [0] * len(windows), strict=True)),
        strict=True,
    )
    paths = demand.detach().to("cpu", torch.float32).transpose(1, 2).contiguous().numpy()  # [B, H, S]
    load = np.empty_like(paths)
    exponential_averages(paths, np.array(keeps, np.float32), np.array(starts, np.float32), load)
    return torch.from_numpy(load).transpose(1, 2)


def _past(window: Window, step_s: float, column: int) -> tuple[float, float]:
    """The share of the average that a step to come leaves in place, and the load at the origin.

    What is in service now arrived within the time that requests stay.
    """
    stay_s = residence_s(window)
    if stay_s is None or stay_s <= 0:
        return 0.0, 0.0
    known, load = average_of_known(window.values, window.observed, column, step_s / stay_s)
    return (math.exp(-step_s / (_RELAXATION * stay_s)), load) if known else (0.0, 0.0)
