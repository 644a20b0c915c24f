"""What may come of a batch of workloads, demand paths with a capacity and a lead time each, and what that needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.planning.queue_kernel import (
    TOLERANCE_LEVELS,
    RequiredReplicas,
    Scenario,
    empty_requirements,
    queue_requirements,
    required_replicas,
)

Whole = NDArray[np.int64]


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
        steepness: int64 [B], power of the curve of misses over load.
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
    steepness: NDArray[np.int64]
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


@dataclass(frozen=True, slots=True)
class BatchNeeds:
    """`kept` and `missed` of B workloads, int64 [B, V]; of `load` and `load_now` see `Needs`."""

    kept: Whole
    missed: Whole
    load: NDArray[np.float64]
    load_now: NDArray[np.float64]


def path_needs(futures: Futures, low: Whole, high: Whole) -> BatchNeeds:
    """Needs of every future for load and queue, within the inclusive bounds `low` and `high`, int64 [B]."""
    rows = []
    for scenario, capacity, leads, least, most in _rows(futures, low, high):
        required = empty_requirements(len(capacity))
        required_replicas(scenario, capacity, leads, np.ones(TOLERANCE_LEVELS), least, most, required)
        rows.append(required)
    return _batch(rows, [required.kept for required in rows])


def queue_path_needs(futures: Futures, low: Whole, high: Whole) -> BatchNeeds:
    """Needs for the queue alone, of replicas that work off just their capacity."""
    rows = []
    for scenario, capacity, leads, least, most in _rows(futures, low, high):
        required = empty_requirements(len(capacity))
        queue_requirements(scenario, capacity, leads, least, most, required)
        rows.append(required)
    return _batch(rows, [required.queue for required in rows])


def _rows(futures: Futures, low: Whole, high: Whole) -> Iterator[tuple[Scenario, NDArray[np.float64], Whole, int, int]]:
    for b in range(len(futures.capacity)):
        scenario = Scenario(
            demand=np.ascontiguousarray(futures.demand[b].T, dtype=np.float64),
            ready=int(futures.ready[b]),
            pending=int(futures.pending[b]),
            arrived=futures.arrived[b],
            backlog=float(futures.backlog[b]) / futures.step_s,
            wait=float(futures.ttft_s[b]) / futures.step_s,
            slack=1.0 - float(futures.objective[b]),
            window=futures.window_steps,
            steepness=int(futures.steepness[b]),
        )
        yield scenario, futures.capacity[b], futures.lead_steps[b], int(low[b]), int(high[b])


def _batch(rows: list[RequiredReplicas], kept: list[NDArray[np.int32]]) -> BatchNeeds:
    return BatchNeeds(
        np.array(kept, np.int64),
        np.array([required.missed for required in rows], np.int64),
        np.array([required.load for required in rows]),
        np.array([required.load_now for required in rows]),
    )
