"""Where window rows become tensors: the only place at which the numpy rings of `streams` meet `model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from model.contract import COARSE_ROWS, ContextBatch
from streams.catalogue import Indicator


@dataclass(frozen=True, slots=True, eq=False)
class WindowRow:
    """One workload's windows at one origin; columns in catalogue order.

    Attributes:
        origin_ts_ms: end of the last closed slot.
        values: float32 [L, N], oldest first, 0 where not observed.
        observed: bool [L, N].
        coarse: float32 [1008, C], 10-minute means of the C level-1 indicators, the newest complete ten minutes last.
        coarse_observed: bool [1008, C].
    """

    workload: str
    origin_ts_ms: int
    values: NDArray[np.float32]
    observed: NDArray[np.bool_]
    coarse: NDArray[np.float32]
    coarse_observed: NDArray[np.bool_]


def collate(rows: Sequence[WindowRow], catalogue: Sequence[Indicator], step_ms: int) -> ContextBatch:
    """One batch of all rows, in their order. Copies: the rings may move on.

    Raises:
        ValueError: no rows, a row of another shape than the catalogue and the first row, or a catalogue whose level-1
            indicators do not come first.
    """
    if not rows:
        raise ValueError("there are no rows to collate")
    levels = [indicator.level for indicator in catalogue]
    num_demand = levels.count(1)
    if any(level != 1 for level in levels[:num_demand]):
        raise ValueError("the catalogue must list its level-1 indicators first: the coarse ring holds those")
    fine = (rows[0].values.shape[0], len(levels))
    coarse = (COARSE_ROWS, num_demand)
    for row in rows:
        shapes = (row.values.shape, row.observed.shape, row.coarse.shape, row.coarse_observed.shape)
        if shapes != (fine, fine, coarse, coarse):
            raise ValueError(f"window of {row.workload!r} has shapes {shapes}, wanted {(fine, fine, coarse, coarse)}")
    bounds = [indicator_bounds(indicator) for indicator in catalogue]
    return ContextBatch(
        item_ids=tuple(row.workload for row in rows),
        origin_ts_ms=torch.tensor([row.origin_ts_ms for row in rows], dtype=torch.int64),
        step_ms=step_ms,
        values=torch.from_numpy(np.stack([row.values for row in rows]).astype(np.float32, copy=False)),
        observed=torch.from_numpy(np.stack([row.observed for row in rows]).astype(np.bool_, copy=False)),
        coarse=torch.from_numpy(np.stack([row.coarse for row in rows]).astype(np.float32, copy=False)),
        coarse_observed=torch.from_numpy(np.stack([row.coarse_observed for row in rows]).astype(np.bool_, copy=False)),
        levels=torch.tensor(levels, dtype=torch.int64),
        indicators=tuple(indicator.name for indicator in catalogue),
        lower=torch.tensor([low for low, _ in bounds], dtype=torch.float32),
        upper=torch.tensor([high for _, high in bounds], dtype=torch.float32),
    )


def indicator_bounds(indicator: Indicator) -> tuple[float, float]:
    """Physical bounds of the indicator, from those of the raw values and from how it is made of them."""
    if indicator.rule == "miss_ratio":
        return 0.0, 1.0
    lower = -np.inf if indicator.lower is None else indicator.lower
    upper = np.inf if indicator.upper is None else indicator.upper
    if indicator.rule == "ratio":
        lower, upper = max(lower, 0.0), min(upper, 1.0)
    if indicator.rule in ("rate", "p95"):
        lower, upper = max(lower, 0.0), np.inf  # made of increases, which no bound of a counter bounds
    if indicator.over_sources == "sum":
        lower, upper = (lower if lower >= 0 else -np.inf), (upper if upper <= 0 else np.inf)
    return float(lower), float(upper)
