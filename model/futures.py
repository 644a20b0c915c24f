"""Draws of what may come of a batch of workloads: demand paths with a capacity and a lead time each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Futures:
    """B workloads with V futures each.

    Attributes:
        demand: float [B, S, H], requests/s of each step; future v takes path v % S.
        capacity: float64 [B, V], requests/s one replica carries; V a multiple of S.
        lead_steps: int64 [B, V], whole steps until a replica commanded now serves, at most H - window_steps.
        ready: int64 [B], replicas serving now.
        pending: int64 [B], replicas commanded and not yet serving.
        arrived: int64 [B, H], how many of the pending ones serve from the start of each step at the latest; those not
            arrived within H are taken to arrive when a replica commanded now would.
        backlog: float [B], requests waiting now.
        ttft_s: float [B].
        objective: float64 [B].
        window_steps: length of the commit window.
        step_s: length of a step.

    Raises:
        ValueError: shapes that do not fit.
    """

    demand: NDArray[np.floating]
    capacity: NDArray[np.float64]
    lead_steps: NDArray[np.int64]
    ready: NDArray[np.int64]
    pending: NDArray[np.int64]
    arrived: NDArray[np.int64]
    backlog: NDArray[np.floating]
    ttft_s: NDArray[np.floating]
    objective: NDArray[np.float64]
    window_steps: int
    step_s: float

    def __post_init__(self) -> None:
        rows, paths, horizon = self.demand.shape
        draws = self.capacity.shape[1]
        if self.capacity.shape != (rows, draws) or self.lead_steps.shape != (rows, draws) or draws % paths:
            raise ValueError(
                f"capacity and lead_steps must be [{rows}, k * {paths}], got "
                f"{tuple(self.capacity.shape)} and {tuple(self.lead_steps.shape)}"
            )
        if self.arrived.shape != (rows, horizon):
            raise ValueError(f"arrived must be [{rows}, {horizon}], got {tuple(self.arrived.shape)}")
        if not 1 <= self.window_steps <= horizon:
            raise ValueError(f"window_steps must be in 1..{horizon}, got {self.window_steps}")
